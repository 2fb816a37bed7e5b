//! The limits of the configuration, as a metric.

use std::{error::Error, io};

use strum::{EnumCount, VariantNames};

use crate::io::is_stall;

/// A limit of the configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, EnumCount, VariantNames)]
#[strum(serialize_all = "kebab-case")]
pub enum Limit {
    /// `max_connections` of a listener: a connection waits.
    Connections,
    /// `max_connections` of a listener: a connection replaces one whose client has shown no valid credential.
    #[strum(serialize = "unauthenticated-connections")]
    Strangers,
    /// The limit of open files: a connection could not be accepted.
    OpenFiles,
    /// `handshake_timeout` of a listener.
    #[strum(serialize = "handshake-timeout")]
    Handshake,
    /// `max_tunnels_per_agent`.
    TunnelsPerAgent,
    /// `connections_per_token_per_minute`.
    ConnectionsPerToken,
    /// `connections_per_address_per_minute`.
    ConnectionsPerAddress,
    /// `unknown_tokens_per_address_per_minute`.
    UnknownTokensPerAddress,
    /// `connections_per_second`.
    ConnectionRate,
    /// `unknown_credentials_per_address_per_minute`.
    UnknownCredentialsPerAddress,
    /// `max_requests_per_caller`.
    RequestsPerCaller,
    /// `max_requests_per_agent`.
    RequestsPerAgent,
    /// `max_headers` or `max_head_bytes`.
    Head,
    /// `head_timeout`.
    HeadTimeout,
    /// `idle_timeout`.
    #[strum(serialize = "idle-timeout")]
    Idle,
    /// 80 % of `max_connections` of callers: an idle connection was closed before `idle_timeout`.
    IdleConnections,
    /// `write_stall_timeout` of callers.
    #[strum(serialize = "write-stall-timeout")]
    WriteStall,
    /// `min_body_rate`.
    BodyRate,
    /// `write_stall_timeout` of tunnels.
    #[strum(serialize = "tunnel-write-stall-timeout")]
    TunnelWriteStall,
    /// `max_bytes_in_flight`.
    BytesInFlight,
    /// `max_form_bytes`.
    Form,
    /// Frames of HTTP/2 without effect.
    Overhead,
}

impl Limit {
    /// Returns the limit that ended a connection of a caller, if the error is of a limit.
    pub fn from_error(error: &(dyn Error + 'static)) -> Option<Self> {
        if error.downcast_ref().is_some_and(hyper::Error::is_parse_too_large) {
            return Some(Self::Head);
        }
        match error.downcast_ref::<io::Error>() {
            Some(error) if is_stall(error) => Some(Self::WriteStall),
            _ => error.source().and_then(Self::from_error),
        }
    }
}
