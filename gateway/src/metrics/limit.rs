//! The limits of the configuration, as a metric.

use std::{error::Error, io};

use prometheus_client::{metrics::counter::Counter, registry::Registry};
use telemetry::RegistryExt as _;

use crate::io::is_stall;

/// A limit of the configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// `max_connections` of a listener: a connection waits.
    Connections,
    /// `max_connections` of a listener: a connection replaces one whose client has shown no valid credential.
    Strangers,
    /// The limit of open files: a connection could not be accepted.
    OpenFiles,
    /// `handshake_timeout` of a listener.
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
    Idle,
    /// 80 % of `max_connections` of callers: an idle connection was closed before `idle_timeout`.
    IdleConnections,
    /// `write_stall_timeout` of callers.
    WriteStall,
    /// `min_body_rate`.
    BodyRate,
    /// `write_stall_timeout` of tunnels.
    TunnelWriteStall,
    /// `max_bytes_in_flight`.
    BytesInFlight,
    /// `max_form_bytes`.
    Form,
    /// Frames of HTTP/2 without effect.
    Overhead,
}

impl Limit {
    /// All limits, in the order of their counters.
    pub const ALL: [Self; 22] = [
        Self::Connections,
        Self::Strangers,
        Self::OpenFiles,
        Self::Handshake,
        Self::TunnelsPerAgent,
        Self::ConnectionsPerToken,
        Self::ConnectionsPerAddress,
        Self::UnknownTokensPerAddress,
        Self::ConnectionRate,
        Self::UnknownCredentialsPerAddress,
        Self::RequestsPerCaller,
        Self::RequestsPerAgent,
        Self::Head,
        Self::HeadTimeout,
        Self::Idle,
        Self::IdleConnections,
        Self::WriteStall,
        Self::BodyRate,
        Self::TunnelWriteStall,
        Self::BytesInFlight,
        Self::Form,
        Self::Overhead,
    ];

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

    /// Returns the value of the label.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Connections => "connections",
            Self::Strangers => "unauthenticated-connections",
            Self::OpenFiles => "open-files",
            Self::Handshake => "handshake-timeout",
            Self::TunnelsPerAgent => "tunnels-per-agent",
            Self::ConnectionsPerToken => "connections-per-token",
            Self::ConnectionsPerAddress => "connections-per-address",
            Self::UnknownTokensPerAddress => "unknown-tokens-per-address",
            Self::ConnectionRate => "connection-rate",
            Self::UnknownCredentialsPerAddress => "unknown-credentials-per-address",
            Self::RequestsPerCaller => "requests-per-caller",
            Self::RequestsPerAgent => "requests-per-agent",
            Self::Head => "head",
            Self::HeadTimeout => "head-timeout",
            Self::Idle => "idle-timeout",
            Self::IdleConnections => "idle-connections",
            Self::WriteStall => "write-stall-timeout",
            Self::BodyRate => "body-rate",
            Self::TunnelWriteStall => "tunnel-write-stall-timeout",
            Self::BytesInFlight => "bytes-in-flight",
            Self::Form => "form",
            Self::Overhead => "overhead",
        }
    }
}

/// Registers one counter for each limit. All exist from the start: an alert on a missing counter never fires.
pub(super) fn register(registry: &mut Registry) -> [Counter; Limit::ALL.len()] {
    let labels = Limit::ALL.map(Limit::as_str);
    let counters = registry.counters("kas_limits", "Times that a limit was reached", "limit", labels);
    labels.map(|limit| counters.get(limit))
}
