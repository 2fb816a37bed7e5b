//! The configuration file of kas: plain data with defaults.
//!
//! The keys are those of GitLab's kas where the concept exists. Paths are relative to the configuration file. Every key is
//! explained in `deploy/kas.example.yaml`, which a test reads.

mod agent;
mod api;
mod bounds;
mod configuration;
mod gitaly;
mod gitlab;
mod kubernetes_api;
mod network;
mod observability;
mod oidc;
mod private_api;
mod redis;
mod schema;
mod source;

use std::{
    net::{IpAddr, SocketAddr},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use proto::yaml::{KeyLocations, parse};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_saphyr::Spanned;

use self::bounds::Timeout;
use crate::cors::Origin;

pub use self::agent::{AgentListen, AgentTunnelConfig, ConnectionAge};
pub use self::api::{ApiConfig, ApiListen};
pub use self::configuration::{AgentConfigurationConfig, RepositoryConfig};
pub use self::gitaly::{GitalyConfig, GlobalRateLimit, ServerRateLimit};
pub use self::gitlab::{ApiRateLimit, GitLabConfig};
pub use self::kubernetes_api::{CallerLimits, KubernetesApiConfig, PublicListen};
pub use self::network::{Network, ProxyProtocol};
pub use self::observability::{
    AuditConfig, AuditSink, LogLevel, LoggingConfig, LoggingFormat, ObservabilityConfig, ObservabilityListen,
    TracingConfig,
};
pub use self::oidc::{IssuerConfig, OidcConfig, SigningAlgorithm};
pub use self::private_api::{ListenNetwork, PrivateApiConfig, PrivateListen};
pub use self::redis::{RedisCluster, RedisConfig, RedisSentinel, RedisServerConfig, RedisTls};
pub use self::schema::json_schema;
pub use self::source::ConfigError;
pub(crate) use self::source::{read_text, unreadable};
use crate::repository::RepositorySettings;

/// The configuration of kas, kas.yaml.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// The listeners for agents and callers, and the tunnels.
    #[serde(default)]
    pub agent: AgentConfig,
    /// Probes, metrics, logs, traces.
    #[serde(default)]
    pub observability: ObservabilityConfig,
    /// The directory of several replicas. Without this section there is one replica.
    #[serde(default)]
    pub redis: Option<RedisConfig>,
    /// The listener for other replicas. Without this section there is one replica.
    pub private_api: Option<PrivateApiConfig>,
    /// The internal API. Without this section there is none.
    pub api: Option<ApiConfig>,
    /// The limits of calls to the Git servers of GitLab.
    #[serde(default)]
    pub gitaly: GitalyConfig,
    /// The GitLab that knows the agents. Without this section, `identity` is required.
    pub gitlab: Option<GitLabConfig>,
    /// The agents and callers. Without this section, `gitlab` is required.
    pub identity: Option<IdentityConfig>,
    /// The environments. Without this section there are none.
    pub environments: Option<EnvironmentsConfig>,
    /// The kill switch.
    #[serde(default)]
    pub disabled: DisabledConfig,
    /// The issuers of tokens that callers may use.
    #[serde(default)]
    pub oidc: OidcConfig,
    /// The positions of the keys, for errors.
    #[serde(skip)]
    keys: KeyLocations,
}

/// Section `agent`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AgentConfig {
    /// The listener for tunnels.
    #[serde(default)]
    pub listen: AgentListen,
    /// The listener for callers.
    #[serde(default)]
    pub kubernetes_api: KubernetesApiConfig,
    /// The tunnels.
    #[serde(default)]
    pub tunnel: AgentTunnelConfig,
    /// The configuration files of agents.
    #[serde(default)]
    pub configuration: AgentConfigurationConfig,
    /// The time for which an answer of GitLab about an agent token is used.
    #[serde(default = "info_cache_ttl", with = "Timeout")]
    pub info_cache_ttl: Duration,
    /// The time for which a token is unknown after GitLab did not know it.
    #[serde(default = "info_cache_error_ttl", with = "Timeout")]
    pub info_cache_error_ttl: Duration,
}

/// Section `identity`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct IdentityConfig {
    /// The identity file. It is read again when it changes.
    #[schemars(with = "PathBuf")]
    pub file: Spanned<PathBuf>,
}

