//! Section `agent`: the listener for tunnels, and the tunnels.

use std::{net::SocketAddr, path::PathBuf, time::Duration};

use serde::Deserialize;
use serde_saphyr::Spanned;

use super::bounds::{timeout, within};

/// Section `agent.listen`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct AgentListen {
    /// Where agents dial to.
    pub address: SocketAddr,
    /// Certificate chain, PEM; with `key_file`, the listener speaks TLS.
    pub certificate_file: Option<Spanned<PathBuf>>,
    /// Private key, PEM.
    pub key_file: Option<Spanned<PathBuf>>,
    /// After this, give or take 5 %, an agent is asked to open another tunnel and leave this one.
    #[serde(deserialize_with = "timeout")]
    pub max_connection_age: Duration,
    /// Open connections of agents.
    #[serde(deserialize_with = "within::<_, _, 1, 1_000_000>")]
    pub max_connections: usize,
    /// Tunnels that one agent may have on this replica, over all its pods.
    #[serde(deserialize_with = "within::<_, _, 1, 1_000_000>")]
    pub max_tunnels_per_agent: usize,
    /// Tunnels that the holders of one token may open in a minute, over all replicas.
    #[serde(deserialize_with = "within::<_, _, 1, 1_000_000>")]
    pub connections_per_token_per_minute: u32,
    /// Tunnels that may be opened here in a second.
    #[serde(deserialize_with = "within::<_, _, 1, 1_000_000>")]
    pub connections_per_second: u32,
    /// How long each step of opening a tunnel may take: TLS, the request, the first round trip.
    #[serde(deserialize_with = "timeout")]
    pub handshake_timeout: Duration,
    /// How long an agent may leave bytes unread that wait to be written; a tunnel that takes longer is closed.
    #[serde(deserialize_with = "timeout")]
    pub write_stall_timeout: Duration,
}

/// Section `agent.tunnel`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TunnelConfig {
    /// How long a request waits for a tunnel of an agent that has none.
    #[serde(with = "proto::duration")]
    pub reconnect_wait: Duration,
    /// Most requests in flight in one tunnel; further ones wait.
    #[serde(deserialize_with = "within::<_, _, 1, 1_000_000>")]
    pub max_concurrent_streams: u32,
    /// Bytes of one response or request that may be under way or unread.
    #[serde(deserialize_with = "within::<_, _, 65_535, { 1 << 30 }>")]
    pub stream_window: u32,
    /// Most bytes of headers in one request or response.
    #[serde(deserialize_with = "within::<_, _, 16_384, { 1 << 20 }>")]
    pub max_header_bytes: u32,
    /// Silence after which the other end is asked for a sign of life.
    #[serde(deserialize_with = "timeout")]
    pub keepalive_interval: Duration,
    /// How long that may take.
    #[serde(deserialize_with = "timeout")]
    pub keepalive_timeout: Duration,
    /// How many tunnels more than the mean a replica has before it gives some away, in percent; 0 is never.
    #[serde(deserialize_with = "within::<_, _, 0, 1000>")]
    pub rebalance_threshold: u32,
    /// How many tunnels all replicas together move in a second.
    #[serde(deserialize_with = "within::<_, _, 1, 10_000>")]
    pub rebalance_rate: u32,
}

impl Default for AgentListen {
    fn default() -> Self {
        Self {
            address: SocketAddr::from(([127, 0, 0, 1], 8150)),
            certificate_file: None,
            key_file: None,
            max_connection_age: Duration::from_secs(7200),
            max_connections: 20_000,
            max_tunnels_per_agent: 100,
            connections_per_token_per_minute: 100,
            connections_per_second: 1000,
            handshake_timeout: Duration::from_secs(10),
            write_stall_timeout: Duration::from_secs(30),
        }
    }
}

impl Default for TunnelConfig {
    fn default() -> Self {
        let settings = tunnel::Settings::default();
        Self {
            reconnect_wait: Duration::from_secs(2),
            max_concurrent_streams: settings.max_concurrent_streams,
            stream_window: settings.stream_window,
            max_header_bytes: settings.max_header_bytes,
            keepalive_interval: settings.keepalive.interval,
            keepalive_timeout: settings.keepalive.timeout,
            rebalance_threshold: 20,
            rebalance_rate: 10,
        }
    }
}
