//! Asks an agent to open another tunnel and leave this one.

use std::time::Duration;

use bytes::Bytes;
use http::Request;
use proto::{
    ServiceName,
    control::{DRAIN_PATH, Drain, DrainReason},
    header,
};
use tokio::time::timeout;
use tunnel::{Body, Tunnel};

/// How long an agent may take to answer a control request.
const CONTROL_TIMEOUT: Duration = Duration::from_secs(10);

/// Fails, with what happened, unless the agent agrees.
pub(super) async fn ask_to_leave(
    tunnel: &Tunnel,
    reason: DrainReason,
    within: Duration,
) -> Result<(), String> {
    let body = serde_json::to_vec(&Drain { reason, within }).expect("it is plain data");
    let request = Request::post(DRAIN_PATH)
        .header(header::SERVICE, ServiceName::CONTROL)
        .body(Body::from(Bytes::from(body)))
        .expect("it is a valid request");
    match timeout(CONTROL_TIMEOUT, tunnel.call(request)).await {
        Ok(Ok(answer)) if answer.status().is_success() => Ok(()),
        Ok(Ok(answer)) => Err(format!("it answered {}", answer.status())),
        Ok(Err(error)) => Err(error.to_string()),
        Err(_) => Err("it did not answer".to_owned()),
    }
}
