//! Names of the header fields that kas and agentk set, and lists in header fields.
//!
//! kas and agentk remove these fields from messages of callers and clusters before they set their own.

use http::{HeaderMap, HeaderName};

/// agentk → kas on the WebSocket upgrade: [`crate::Hello`] as JSON.
pub const HELLO: HeaderName = HeaderName::from_static("kas-hello");
/// kas → agentk on the 101: [`crate::Welcome`] as JSON.
pub const WELCOME: HeaderName = HeaderName::from_static("kas-welcome");
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

/// The prefix of all these names except [`REQUEST_ID`].
pub const PREFIX: &str = "kas-";

/// Returns the members of a comma-separated list, from all field lines with this name (RFC 9110 section 5.6.1).
pub fn tokens<'a>(headers: &'a HeaderMap, name: &HeaderName) -> impl Iterator<Item = &'a str> {
    headers
        .get_all(name)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .map(str::trim)
}
