//! agentk's own failures on the wire. kas writes the body: it knows which language the caller speaks.

use std::fmt;

use http::{HeaderValue, Response, header::ALLOW};
use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};
use proto::{Reason, header};
use tunnel::Body;

/// Why a request was not, or not successfully, passed on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Failure {
    /// For programs.
    pub reason: Reason,
    /// For people: what failed, where, and nothing secret.
    pub message: String,
    /// The methods that would do, as `Allow` lists them (RFC 9110 section 15.5.6).
    pub allow: Option<&'static str>,
}

/// All but visible ASCII; and `%`, or kas could not tell what was encoded.
const ENCODED: &AsciiSet = &CONTROLS.add(b'%');
/// Longest message, in characters before encoding: a sentence, whatever it quotes.
const LONGEST: usize = 1000;

impl Failure {
    /// `message` is for the caller.
    pub fn new(reason: Reason, message: impl fmt::Display) -> Self {
        Self { reason, message: message.to_string(), allow: None }
    }

    /// These methods would do.
    #[must_use]
    pub fn allow(mut self, methods: &'static str) -> Self {
        self.allow = Some(methods);
        self
    }

    /// As kas expects it: reason and message in headers, no body.
    pub fn into_response(self) -> Response<Body> {
        let short: String = self.message.chars().take(LONGEST).collect();
        let message = utf8_percent_encode(&short, ENCODED).to_string();
        let mut response = Response::new(Body::empty());
        *response.status_mut() = self.reason.status();
        let headers = response.headers_mut();
        headers.insert(header::ERROR, HeaderValue::from_static(self.reason.as_str()));
        headers.insert(
            header::ERROR_MESSAGE,
            HeaderValue::from_str(&message).expect("encoded to visible ASCII"),
        );
        if let Some(methods) = self.allow {
            headers.insert(ALLOW, HeaderValue::from_static(methods));
        }
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_travels_in_headers() {
        let response = Failure::new(Reason::ClusterUnreachable, "100 % of \"ü\"\nfailed").into_response();
        assert_eq!(response.status(), 502);
        assert_eq!(response.headers()["kas-error"], "cluster-unreachable");
        assert_eq!(response.headers()["kas-error-message"], "100 %25 of \"%C3%BC\"%0Afailed");
        let long = Failure::new(Reason::Internal, "ü".repeat(100_000)).into_response();
        assert!(long.headers()["kas-error-message"].len() <= 6 * LONGEST);
    }
}
