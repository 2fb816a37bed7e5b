//! What an agent is told that gets no tunnel.

use std::{fmt::Display, time::Duration};

use http::{
    HeaderValue, Response, StatusCode,
    header::{CONTENT_TYPE, RETRY_AFTER, SEC_WEBSOCKET_PROTOCOL, UPGRADE},
};
use proto::SUBPROTOCOL;
use tunnel::Body;

use super::Agents;

/// When to come back to a replica that is stopping: by then a load balancer has noticed.
pub(super) const DRAINING: Duration = Duration::from_secs(5);
/// When to come back to a replica that holds all the tunnels that an agent may have: another must end first.
pub(super) const CROWDED: Duration = Duration::from_secs(30);

impl Agents {
    /// For a reason that time mends.
    pub(super) fn refuse_for(
        &self,
        wait: Duration,
        result: &'static str,
        status: StatusCode,
        what: impl Display,
        address: &str,
    ) -> Response<Body> {
        let mut answer = self.refuse(result, status, what, address);
        let seconds = wait.as_millis().div_ceil(1000) as u64;
        answer.headers_mut().insert(RETRY_AFTER, HeaderValue::from(seconds));
        answer
    }

    pub(super) fn refuse(
        &self,
        result: &'static str,
        status: StatusCode,
        what: impl Display,
        address: &str,
    ) -> Response<Body> {
        self.metrics.handshake(result);
        if let Some(suppressed) = self.refusals.admit(result, std::time::Instant::now()) {
            tracing::warn!(peer = %address, %status, reason = %what, suppressed, "a tunnel was refused");
        }
        let mut answer = Response::new(Body::from(format!("{what}\n")));
        *answer.status_mut() = status;
        let headers = answer.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
        if status == StatusCode::UPGRADE_REQUIRED {
            headers.insert(UPGRADE, HeaderValue::from_static("websocket"));
            headers.insert(SEC_WEBSOCKET_PROTOCOL, HeaderValue::from_static(SUBPROTOCOL));
        }
        answer
    }
}
