//! Names of the header fields that kas and agentk set, and lists in header fields.
//!
//! kas and agentk remove these fields from messages of callers and clusters before they set their own.

use http::{
    HeaderMap, HeaderName, HeaderValue,
    header::{ACCEPT, ACCEPT_ENCODING},
};
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

/// The header with which a reader of server-sent events continues.
pub const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");

/// The prefix of all these names except [`REQUEST_ID`], [`AUDIT_ID`] and [`LAST_EVENT_ID`].
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
    tokens(headers, &ACCEPT_ENCODING).filter_map(weighted).any(|(coding, weight)| {
        let is_gzip = coding.eq_ignore_ascii_case("gzip");
        is_gzip && weight > 0.0
    })
}

/// Returns whether a caller prefers a media type to the default one of a resource (RFC 9110 section 12.5.1): the caller names the type,
/// and does not give the default a greater weight.
pub fn prefers(headers: &HeaderMap, media_type: &str, default: &str) -> bool {
    let weight_of = |wanted: &str| {
        let named = tokens(headers, &ACCEPT).filter_map(weighted);
        let mut named = named.filter(|(range, _)| range.eq_ignore_ascii_case(wanted));
        named.next().map(|(_, weight)| weight)
    };
    let Some(weight) = weight_of(media_type) else { return false };
    weight > 0.0 && weight_of(default).is_none_or(|of_default| weight >= of_default)
}

/// Returns a member of a list with its weight (RFC 9110 section 12.4.2), or `None` if the weight is no number.
pub fn weighted(member: &str) -> Option<(&str, f32)> {
    let mut parts = member.split(';').map(str::trim);
    let name = parts.next()?;
    let mut parameters = parts.filter_map(|part| part.split_once('='));
    let weight = parameters.find(|(name, _)| name.eq_ignore_ascii_case("q"));
    Some((name, weight.map_or(Some(1.0), |(_, weight)| weight.parse().ok())?))
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

    #[test]
    fn media_type_is_preferred_by_its_weight() {
        let prefers = |value| {
            let headers = HeaderMap::from_iter([(ACCEPT, HeaderValue::from_static(value))]);
            prefers(&headers, "text/event-stream", "application/x-ndjson")
        };
        for value in [
            "text/event-stream",
            "Text/Event-Stream;q=0.5, */*;q=0.1",
            "text/event-stream; q=1.0",
            "application/json, text/event-stream, */*",
            "text/event-stream, application/x-ndjson;q=0.9",
        ] {
            assert!(prefers(value), "{value}");
        }
        for value in [
            "*/*",
            "text/*",
            "text/event-stream;q=0",
            "text/event-stream;q=0.5, application/x-ndjson",
            "text/event-stream;q=x",
        ] {
            assert!(!prefers(value), "{value}");
        }
    }
}
