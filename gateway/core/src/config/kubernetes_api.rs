//! Section `agent.kubernetes_api`: the listener for callers, and the limits of callers.

use std::{net::SocketAddr, path::PathBuf, time::Duration};

use access::{DocsUrl, UrlPathPrefix};
use kas_listen::{
    addresses::{AddressRules, ProxyProtocol},
    listen_address::{self, ListenNetwork},
};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_saphyr::Spanned;
use settings::{
    AnyDuration, Network, Timeout, Within,
    patterns::{HTTP_URL, NETWORK, SOCKET_ADDRESS},
};

use crate::{cors::Origin, gitlab_key::GitLabKey, headers::ExtraHeader, hosts::HostPattern};

/// The pattern of the beginning of paths, for the JSON Schema.
const URL_PATH_PREFIX: &str = "^/([0-9A-Za-z._~-]+/?)*$";

/// The pattern of the host names of agents, for the JSON Schema.
const HOST_PATTERN: &str = r"^\{agent\}(\.[0-9A-Za-z-]+)+$";

/// Section `agent.kubernetes_api`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct KubernetesApiConfig {
    /// The listener for callers.
    pub listen: PublicListen,
    /// The beginning of the paths of GitLab's kas, behind which the credential names the agent.
    #[schemars(with = "String", regex(pattern = URL_PATH_PREFIX))]
    pub url_path_prefix: UrlPathPrefix,
    /// Host names of agents: `{agent}` is the id or name of the agent, as in `{agent}.k8s.example.com`.
    #[schemars(with = "Vec<String>", inner(regex(pattern = HOST_PATTERN)))]
    pub hosts: Vec<HostPattern>,
    /// Web pages that may use this listener: exact origins, as browsers send them.
    #[schemars(with = "Vec<String>", inner(regex(pattern = HTTP_URL)))]
    pub allowed_origins: Vec<Origin>,
    /// Response headers that are allowed in addition to the harmless ones.
    #[schemars(with = "Vec<String>")]
    pub extra_allowed_response_headers: Vec<ExtraHeader>,
    /// The folder of the documents that has `errors.html`, to which errors link. Without it errors have no link.
    #[schemars(with = "Option<String>", regex(pattern = HTTP_URL))]
    pub docs_url: Option<DocsUrl>,
    /// The time for which an answer of GitLab about a CI job or a user is valid.
    #[serde(with = "Timeout")]
    pub allowed_agent_cache_ttl: Duration,
    /// The time for which a refusal of GitLab is valid.
    #[serde(with = "Timeout")]
    pub allowed_agent_cache_error_ttl: Duration,
    /// The time without an answer of GitLab after which the streams of a CI job or a user end.
    #[serde(with = "Timeout")]
    pub stream_recheck_timeout: Duration,
    /// The limits of one caller, of one agent and of all callers together.
    pub limits: CallerLimits,
    /// Ignored: secret of tokens that GitLab's kas gives to web pages.
    pub websocket_token_secret_file: GitLabKey,
}

/// Section `agent.kubernetes_api.listen`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
#[schemars(extend("dependencies" = {"certificate_file": ["key_file"], "key_file": ["certificate_file"]}))]
pub struct PublicListen {
    /// The kind of the address.
    pub network: ListenNetwork,
    /// The address for callers.
    #[serde(deserialize_with = "listen_address::address")]
    #[schemars(with = "String", regex(pattern = SOCKET_ADDRESS))]
    pub address: SocketAddr,
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
    /// The networks of callers. An empty list allows every address.
    #[schemars(with = "Vec<String>", inner(regex(pattern = NETWORK)))]
    pub allowed_networks: Vec<Network>,
    /// The time after SIGTERM in which connections are still accepted, until load balancers have removed the replica.
    #[serde(with = "AnyDuration")]
    pub listen_grace_period: Duration,
    /// The time after that in which requests in flight may finish. Watches end sooner.
    #[serde(with = "AnyDuration")]
    pub shutdown_grace_period: Duration,
}