/// Section `environments`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct EnvironmentsConfig {
    /// The file with the environments. It is read again when it changes.
    #[schemars(with = "PathBuf")]
    pub file: Spanned<PathBuf>,
}

/// Section `disabled`.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct DisabledConfig {
    /// The file with the rules by which requests are disabled. It is read again when it changes. Without it there are no rules.
    #[schemars(with = "Option<PathBuf>")]
    pub file: Option<Spanned<PathBuf>>,
}

/// The requests in flight on one connection to another replica.
const PEER_STREAMS: u32 = 100_000;
/// The bytes that replicas add to the largest head of a caller.
const PEER_HEADER_BYTES: u32 = 1024;
/// A connection to another replica is closed after five seconds of silence, with the requests that wait on it.
const PEER_KEEPALIVE: tunnel::KeepaliveConfig =
    tunnel::KeepaliveConfig { interval: Duration::from_secs(2), timeout: Duration::from_secs(3) };

impl Default for AgentConfig {
    fn default() -> Self {
        Self {
            listen: AgentListen::default(),
            kubernetes_api: KubernetesApiConfig::default(),
            tunnel: AgentTunnelConfig::default(),
            configuration: AgentConfigurationConfig::default(),
            info_cache_ttl: info_cache_ttl(),
            info_cache_error_ttl: info_cache_error_ttl(),
        }
    }
}

fn info_cache_ttl() -> Duration {
    Duration::from_secs(300)
}

fn info_cache_error_ttl() -> Duration {
    Duration::from_secs(60)
}

impl Config {
    /// Reads a configuration file and makes its paths absolute.
    pub fn read(file: &Path) -> Result<Self, ConfigError> {
        let text = read_text(file)?;
        let mut config: Self = parse(file, &text)?;
        config.keys = KeyLocations::parse(&text);
        config.check_sources(file)?;
        config.check_proxies(file)?;
        let directory = file.parent().unwrap_or_else(|| Path::new(""));
        let (agent, tracing) = (&mut config.agent, &mut config.observability.tracing);
        for path in [
            &mut agent.listen.certificate_file,
            &mut agent.listen.key_file,
            &mut agent.kubernetes_api.listen.certificate_file,
            &mut agent.kubernetes_api.listen.key_file,
            &mut tracing.otlp_ca_certificate_file,
            &mut tracing.otlp_token_secret_file,
            &mut config.disabled.file,
            &mut config.observability.audit.file,
        ]
        .into_iter()
        .flatten()
        .chain(config.identity.as_mut().map(|identity| &mut identity.file))
        .chain(config.gitlab.iter_mut().flat_map(GitLabConfig::paths))
        .chain(config.environments.as_mut().map(|section| &mut section.file))
        .chain(config.redis.iter_mut().flat_map(RedisConfig::paths))
        {
            path.value = directory.join(&path.value);
        }
        if let Some(PrivateApiConfig { listen }) = &mut config.private_api {
            for path in [
                &mut listen.authentication_secret_file,
                &mut listen.certificate_file,
                &mut listen.key_file,
                &mut listen.ca_certificate_file,
            ]
            .into_iter()
            .flatten()
            {
                path.value = directory.join(&path.value);
            }
        }

        let repository = config.agent.configuration.repository.iter_mut();
        let files = repository.flat_map(RepositoryConfig::paths);
        let authorities =
            config.oidc.issuers.iter_mut().filter_map(|issuer| issuer.ca_certificate_file.as_mut());
        for path in config.api.iter_mut().flat_map(ApiConfig::paths).chain(files).chain(authorities) {
            path.value = directory.join(&path.value);
        }

        if let Some(section) = &config.agent.configuration.repository {
            let settings = RepositorySettings::new(file, "agent.configuration.repository", section)?;
            config.agent.configuration.settings = Some(Arc::new(settings));
        }
        Ok(config)
    }

    /// Returns the origins of web pages that may use the listener for callers: GitLab, and the configured ones.
    pub fn allowed_origins(&self) -> Vec<Origin> {
        let gitlab = self.gitlab.as_ref().and_then(|gitlab| Origin::of_url(gitlab.external_url.as_deref()?));
        gitlab.into_iter().chain(self.agent.kubernetes_api.allowed_origins.iter().cloned()).collect()
    }

