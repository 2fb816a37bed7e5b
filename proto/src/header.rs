//! Names of the header fields that kas and agentk set, and lists in header fields.
//!
//! kas and agentk remove these fields from messages of callers and clusters before they set their own.

use http::{HeaderMap, HeaderName, HeaderValue, header::ACCEPT_ENCODING};
use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};

use crate::Reason;

/// agentk → kas on the WebSocket upgrade, or on the 101 if kas has dialled: [`crate::Hello`] as JSON.
pub const HELLO: HeaderName = HeaderName::from_static("kas-hello");
/// kas → agentk on the 101, or on the WebSocket upgrade if kas dials: [`crate::Welcome`] as JSON.
pub const WELCOME: HeaderName = HeaderName::from_static("kas-welcome");
/// agentk → kas on the 101 of a tunnel that kas has dialled: the credential of agentk, in the form of `Authorization`.
pub const AUTHORIZATION: HeaderName = HeaderName::from_static("kas-authorization");
/// kas → agentk in the tunnel: the service of the request.
pub const SERVICE: HeaderName = HeaderName::from_static("kas-service");
/// kas → agentk in the tunnel: the method of an upgrade request, because its `:method` is CONNECT (RFC 8441).
pub const UPGRADE_METHOD: HeaderName = HeaderName::from_static("kas-upgrade-method");
/// agentk → kas in the tunnel: the protocol of an upgrade that the cluster accepted with 101. Raw bytes follow.
pub const UPGRADED: HeaderName = HeaderName::from_static("kas-upgraded");
/// On an error response of kas or agentk: the [`crate::Reason`], for programs. Responses of the cluster have none.
pub const ERROR: HeaderName = HeaderName::from_static("kas-error");
/// agentk → kas in the tunnel, beside [`ERROR`]: the message for the caller, percent-encoded.
pub const ERROR_MESSAGE: HeaderName = HeaderName::from_static("kas-error-message");
/// agentk → kas in the tunnel: microseconds from the head of the request to the head of the upstream's response.
pub const UPSTREAM_TIME: HeaderName = HeaderName::from_static("kas-upstream-time");
/// The id of one request, in the response to the caller and in the logs of kas and agentk.
pub const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// The id of a request in the audit log of the cluster, on a request to the Kubernetes API and on its response. kas sets it.
pub const AUDIT_ID: HeaderName = HeaderName::from_static("audit-id");

/// The prefix of all these names except [`REQUEST_ID`] and [`AUDIT_ID`].
pub const PREFIX: &str = "kas-";

/// The characters that are encoded in a message: all but visible ASCII, and `%`, since kas decodes it.
const ENCODED: &AsciiSet = &CONTROLS.add(b'%');
/// The longest message, in characters before encoding.
const MAX_MESSAGE: usize = 1000;

/// Returns the fields with which agentk reports an error to kas. kas writes the body, in the format of the caller's protocol.
pub fn error(reason: Reason, message: &str) -> HeaderMap {
    let short: String = message.chars().take(MAX_MESSAGE).collect();
    let message = utf8_percent_encode(&short, ENCODED).to_string();
    let message = HeaderValue::from_str(&message).expect("encoded to visible ASCII");
    HeaderMap::from_iter([(ERROR, HeaderValue::from_static(reason.as_str())), (ERROR_MESSAGE, message)])
}

/// Returns the members of a comma-separated list, from all field lines with this name (RFC 9110 section 5.6.1).
pub fn tokens<'a>(headers: &'a HeaderMap, name: &HeaderName) -> impl Iterator<Item = &'a str> {
    headers
        .get_all(name)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .map(str::trim)
}

/// Returns whether a caller accepts gzip (RFC 9110 section 12.5.3).
pub fn accepts_gzip(headers: &HeaderMap) -> bool {
    tokens(headers, &ACCEPT_ENCODING).any(|coding| {
        let mut parts = coding.split(';').map(str::trim);
        let is_gzip = parts.next().is_some_and(|name| name.eq_ignore_ascii_case("gzip"));
        let refused = |weight: &str| weight.bytes().all(|byte| matches!(byte, b'0' | b'.'));
        let mut weights = parts.filter_map(|part| part.split_once('='));
        let is_refused = weights.any(|(name, weight)| name.eq_ignore_ascii_case("q") && refused(weight));
        is_gzip && !is_refused
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gzip_is_accepted_unless_it_is_refused() {
        let accepted =
            |value| accepts_gzip(&HeaderMap::from_iter([(ACCEPT_ENCODING, HeaderValue::from_static(value))]));
        for value in ["gzip", "br, GZIP", "gzip;q=0.5", "gzip; q=1.0, identity"] {
            assert!(accepted(value), "{value}");
        }
        for value in ["", "identity", "br", "gzip;q=0", "gzip;Q=0", "gzip; q=0.000", "xgzip", "*"] {
            assert!(!accepted(value), "{value}");
        }
        assert!(!accepts_gzip(&HeaderMap::new()));
    }
}
