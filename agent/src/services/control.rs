//! Requests of kas to agentk itself, which concern the tunnel that they arrive on.

use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Limited};
use proto::{
    Reason,
    control::{DRAIN_PATH, DrainRequest, MAX_BODY},
};
use tokio::sync::watch;
use tunnel::Body;

use super::ServiceError;

/// The `control` service of one tunnel.
#[derive(Clone, Debug)]
pub(crate) struct ControlService(watch::Sender<Option<DrainRequest>>);

impl ControlService {
    /// Returns the service, and a receiver of the last drain request.
    pub(crate) fn new() -> (Self, watch::Receiver<Option<DrainRequest>>) {
        let (sender, receiver) = watch::channel(None);
        (Self(sender), receiver)
    }

    /// Returns the response to a request. Errors are responses, too.
    pub(crate) async fn respond(&self, request: Request<Body>) -> Response<Body> {
        self.handle(request).await.unwrap_or_else(ServiceError::into_response)
    }

    async fn handle(&self, request: Request<Body>) -> Result<Response<Body>, ServiceError> {
        if request.method() != Method::POST || request.uri().path() != DRAIN_PATH {
            let what = format!("agentk has no control request {} {}", request.method(), request.uri().path());
            return Err(ServiceError::new(Reason::UnknownPath, what));
        }
        let invalid =
            |error| ServiceError::new(Reason::BadRequest, format!("invalid drain request: {error}"));
        let body = Limited::new(request.into_body(), MAX_BODY).collect().await.map_err(invalid)?.to_bytes();
        let drain = serde_json::from_slice(&body).map_err(|error| invalid(error.into()))?;
        self.0.send_replace(Some(drain));
        let mut response = Response::new(Body::empty());
        *response.status_mut() = StatusCode::ACCEPTED;

        Ok(response)
    }
}
