//! Requests of kas to agentk itself, through a tunnel.

use std::time::Duration;

use bytes::Bytes;
use http::{Request, StatusCode};
use proto::{ServiceName, header};
use serde::Serialize;
use tokio::time::timeout;
use tunnel::{Body, Tunnel};

/// The time that an agent may take for the response to a control request.
const TIMEOUT: Duration = Duration::from_secs(10);

/// The reason why an agent does not accept a control request.
#[derive(Debug, thiserror::Error)]
pub(super) enum ControlError {
    /// The agent responded with this status. An agent of another version may not know the request.
    #[error("the agent responded with {0}")]
    Refused(StatusCode),
    /// The tunnel failed.
    #[error("{0}")]
    Failed(String),
    /// There was no response in time.
    #[error("the agent did not respond in time")]
    TimedOut,
}

/// Sends a control request with a body of JSON.
pub(super) async fn send(tunnel: &Tunnel, path: &str, body: &impl Serialize) -> Result<(), ControlError> {
    let body = serde_json::to_vec(body).expect("serializable");
    let request = Request::post(path)
        .header(header::SERVICE, ServiceName::CONTROL)
        .body(Body::from(Bytes::from(body)))
        .expect("valid request");
    match timeout(TIMEOUT, tunnel.call(request)).await {
        Ok(Ok(response)) if response.status().is_success() => Ok(()),
        Ok(Ok(response)) => Err(ControlError::Refused(response.status())),
        Ok(Err(error)) => Err(ControlError::Failed(error.to_string())),
        Err(_) => Err(ControlError::TimedOut),
    }
}