    /// Returns an error if no section has agents.
    fn check_sources(&self, file: &Path) -> Result<(), ConfigError> {
        match (&self.identity, &self.gitlab) {
            (None, None) => {
                let what = "the key identity is missing: name the file with the agents and callers, or GitLab in the key gitlab";
                Err(self.error(file, "identity", what))
            }
            _ => Ok(()),
        }
    }

    /// Returns an error if a listener expects PROXY headers and has no proxy that may send them.
    fn check_proxies(&self, file: &Path) -> Result<(), ConfigError> {
        let (agent, public) = (&self.agent.listen, &self.agent.kubernetes_api.listen);
        let api =
            self.api.as_ref().map(|api| ("api", api.listen.proxy_protocol, &api.listen.trusted_proxies));
        let listeners = [
            ("agent", agent.proxy_protocol, &agent.trusted_proxies),
            ("agent.kubernetes_api", public.proxy_protocol, &public.trusted_proxies),
        ];
        for (section, protocol, trusted) in listeners.into_iter().chain(api) {
            if protocol != ProxyProtocol::Off && trusted.is_empty() {
                let what = format!(
                    "connections with a PROXY header are accepted from proxies only: set {section}.listen.trusted_proxies"
                );
                return Err(self.error(file, format!("{section}.listen.proxy_protocol"), what));
            }
        }
        Ok(())
    }

    /// Returns an error if two listeners have overlapping addresses.
    pub fn check_addresses(&self, file: &Path) -> Result<(), ConfigError> {
        let mut listeners = vec![
            ("agent.listen.address", self.agent.listen.address),
            ("agent.kubernetes_api.listen.address", self.agent.kubernetes_api.listen.address),
            ("observability.listen.address", self.observability.listen.address),
        ];
        listeners
            .extend(self.private_api.iter().map(|api| ("private_api.listen.address", api.listen.address)));
        listeners.extend(self.api.iter().map(|api| ("api.listen.address", api.listen.address)));
        while let Some((key, address)) = listeners.pop() {
            if let Some((other, _)) = listeners.iter().find(|(_, other)| overlap(*other, address)) {
                let what = format!("{address} is taken by {other}: each listener needs its own address");
                return Err(self.error(file, key, what));
            }
        }
        Ok(())
    }

    /// Returns the positions of the keys.
    pub fn keys(&self) -> &KeyLocations {
        &self.keys
    }

