//! Requests of kas to agentk itself, which concern the tunnel that they arrive on.

use std::sync::Arc;

use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Limited};
use proto::{
    Reason,
    control::{DISABLED_PATH, DRAIN_PATH, DrainRequest, MAX_BODY},
};
use serde::de::DeserializeOwned;
use tokio::sync::watch;
use tunnel::Body;

use super::ServiceError;
use crate::disabled::TunnelRules;

/// The `control` service of one tunnel.
#[derive(Clone, Debug)]
pub struct ControlService {
    drain: watch::Sender<Option<DrainRequest>>,
    disabled: Arc<TunnelRules>,
}

impl ControlService {
    /// Returns the service, and a receiver of the last drain request.
    pub fn new(disabled: TunnelRules) -> (Self, watch::Receiver<Option<DrainRequest>>) {
        let (drain, receiver) = watch::channel(None);
        (Self { drain, disabled: Arc::new(disabled) }, receiver)
    }

    /// Returns the response to a request. Errors are responses, too.
    pub(crate) async fn respond(&self, request: Request<Body>) -> Response<Body> {
        self.handle(request).await.unwrap_or_else(ServiceError::into_response)
    }

    async fn handle(&self, request: Request<Body>) -> Result<Response<Body>, ServiceError> {
        match (request.method(), request.uri().path()) {
            (&Method::POST, DRAIN_PATH) => {
                let drain = read(request, "drain request").await?;
                self.drain.send_replace(Some(drain));
            }
            (&Method::POST, DISABLED_PATH) => self.disabled.replace(read(request, "notice").await?),
            (method, path) => {
                let what = format!("agentk has no control request {method} {path}");
                return Err(ServiceError::new(Reason::UnknownPath, what));
            }
        }
        let mut response = Response::new(Body::empty());
        *response.status_mut() = StatusCode::ACCEPTED;

        Ok(response)
    }
}

/// Reads the body of a control request. `what` names it in errors.
async fn read<T: DeserializeOwned>(request: Request<Body>, what: &str) -> Result<T, ServiceError> {
    let invalid = |error| ServiceError::new(Reason::BadRequest, format!("invalid {what}: {error}"));
    let body = Limited::new(request.into_body(), MAX_BODY).collect().await.map_err(invalid)?.to_bytes();
    serde_json::from_slice(&body).map_err(|error| invalid(error.into()))
}
