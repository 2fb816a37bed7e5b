//! What an agent says went wrong. It is not trusted: what kas alone decides, it cannot say.

use http::{Response, header::ALLOW};
use percent_encoding::percent_decode_str;
use proto::{Reason, header};
use tunnel::Body;

use super::Failure;
use crate::forward::Destination;

impl Failure {
    /// The agent's own failure, if the response is one.
    pub fn of_agent(response: &Response<Body>, to: &Destination) -> Option<Self> {
        let headers = response.headers();
        let reason = headers.get(&header::ERROR)?.to_str().ok()?;
        let message = headers.get(&header::ERROR_MESSAGE).and_then(|message| message.to_str().ok());
        let message = percent_decode_str(message.unwrap_or("it did not say why")).decode_utf8_lossy();
        let message: String = message.chars().filter(|c| !c.is_control()).collect();
        // A caller told `unauthorized` would throw its credential away.
        let reason = reason.parse().ok().filter(|reason| *reason != Reason::Unauthorized);
        let reason = reason.unwrap_or(Reason::AgentMisbehaved);
        let mut failure = Self::new(reason, format!("agent {}: {message}", to.name));
        failure.allow = headers.get(ALLOW).filter(|_| reason == Reason::MethodNotAllowed).cloned();
        Some(failure)
    }
}
