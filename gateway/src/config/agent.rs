//! Sections of `agent`: the listener for tunnels, and the tunnels.

use std::{collections::BTreeSet, net::SocketAddr, path::PathBuf, time::Duration};

use kas_core::{
    config::{AgentProtocol, ConnectionAge},
    gitlab_key::GitLabKey,
};
use kas_listen::{
    addresses::{AddressRules, ProxyProtocol},
    listen_address::{self, ListenNetwork},
};
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, de::Error as _};
use serde_saphyr::Spanned;
use settings::{
    AnyDuration, Network, Timeout, Within,
    patterns::{NETWORK, SOCKET_ADDRESS},
};

/// Section `agent.listen`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
#[schemars(extend("dependencies" = {"certificate_file": ["key_file"], "key_file": ["certificate_file"]}))]
pub struct AgentListen {
    /// The kind of the address.
    pub network: ListenNetwork,
    /// The address for agents.
    #[serde(deserialize_with = "listen_address::address")]
    #[schemars(with = "String", regex(pattern = SOCKET_ADDRESS))]
    pub address: SocketAddr,
    /// False excludes the protocols that need a WebSocket: only GitLab's agentk with `grpcs://` can connect.
    pub websocket: bool,
    /// The protocols of agents: `kas-tunnel.v1` is that of this agentk, `ws-tunnel` and `h2` are those of GitLab's agentk.
    #[serde(deserialize_with = "protocols")]
    #[schemars(length(min = 1))]
    pub protocols: BTreeSet<AgentProtocol>,
    /// The certificate chain (PEM). With it and `key_file` the listener uses TLS.
    #[schemars(with = "Option<PathBuf>")]
    pub certificate_file: Option<Spanned<PathBuf>>,
    /// The private key (PEM).
    #[schemars(with = "Option<PathBuf>")]
    pub key_file: Option<Spanned<PathBuf>>,
    /// The addresses of proxies whose `X-Forwarded-For` and PROXY header are trusted.
    #[schemars(with = "Vec<String>", inner(regex(pattern = NETWORK)))]
    pub trusted_proxies: Vec<Network>,
    /// The header of a proxy with which each connection begins.
    pub proxy_protocol: ProxyProtocol,
    /// The networks of agents. An empty list allows every address.
    #[schemars(with = "Vec<String>", inner(regex(pattern = NETWORK)))]
    pub allowed_networks: Vec<Network>,
    /// The age, ±5 %, at which an agent is asked to replace a tunnel.
    pub max_connection_age: ConnectionAge,
    /// Open connections of agents.
    #[serde(with = "Within::<1, 1_000_000>")]
    pub max_connections: usize,
    /// Tunnels of one agent to this replica, over all of its pods.
    #[serde(with = "Within::<1, 1_000_000>")]
    pub max_tunnels_per_agent: usize,
    /// Tunnels that may be opened with one token per minute, over all replicas.
    #[serde(with = "Within::<1, 1_000_000>")]
    pub connections_per_token_per_minute: u32,
    /// Connections of one address per minute, over all replicas.
    #[serde(with = "Within::<1, 1_000_000>")]
    pub connections_per_address_per_minute: u32,
    /// Connections of one address with unknown tokens per minute, over all replicas.
    #[serde(with = "Within::<1, 1_000_000>")]
    pub unknown_tokens_per_address_per_minute: u32,
    /// Tunnels that may be opened to this replica per second.
    #[serde(with = "Within::<1, 1_000_000>")]
    pub connections_per_second: u32,
    /// The time for each step of opening a tunnel: TLS, the request, the first round trip.
    #[serde(with = "Timeout")]
    pub handshake_timeout: Duration,
    /// The time for which an agent may leave written bytes unread. After it the tunnel is closed.
    #[serde(with = "Timeout")]
    pub write_stall_timeout: Duration,
    /// Ignored: see `agent.kubernetes_api.listen.listen_grace_period`.
    pub listen_grace_period: GitLabKey,
}

/// Section `agent.tunnel`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct AgentTunnelConfig {
    /// The time that a request waits for an agent without a tunnel.
    #[serde(with = "AnyDuration")]
    pub reconnect_wait: Duration,
    /// Requests in flight in one tunnel. Further ones wait.
    #[serde(with = "Within::<1, 1_000_000>")]
    pub max_concurrent_streams: u32,
    /// Bytes of one response or request that may be in flight or unread.
    #[serde(with = "Within::<65_535, { 1 << 30 }>")]
    pub stream_window: u32,
    /// Bytes of the headers of one request or response.
    #[serde(with = "Within::<16_384, { 1 << 20 }>")]
    pub max_header_bytes: u32,
    /// The time without a frame after which a PING is sent.
    #[serde(with = "Timeout")]
    pub keepalive_interval: Duration,
    /// The time for the response to a PING.
    #[serde(with = "Timeout")]
    pub keepalive_timeout: Duration,
    /// The percentage above the mean number of tunnels at which a replica moves some to others. 0 disables it.
    #[serde(with = "Within::<0, 1000>")]
    pub rebalance_threshold: u32,
    /// Tunnels that all replicas together move per second.
    #[serde(with = "Within::<1, 10_000>")]
    pub rebalance_rate: u32,
}

impl AgentListen {
    /// Returns the protocols that `websocket` allows.
    pub fn enabled_protocols(&self) -> BTreeSet<AgentProtocol> {
        let allowed = |protocol: &&AgentProtocol| self.websocket || **protocol == AgentProtocol::Http2;
        self.protocols.iter().filter(allowed).copied().collect()
    }

    /// Returns the rules of the listener about addresses.
    pub fn addresses(&self) -> AddressRules {
        AddressRules::new(&self.trusted_proxies, self.proxy_protocol, &self.allowed_networks)
    }
}

fn protocols<'de, D: Deserializer<'de>>(deserializer: D) -> Result<BTreeSet<AgentProtocol>, D::Error> {
    let protocols = BTreeSet::deserialize(deserializer)?;
    if protocols.is_empty() {
        Err(D::Error::custom("no agent could connect without a protocol"))
    } else {
        Ok(protocols)
    }
}

impl Default for AgentListen {
    fn default() -> Self {
        Self {
            network: ListenNetwork::Tcp,
            address: SocketAddr::from(([127, 0, 0, 1], 8150)),
            websocket: true,
            protocols: AgentProtocol::ALL.into(),
            certificate_file: None,
            key_file: None,
            trusted_proxies: Vec::new(),
            proxy_protocol: ProxyProtocol::Off,
            allowed_networks: Vec::new(),
            max_connection_age: ConnectionAge::Auto,
            max_connections: 20_000,
            max_tunnels_per_agent: 100,
            connections_per_token_per_minute: 100,
            connections_per_address_per_minute: 6000,
            unknown_tokens_per_address_per_minute: 60,
            connections_per_second: 1000,
            handshake_timeout: Duration::from_secs(10),
            write_stall_timeout: Duration::from_secs(30),
            listen_grace_period: GitLabKey::default(),
        }
    }
}

impl Default for AgentTunnelConfig {
    fn default() -> Self {
        let settings = tunnel::TunnelConfig::default();
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
