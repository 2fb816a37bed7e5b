//! Sections of `agent`: the listener for tunnels, and the tunnels.

use std::{borrow::Cow, collections::BTreeSet, net::SocketAddr, path::PathBuf, time::Duration};

use kas_listen::{
    addresses::{AddressRules, ProxyProtocol},
    listen_address::{self, ListenNetwork},
};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};
use serde_saphyr::Spanned;
use settings::{
    AnyDuration, Network, Timeout, Within,
    patterns::{NETWORK, SOCKET_ADDRESS},
};

use crate::gitlab_key::GitLabKey;

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

/// A protocol of agents.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize, JsonSchema)]
pub enum AgentProtocol {
    /// The protocol of this agentk, in a WebSocket.
    #[serde(rename = "kas-tunnel.v1")]
    KasTunnel,
    /// gRPC in a WebSocket: GitLab's agentk with `wss://`.
    #[serde(rename = "ws-tunnel")]
    WsTunnel,
    /// gRPC without a WebSocket: GitLab's agentk with `grpcs://`.
    #[serde(rename = "h2")]
    Http2,
}

impl AgentProtocol {
    /// All protocols.
    pub const ALL: [Self; 3] = [Self::KasTunnel, Self::WsTunnel, Self::Http2];
}

/// The maximum age of tunnels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectionAge {
    /// Two hours, or less if a load balancer cuts connections earlier.
    Auto,
    /// A configured age.
    Fixed(Duration),
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

impl ConnectionAge {
    /// Returns the maximum age of tunnels before a loss.
    pub fn initial(self) -> Duration {
        match self {
            Self::Auto => Duration::from_secs(2 * 3600),
            Self::Fixed(age) => age,
        }
    }
}

impl From<Duration> for ConnectionAge {
    fn from(age: Duration) -> Self {
        Self::Fixed(age)
    }
}

impl Serialize for ConnectionAge {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Auto => serializer.serialize_str("auto"),
            Self::Fixed(age) => settings::duration::serialize(age, serializer),
        }
    }
}

impl JsonSchema for ConnectionAge {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "ConnectionAge".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let age = Timeout::json_schema(generator);
        json_schema!({"anyOf": [{"const": "auto"}, age]})
    }
}

impl<'de> Deserialize<'de> for ConnectionAge {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        if text == "auto" {
            return Ok(Self::Auto);
        }
        match settings::duration::parse(&text) {
            Ok(Duration::ZERO) => Err(D::Error::custom("the duration must be longer than zero")),
            Ok(age) => Ok(Self::Fixed(age)),
            Err(error) => Err(D::Error::custom(format!("{error}, or auto"))),
        }
    }
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
