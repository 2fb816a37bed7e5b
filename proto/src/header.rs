//! Header names that the product owns.
//!
//! Everything named here is removed from what comes from outside (a caller, the cluster) before we set it ourselves.

use http::HeaderName;

/// agentk → kas on the WebSocket upgrade: [`crate::Hello`] as JSON.
pub const HELLO: HeaderName = HeaderName::from_static("kas-hello");
/// kas → agentk on the 101: [`crate::Welcome`] as JSON.
pub const WELCOME: HeaderName = HeaderName::from_static("kas-welcome");
/// kas → agentk in the tunnel: which service the request is for.
pub const SERVICE: HeaderName = HeaderName::from_static("kas-service");
/// kas → agentk in the tunnel: the method of a request that asks for an upgrade; RFC 8441 occupies `:method`.
pub const UPGRADE_METHOD: HeaderName = HeaderName::from_static("kas-upgrade-method");
/// agentk → kas in the tunnel: the cluster answered 101, raw bytes follow. The value is the upgrade's protocol.
pub const UPGRADED: HeaderName = HeaderName::from_static("kas-upgraded");
/// On an answer that is ours and not the cluster's: the machine-readable [`crate::Reason`].
pub const ERROR: HeaderName = HeaderName::from_static("kas-error");
/// agentk → kas in the tunnel, beside [`ERROR`]: the sentence for the caller.
pub const ERROR_MESSAGE: HeaderName = HeaderName::from_static("kas-error-message");
/// agentk → kas in the tunnel: microseconds from the request's head until the upstream's answer began.
pub const UPSTREAM_TIME: HeaderName = HeaderName::from_static("kas-upstream-time");
/// Names one request in the caller's answer and in both ends' logs.
pub const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// What all names of ours begin with, [`REQUEST_ID`] apart.
pub const PREFIX: &str = "kas-";
