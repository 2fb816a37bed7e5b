//! Section `agent.kubernetes_api`: the listener for callers, and what they may take.

use std::{net::SocketAddr, path::PathBuf, time::Duration};

use serde::Deserialize;
use serde_saphyr::Spanned;

use super::{
    Network,
    bounds::{timeout, within},
};
use crate::{cors::Origin, headers::ExtraHeader};

/// Section `agent.kubernetes_api`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct KubernetesApi {
    /// The listener for callers.
    pub listen: PublicListen,
    /// Web pages that may use this listener: exact origins, as browsers send them.
    pub allowed_origins: Vec<Origin>,
    /// Headers of clusters that callers may see besides those that are known to be harmless.
    pub extra_allowed_response_headers: Vec<ExtraHeader>,
    /// What one caller, one agent and all together may take.
    pub limits: Limits,
}

/// Section `agent.kubernetes_api.listen`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PublicListen {
    /// Where callers connect.
    pub address: SocketAddr,
    /// Certificate chain, PEM; with `key_file`, the listener speaks TLS.
    pub certificate_file: Option<Spanned<PathBuf>>,
    /// Private key, PEM.
    pub key_file: Option<Spanned<PathBuf>>,
    /// Addresses of proxies whose `X-Forwarded-For` is believed.
    pub trusted_proxies: Vec<Network>,
    /// How long connections are still accepted after SIGTERM, so that load balancers notice.
    #[serde(with = "proto::duration")]
    pub listen_grace_period: Duration,
    /// How long requests in flight may take after that.
    #[serde(with = "proto::duration")]
    pub shutdown_grace_period: Duration,
}

/// Section `agent.kubernetes_api.limits`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Limits {
    /// Open connections of callers.
    #[serde(deserialize_with = "within::<_, _, 1, 1_000_000>")]
    pub max_connections: usize,
    /// Requests in flight of one caller, counted by each replica on its own: a caller who connects to N replicas may have N
    /// times as many.
    #[serde(deserialize_with = "within::<_, _, 1, 1_000_000>")]
    pub max_requests_per_caller: u32,
    /// Requests in flight to one agent, counted by each replica for its own tunnels, whichever replica took the request: an
    /// agent with tunnels to N replicas may have N times as many.
    #[serde(deserialize_with = "within::<_, _, 1, 1_000_000>")]
    pub max_requests_per_agent: u32,
    /// Header fields of one request.
    #[serde(deserialize_with = "within::<_, _, 1, 10_000>")]
    pub max_headers: usize,
    /// Bytes of one request's head.
    #[serde(deserialize_with = "within::<_, _, 8192, { 1 << 20 }>")]
    pub max_head_bytes: usize,
    /// How long a caller may take to send a request's head on HTTP/1.1, including the wait for its first byte.
    #[serde(deserialize_with = "timeout")]
    pub head_timeout: Duration,
    /// How long a connection may take until its TLS handshake is done, or to say its first byte.
    #[serde(deserialize_with = "timeout")]
    pub handshake_timeout: Duration,
    /// How long a connection may have no request; it is closed before half as long again.
    #[serde(deserialize_with = "timeout")]
    pub idle_timeout: Duration,
    /// How long a caller may stop reading its answer, or sending its request's body.
    #[serde(deserialize_with = "timeout")]
    pub write_stall_timeout: Duration,
    /// Bytes of answers that are here and that their callers have not taken.
    #[serde(deserialize_with = "within::<_, _, { 1 << 20 }, { 1 << 40 }>")]
    pub max_bytes_in_flight: u64,
    /// Bytes of a form that has to be read whole, of a caller who sees only certain series.
    #[serde(deserialize_with = "within::<_, _, 1024, { 64 << 20 }>")]
    pub max_form_bytes: usize,
}

impl Default for PublicListen {
    fn default() -> Self {
        Self {
            address: SocketAddr::from(([0, 0, 0, 0], 8154)),
            certificate_file: None,
            key_file: None,
            trusted_proxies: Vec::new(),
            listen_grace_period: Duration::from_secs(5),
            shutdown_grace_period: Duration::from_secs(3600),
        }
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_connections: 10_000,
            max_requests_per_caller: 2_000,
            max_requests_per_agent: 4_000,
            max_headers: 100,
            max_head_bytes: 64 << 10,
            head_timeout: Duration::from_secs(60),
            handshake_timeout: Duration::from_secs(10),
            idle_timeout: Duration::from_secs(60),
            write_stall_timeout: Duration::from_secs(300),
            max_bytes_in_flight: 1 << 30,
            max_form_bytes: 1 << 20,
        }
    }
}