    /// Returns an error about a key, with its position in `file`. The key may be missing there.
    pub fn error(&self, file: &Path, key: impl Into<String>, what: impl Into<String>) -> ConfigError {
        ConfigError::about(file, &self.keys, key, what)
    }

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

/// Returns whether only one of two addresses can be bound. An unspecified address includes every address, and `[::]` also those
/// of IPv4.
fn overlap(one: SocketAddr, other: SocketAddr) -> bool {
    let covers = |one: IpAddr, other: IpAddr| {
        one == other || (one.is_unspecified() && (one.is_ipv6() || other.is_ipv4()))
    };
    one.port() != 0
        && one.port() == other.port()
        && (covers(one.ip(), other.ip()) || covers(other.ip(), one.ip()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(text: &str) -> String {
        parse::<Config>(Path::new("kas.yaml"), text).unwrap_err().to_string()
    }

    #[test]
    fn identity_or_gitlab_is_the_only_required_key() {
        let config: Config = parse(Path::new("kas.yaml"), "identity: {file: identity.yaml}").unwrap();
        assert_eq!(config.agent.listen.address.port(), 8150);
        assert_eq!(config.agent.kubernetes_api.listen.address.port(), 8154);
        assert_eq!(config.observability.listen.address.port(), 8151);
        let gitlab = "gitlab: {address: 'https://gitlab.example.com', authentication_secret_file: s}";
        let config: Config = parse(Path::new("kas.yaml"), gitlab).unwrap();
        assert!(config.check_sources(Path::new("kas.yaml")).is_ok());
        let config: Config = parse(Path::new("kas.yaml"), "agent: {}").unwrap();
        let error = config.check_sources(Path::new("kas.yaml")).unwrap_err().to_string();
        assert!(error.starts_with("kas.yaml: identity: the key identity is missing"), "{error}");
    }

    #[test]
    fn error_has_file_line_key_and_reason() {
        assert_eq!(
            error("identity: {file: i}\nagent:\n  listen:\n    adress: x\n"),
            "kas.yaml:4:5: agent.listen.adress: unknown field `adress`, expected one of address, \
             certificate_file, key_file, trusted_proxies, proxy_protocol, allowed_networks, max_connection_age, \
             max_connections, max_tunnels_per_agent, connections_per_token_per_minute, \
             connections_per_address_per_minute, unknown_tokens_per_address_per_minute, connections_per_second, handshake_timeout, \
             write_stall_timeout"
        );
        assert_eq!(
            error("identity: {file: i}\nagent:\n  listen:\n    address: here\n"),
            "kas.yaml:4:14: agent.listen.address: invalid socket address syntax"
        );
        let age = error("identity: {file: i}\nagent: {listen: {max_connection_age: automatic}}\n");
        assert!(age.starts_with("kas.yaml:2:") && age.ends_with(", or auto"), "{age}");
        let duration = error("identity: {file: i}\nagent: {tunnel: {reconnect_wait: soon}}\n");
        assert!(duration.starts_with("kas.yaml:2:"), "{duration}");
        assert!(duration.contains("agent.tunnel.reconnect_wait: \"soon\" is not a duration"), "{duration}");
    }

    #[test]
    fn proxy_protocol_without_proxies_is_refused_with_its_key() {
        let check = |text: &str| {
            let text = format!("identity: {{file: i}}\n{text}");
            let mut config: Config = parse(Path::new("kas.yaml"), &text).unwrap();
            config.keys = KeyLocations::parse(&text);
            config.check_proxies(Path::new("kas.yaml")).map_err(|error| error.to_string())
        };
        for (section, place) in [
            ("agent: {listen: {proxy_protocol: v2}}", "2:18: agent.listen"),
            ("agent: {kubernetes_api: {listen: {proxy_protocol: v2}}}", "2:35: agent.kubernetes_api.listen"),
            ("api: {listen: {authentication_secret_file: s, proxy_protocol: v2}}", "2:47: api.listen"),
        ] {
            let error = check(section).unwrap_err();
            assert!(error.starts_with(&format!("kas.yaml:{place}.proxy_protocol: ")), "{error}");
            assert!(error.ends_with(".listen.trusted_proxies"), "{error}");
            let trusted = section.replace("v2", "v2, trusted_proxies: [10.0.0.0/8]");
            assert_eq!(check(&trusted), Ok(()));
            assert_eq!(check(&section.replace("v2", "off")), Ok(()));
        }
        let error = error("identity: {file: i}\nagent: {listen: {proxy_protocol: v1}}\n");
        assert!(error.contains("agent.listen.proxy_protocol: unknown variant `v1`, expected"), "{error}");
    }

    #[test]
    fn address_of_two_listeners_is_refused_with_both_keys() {
        let check = |text: &str| {
            let text = format!("identity: {{file: i}}\n{text}");
            let mut config: Config = parse(Path::new("kas.yaml"), &text).unwrap();
            config.keys = KeyLocations::parse(&text);
            config.check_addresses(Path::new("kas.yaml")).map_err(|error| error.to_string())
        };
        for taken in ["127.0.0.1:8150", "0.0.0.0:8150", "[::]:8150", "0.0.0.0:8154"] {
            let error = check(&format!("observability: {{listen: {{address: '{taken}'}}}}\n")).unwrap_err();
            assert!(error.starts_with("kas.yaml:2:26: observability.listen.address: "), "{error}");
            assert!(error.contains(" is taken by agent."), "{error}");
        }
        for free in ["127.0.0.2:8150", "127.0.0.1:8160", "[::1]:8150", "127.0.0.1:0"] {
            assert_eq!(
                check(&format!("observability: {{listen: {{address: '{free}'}}}}\n")),
                Ok(()),
                "{free}"
            );
        }
        let any = "{listen: {address: '127.0.0.1:0'}}";
        assert_eq!(check(&format!("agent: {any}\nobservability: {any}\n")), Ok(()));
    }

    /// The example has every key with its default: it equals an empty configuration.
    #[test]
    fn example_explains_every_key() {
        let file = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/kas.example.yaml"));
        let mut example = Config::read(file).unwrap();
        let mut default: Config = parse(file, "identity: {file: identity.example.yaml}").unwrap();
        default.identity = example.identity.clone();
        default.environments = example.environments.clone();
        default.keys = example.keys.clone();
        let listen = &mut example.agent.kubernetes_api.listen;
        assert!(listen.certificate_file.take().is_some() && listen.key_file.take().is_some());
        let listen = &mut example.agent.listen;
        assert!(listen.certificate_file.take().is_some() && listen.key_file.take().is_some());
        assert_eq!(format!("{example:?}"), format!("{default:?}"));

        let text = whole(&std::fs::read_to_string(file).unwrap());
        let api = parse::<Config>(file, &text).unwrap().api.unwrap().listen;
        assert_eq!(api.address, api::default_address());
        let mut listen = parse::<Config>(file, &text).unwrap().private_api.unwrap().listen;
        for path in [
            &mut listen.authentication_secret_file,
            &mut listen.certificate_file,
            &mut listen.key_file,
            &mut listen.ca_certificate_file,
        ] {
            assert!(path.take().is_some());
        }
        assert_eq!(format!("{listen:?}"), format!("{:?}", PrivateListen::default()));
        let sources = [
            include_str!("config.rs"),
            include_str!("config/agent.rs"),
            include_str!("config/configuration.rs"),
            include_str!("config/kubernetes_api.rs"),
            include_str!("config/observability.rs"),
            include_str!("config/redis.rs"),
            include_str!("config/private_api.rs"),
            include_str!("config/api.rs"),
            include_str!("config/gitlab.rs"),
            include_str!("config/oidc.rs"),
            include_str!("config/gitaly.rs"),
        ];
        let keys = sources
            .iter()
            .flat_map(|source| source.lines())
            .filter_map(|line| line.trim().strip_prefix("pub ")?.split_once(": "))
            .map(|(k, _)| k);
        let keys: Vec<&str> =
            keys.filter(|key| key.bytes().all(|b| b.is_ascii_lowercase() || b == b'_')).collect();
        assert!(keys.len() > 15, "the fields of the configuration: {keys:?}");
        for key in keys {
            assert!(text.contains(&format!("{key}:")), "{key} is not in the example");
        }
    }

    #[test]
    fn reference_has_every_key_with_its_default() {
        let example = include_str!("../../deploy/kas.example.yaml");
        let reference = include_str!("../../docs/configuration.md");
        let example: serde_json::Value = parse(Path::new("kas.example.yaml"), &whole(example)).unwrap();
        let mut keys = Vec::new();
        leaves(&example, "", &mut keys);
        assert!(keys.len() > 30, "{keys:?}");
        for (key, value) in keys {
            let row = reference.lines().find(|line| line.starts_with(&format!("| `{key}` |")));
            let row = row.unwrap_or_else(|| panic!("docs/configuration.md has no row for {key}"));
            let file = ["certificate_file", "key_file", "secret_file"].iter().any(|end| key.ends_with(end));
            let default = if file { "none".to_owned() } else { format!("`{value}`") };
            assert!(row.contains(&format!("| {default}")), "{key} is {default} in the example: {row}");
        }
    }

    /// Returns the example with the optional sections, which are comments there.
    pub(super) fn whole(example: &str) -> String {
        let mut section = false;
        let lines = example.lines().map(|line| {
            section = !line.is_empty()
                && (section || ["# private_api:", "# api:", "# gitlab:", "# disabled:"].contains(&line));
            if section { line.trim_start_matches('#').strip_prefix(' ').unwrap() } else { line }
        });
        lines.collect::<Vec<_>>().join("\n")
    }

    fn leaves(value: &serde_json::Value, path: &str, into: &mut Vec<(String, String)>) {
        let Some(map) = value.as_object() else {
            let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            return into.push((path.to_owned(), text));
        };
        for (key, value) in map {
            let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
            leaves(value, &path, into);
        }
    }

    #[test]
    fn example_identity_is_valid() {
        let file = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/identity.example.yaml"));
        assert_eq!(crate::identity::Identity::read(file).unwrap().counts(), (1, 4));
    }

    #[test]
    fn example_environments_are_valid() {
        let file = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/environments.example.yaml"));
        let environments = crate::environments::EnvironmentFile::read(file).unwrap();
        assert_eq!(environments.select(&Default::default()).len(), 1);
    }

    #[test]
    fn missing_file_is_reported() {
        let error = Config::read(Path::new("/nowhere/kas.yaml")).unwrap_err().to_string();
        assert_eq!(error, "/nowhere/kas.yaml: the file does not exist");
    }
}