/// Section `agent.kubernetes_api.limits`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct CallerLimits {
    /// Open connections of callers.
    #[serde(with = "Within::<1, 1_000_000>")]
    pub max_connections: usize,
    /// Requests in flight of one caller on this replica. A caller that connects to N replicas may have N times as many.
    #[serde(with = "Within::<1, 1_000_000>")]
    pub max_requests_per_caller: u32,
    /// Requests in flight to one agent in the tunnels of this replica, including requests of other replicas. An agent with
    /// tunnels to N replicas may have N times as many.
    #[serde(with = "Within::<1, 1_000_000>")]
    pub max_requests_per_agent: u32,
    /// Unknown credentials of one address, per minute.
    #[serde(with = "Within::<1, 1_000_000>")]
    pub unknown_credentials_per_address_per_minute: u32,
    /// Header fields of one request.
    #[serde(with = "Within::<1, 10_000>")]
    pub max_headers: usize,
    /// Bytes of the head of one request.
    #[serde(with = "Within::<8192, { 1 << 20 }>")]
    pub max_head_bytes: usize,
    /// The time that a caller may take for the head of a request on HTTP/1.1, from its first byte.
    #[serde(with = "Timeout")]
    pub head_timeout: Duration,
    /// The time that a connection may take for its TLS handshake, or for its first byte.
    #[serde(with = "Timeout")]
    pub handshake_timeout: Duration,
    /// The time after which a connection without requests is closed, and at most ten seconds more.
    #[serde(with = "Timeout")]
    pub idle_timeout: Duration,
    /// The time for which a caller may stop reading the response, or sending the body of the request.
    #[serde(with = "Timeout")]
    pub write_stall_timeout: Duration,
    /// Bytes of the body of a request that a caller must send per second on average, after the first 30 seconds in which kas
    /// waits for it; 0 for no limit.
    #[serde(with = "Within::<0, { 1 << 20 }>")]
    pub min_body_rate: u32,
    /// Bytes of responses that callers have not read, over all callers.
    #[serde(with = "Within::<{ 1 << 20 }, { 1 << 40 }>")]
    pub max_bytes_in_flight: u64,
    /// Bytes of a form with PromQL, which is read as a whole if the caller may see only certain series.
    #[serde(with = "Within::<1024, { 64 << 20 }>")]
    pub max_form_bytes: usize,
}

impl PublicListen {
    /// Returns the rules of the listener about addresses.
    pub fn addresses(&self) -> AddressRules {
        AddressRules::new(&self.trusted_proxies, self.proxy_protocol, &self.allowed_networks)
    }
}

impl Default for KubernetesApiConfig {
    fn default() -> Self {
        Self {
            listen: PublicListen::default(),
            url_path_prefix: UrlPathPrefix::default(),
            hosts: Vec::new(),
            allowed_origins: Vec::new(),
            extra_allowed_response_headers: Vec::new(),
            docs_url: None,
            allowed_agent_cache_ttl: Duration::from_secs(60),
            allowed_agent_cache_error_ttl: Duration::from_secs(10),
            stream_recheck_timeout: Duration::from_secs(300),
            limits: CallerLimits::default(),
            websocket_token_secret_file: GitLabKey::default(),
        }
    }
}

impl Default for PublicListen {
    fn default() -> Self {
        Self {
            network: ListenNetwork::Tcp,
            address: SocketAddr::from(([0, 0, 0, 0], 8154)),
            certificate_file: None,
            key_file: None,
            trusted_proxies: Vec::new(),
            proxy_protocol: ProxyProtocol::Off,
            allowed_networks: Vec::new(),
            listen_grace_period: Duration::from_secs(5),
            shutdown_grace_period: Duration::from_secs(3600),
        }
    }
}

impl Default for CallerLimits {
    fn default() -> Self {
        Self {
            max_connections: 10_000,
            max_requests_per_caller: 2_000,
            max_requests_per_agent: 4_000,
            unknown_credentials_per_address_per_minute: 60,
            max_headers: 100,
            max_head_bytes: 64 << 10,
            head_timeout: Duration::from_secs(60),
            handshake_timeout: Duration::from_secs(10),
            idle_timeout: Duration::from_secs(70 * 60),
            write_stall_timeout: Duration::from_secs(300),
            min_body_rate: 256,
            max_bytes_in_flight: 1 << 30,
            max_form_bytes: 1 << 20,
        }
    }
}
