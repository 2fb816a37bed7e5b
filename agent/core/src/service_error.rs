//! Errors of agentk, as kas expects them. kas writes the body, in the format of the caller's protocol.

use std::fmt;

use http::{HeaderValue, Response, header::ALLOW};
use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};
use proto::{Reason, header};
use tunnel::Body;

use crate::upstream::UpstreamError;

/// The error of a service that has no response for a request.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct ServiceError {
    /// The reason, for programs.
    pub reason: Reason,
    /// The message, for people: the failed step and its address. It contains no secrets.
    pub message: String,
    /// The methods that the path supports, as `Allow` lists them (RFC 9110 section 15.5.6).
    pub allow: Option<&'static str>,
}

/// The characters that are encoded: all but visible ASCII, and `%`, since kas decodes the message.
const ENCODED: &AsciiSet = &CONTROLS.add(b'%');
/// The longest message, in characters before encoding.
const MAX_MESSAGE: usize = 1000;

impl ServiceError {
    /// Returns an error with a message for the caller.
    pub fn new(reason: Reason, message: impl fmt::Display) -> Self {
        Self { reason, message: message.to_string(), allow: None }
    }

    /// Adds the methods that the path supports.
    #[must_use]
    pub fn with_allow(mut self, methods: &'static str) -> Self {
        self.allow = Some(methods);
        self
    }

    /// Returns the response to kas: reason and message are in headers, and the body is empty.
    pub fn into_response(self) -> Response<Body> {
        let short: String = self.message.chars().take(MAX_MESSAGE).collect();
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

/// The message of an upstream error names the address and contains no secrets.
impl From<UpstreamError> for ServiceError {
    fn from(error: UpstreamError) -> Self {
        use UpstreamError as E;

        let reason = match &error {
            E::Resolve { .. } | E::Connect { .. } | E::Tls { .. } => Reason::ClusterUnreachable,
            E::ConnectTimeout { .. } | E::ResponseTimeout { .. } | E::WriteTimeout { .. } => {
                Reason::ClusterTimeout
            }
            E::ClosedBeforeResponse { .. } | E::InvalidResponse { .. } => Reason::ClusterMisbehaved,
            E::TlsSetup { .. } => Reason::ClusterCredential,
            E::RequestBody { .. } | E::InvalidTarget { .. } => Reason::BadRequest,
        };
        Self::new(reason, error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_response_has_reason_and_message_in_headers() {
        let response =
            ServiceError::new(Reason::ClusterUnreachable, "100 % of \"ü\"\nfailed").into_response();
        assert_eq!(response.status(), 502);
        assert_eq!(response.headers()["kas-error"], "cluster-unreachable");
        assert_eq!(response.headers()["kas-error-message"], "100 %25 of \"%C3%BC\"%0Afailed");
        let long = ServiceError::new(Reason::Internal, "ü".repeat(100_000)).into_response();
        assert!(long.headers()["kas-error-message"].len() <= 6 * MAX_MESSAGE);
    }
}
