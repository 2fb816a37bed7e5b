//! What kas asks of agentk itself, on the tunnel that it concerns.

use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Limited};
use proto::{
    Reason,
    control::{DRAIN_PATH, Drain, MAX_BODY},
};
use tokio::sync::watch;
use tunnel::Body;

use crate::Failure;

/// The control service of one tunnel.
#[derive(Clone, Debug)]
pub(crate) struct Control(watch::Sender<Option<Drain>>);

impl Control {
    /// What kas asked for last arrives at the receiver.
    pub(crate) fn new() -> (Self, watch::Receiver<Option<Drain>>) {
        let (sender, receiver) = watch::channel(None);
        (Self(sender), receiver)
    }

    pub(crate) async fn answer(&self, request: Request<Body>) -> Response<Body> {
        match self.obey(request).await {
            Ok(response) => response,
            Err(failure) => failure.into_response(),
        }
    }

    async fn obey(&self, request: Request<Body>) -> Result<Response<Body>, Failure> {
        if request.method() != Method::POST || request.uri().path() != DRAIN_PATH {
            let what =
                format!("agentk takes no control request {} {}", request.method(), request.uri().path());
            return Err(Failure::new(Reason::UnknownPath, what));
        }
        let unusable = |error| Failure::new(Reason::BadRequest, format!("unusable drain request: {error}"));
        let body = Limited::new(request.into_body(), MAX_BODY).collect().await.map_err(unusable)?.to_bytes();
        let drain = serde_json::from_slice(&body).map_err(|error| unusable(error.into()))?;
        self.0.send_replace(Some(drain));
        let mut response = Response::new(Body::empty());
        *response.status_mut() = StatusCode::ACCEPTED;

        Ok(response)
    }
}
