//! Requests to the service `control` of agentk.

use std::time::Duration;

use http::Method;
use proto::ServiceName;
use serde::Serialize;
use tunnel::Tunnel;

use crate::agent_requests::{self, AgentRequestError, json, request};

/// The time that an agent may take for the response to a control request.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Sends a control request with a body of JSON.
pub(super) async fn send(
    tunnel: &Tunnel,
    path: &str,
    body: &impl Serialize,
) -> Result<(), AgentRequestError> {
    let request = request(Method::POST, ServiceName::CONTROL, path, json(body));
    agent_requests::send(tunnel, request, TIMEOUT).await.map(drop)
}
