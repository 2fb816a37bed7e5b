//! The HTTP/2 settings of tunnels, and of connections between replicas.

use std::time::Duration;

use super::Config;

/// The requests in flight on one connection to another replica.
const PEER_STREAMS: u32 = 100_000;
/// The bytes that replicas add to the largest head of a caller.
const PEER_HEADER_BYTES: u32 = 1024;
/// A connection to another replica is closed after five seconds of silence, with the requests that wait on it.
const PEER_KEEPALIVE: tunnel::KeepaliveConfig =
    tunnel::KeepaliveConfig { interval: Duration::from_secs(2), timeout: Duration::from_secs(3) };

impl Config {
    /// Returns the HTTP/2 settings of tunnels.
    pub fn tunnel_settings(&self) -> tunnel::TunnelConfig {
        let config = &self.agent.tunnel;
        tunnel::TunnelConfig {
            stream_window: config.stream_window,
            max_concurrent_streams: config.max_concurrent_streams,
            max_header_bytes: config.max_header_bytes,
            keepalive: tunnel::KeepaliveConfig {
                interval: config.keepalive_interval,
                timeout: config.keepalive_timeout,
            },
            ..tunnel::TunnelConfig::default()
        }
    }

    /// Returns the HTTP/2 settings of connections between replicas.
    ///
    /// Such a connection carries the requests of many tunnels, and a dead replica must be detected before its callers time out.
    pub fn peer_settings(&self) -> tunnel::TunnelConfig {
        let (settings, limits) = (self.tunnel_settings(), &self.agent.kubernetes_api.limits);
        // The owner decides whether a head is too large for its agent.
        let accepted =
            u32::try_from(limits.max_head_bytes + 32 * limits.max_headers).unwrap_or(u32::MAX >> 1);
        tunnel::TunnelConfig {
            max_concurrent_streams: PEER_STREAMS,
            max_header_bytes: settings.max_header_bytes.max(accepted) + PEER_HEADER_BYTES,
            keepalive: PEER_KEEPALIVE,
            ..settings
        }
    }
}
