//! Requests of kas itself to agentk, through one of its tunnels.

use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode};
use proto::header;
use serde::Serialize;
use tokio::time::timeout;
use tunnel::{Body, CallErrorKind, Tunnel};

/// The most characters of a message of agentk that are kept.
const MAX_MESSAGE: usize = 300;

/// The reason why agentk does not do what kas requests.
#[derive(Debug, thiserror::Error)]
pub enum AgentRequestError {
    /// agentk responded with this status, and with a message. An agentk of another version may not know the request.
    #[error("{0}{blank}{1}", blank = if .1.is_empty() { "" } else { " " })]
    Refused(StatusCode, String),
    /// The tunnel failed.
    #[error("{0}")]
    Failed(CallErrorKind),
    /// There was no head of a response in time.
    #[error("no response in time")]
    TimedOut,
}

/// Builds a request to a service of agentk. The path is valid.
pub fn request(method: Method, service: &'static str, path: &str, body: Body) -> Request<Body> {
    let request = Request::builder().method(method).uri(path).header(header::SERVICE, service);
    request.body(body).expect("a valid request")
}

/// Returns a body with a value as JSON.
pub fn json(value: &impl Serialize) -> Body {
    let text = serde_json::to_vec(value).expect("it has keys that are text");
    Body::from(Bytes::from(text))
}

/// Sends a request, and waits for the head of the response. A response without success is an error.
pub async fn send(
    tunnel: &Tunnel,
    request: Request<Body>,
    limit: Duration,
) -> Result<Response<Body>, AgentRequestError> {
    let response = timeout(limit, tunnel.call(request)).await.map_err(|_| AgentRequestError::TimedOut)?;
    let response = response.map_err(|error| AgentRequestError::Failed(error.kind))?;
    if response.status().is_success() {
        return Ok(response);
    }
    let message = response.headers().get(header::ERROR_MESSAGE).and_then(|message| message.to_str().ok());
    let message = message.unwrap_or_default().chars().take(MAX_MESSAGE).collect();
    Err(AgentRequestError::Refused(response.status(), message))
}

impl From<AgentRequestError> for String {
    fn from(error: AgentRequestError) -> Self {
        error.to_string()
    }
}
