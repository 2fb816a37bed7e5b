//! The configuration file of kas: inert data with defaults.
//!
//! Keys are those of GitLab's kas where the concept exists. Paths are relative to the configuration file. Every key
//! is explained in `deploy/kas.example.yaml`, which a test reads.

mod agent;
mod api;
mod bounds;
mod kubernetes_api;
mod network;
mod observability;
mod private_api;
mod redis;
mod source;

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use serde::Deserialize;
use serde_saphyr::Spanned;

pub use self::agent::{AgentListen, TunnelConfig};
pub use self::api::{Api, ApiListen};
pub use self::kubernetes_api::{KubernetesApi, Limits, PublicListen};
pub use self::network::Network;
pub use self::observability::{Format, Level, Logging, ObservabilityConfig, ObservabilityListen, Tracing};
pub use self::private_api::{ListenNetwork, PrivateApi, PrivateListen};
pub use self::redis::{RedisCluster, RedisConfig, RedisSentinel, RedisServer, RedisTls};
pub use self::source::ConfigError;
pub(crate) use self::source::{parse, read, unreadable};

/// The whole file.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Where agents connect, and where callers reach their clusters.
    #[serde(default)]
    pub agent: AgentConfig,
    /// Probes, metrics, logs, traces.
    #[serde(default)]
    pub observability: ObservabilityConfig,
    /// What replicas share; without it there is one replica.
    #[serde(default)]
    pub redis: Option<RedisConfig>,
    /// Other replicas. Without this section there are none.
    pub private_api: Option<PrivateApi>,
    /// Programs that ask who is connected. Without this section they have nobody to ask.
    pub api: Option<Api>,
    /// Who agents and callers are.
    pub identity: IdentityConfig,
}

/// Section `agent`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AgentConfig {
    /// The listener for tunnels.
    #[serde(default)]
    pub listen: AgentListen,
    /// The listener for callers.
    #[serde(default)]
    pub kubernetes_api: KubernetesApi,
    /// The tunnels themselves.
    #[serde(default)]
    pub tunnel: TunnelConfig,
}

/// Section `identity`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct IdentityConfig {
    /// The file that names agents and callers; read again when it changes.
    pub file: Spanned<PathBuf>,
}

/// Requests in flight in one connection to another replica.
const PEER_STREAMS: u32 = 100_000;
/// What replicas add to a head that callers may just send.
const PEER_HEADER_BYTES: u32 = 1024;
/// Within five seconds of silence a connection to another replica is given up, and with it what waits there.
const PEER_KEEPALIVE: tunnel::Keepalive =
    tunnel::Keepalive { interval: Duration::from_secs(2), timeout: Duration::from_secs(3) };

impl Config {
    /// Reads a configuration file and makes its paths absolute.
    pub fn read(file: &Path) -> Result<Self, ConfigError> {
        let mut config: Self = read(file)?;
        let directory = file.parent().unwrap_or_else(|| Path::new(""));
        let (agent, tracing) = (&mut config.agent, &mut config.observability.tracing);
        for path in [
            &mut agent.listen.certificate_file,
            &mut agent.listen.key_file,
            &mut agent.kubernetes_api.listen.certificate_file,
            &mut agent.kubernetes_api.listen.key_file,
            &mut tracing.otlp_ca_certificate_file,
            &mut tracing.otlp_token_secret_file,
        ]
        .into_iter()
        .flatten()
        .chain([&mut config.identity.file])
        .chain(config.redis.iter_mut().flat_map(RedisConfig::paths))
        {
            path.value = directory.join(&path.value);
        }
        if let Some(PrivateApi { listen }) = &mut config.private_api {
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

        for path in config.api.iter_mut().flat_map(Api::paths) {
            path.value = directory.join(&path.value);
        }

        Ok(config)
    }

    /// The tunnel crate's settings.
    pub fn tunnel_settings(&self) -> tunnel::Settings {
        let config = &self.agent.tunnel;
        tunnel::Settings {
            stream_window: config.stream_window,
            max_concurrent_streams: config.max_concurrent_streams,
            max_header_bytes: config.max_header_bytes,
            keepalive: tunnel::Keepalive {
                interval: config.keepalive_interval,
                timeout: config.keepalive_timeout,
            },
            ..tunnel::Settings::default()
        }
    }

    /// The same for connections between replicas. Each carries what many tunnels do, and a replica that has stopped must
    /// be noticed before its callers give up.
    pub fn peer_settings(&self) -> tunnel::Settings {
        let (settings, limits) = (self.tunnel_settings(), &self.agent.kubernetes_api.limits);
        // Whether a head is too large for the agent is for the agent to say.
        let taken = u32::try_from(limits.max_head_bytes + 32 * limits.max_headers).unwrap_or(u32::MAX >> 1);
        tunnel::Settings {
            max_concurrent_streams: PEER_STREAMS,
            max_header_bytes: settings.max_header_bytes.max(taken) + PEER_HEADER_BYTES,
            keepalive: PEER_KEEPALIVE,
            ..settings
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(text: &str) -> String {
        parse::<Config>(Path::new("kas.yaml"), text).unwrap_err().to_string()
    }

    #[test]
    fn only_the_identity_is_required() {
        let config: Config = parse(Path::new("kas.yaml"), "identity: {file: identity.yaml}").unwrap();
        assert_eq!(config.agent.listen.address.port(), 8150);
        assert_eq!(config.agent.kubernetes_api.listen.address.port(), 8154);
        assert_eq!(config.observability.listen.address.port(), 8151);
    }

    #[test]
    fn an_error_names_file_line_key_and_reason() {
        assert_eq!(
            error("identity: {file: i}\nagent:\n  listen:\n    adress: x\n"),
            "kas.yaml:4:5: agent.listen.adress: unknown field `adress`, expected one of address, \
             certificate_file, key_file, max_connection_age, max_connections, max_tunnels_per_agent, \
             connections_per_token_per_minute, connections_per_second, handshake_timeout, \
             write_stall_timeout"
        );
        assert_eq!(
            error("identity: {file: i}\nagent:\n  listen:\n    address: here\n"),
            "kas.yaml:4:14: agent.listen.address: invalid socket address syntax"
        );
        assert!(error("agent: {}\n").contains("missing field `identity`"));
        let duration = error("identity: {file: i}\nagent: {tunnel: {reconnect_wait: soon}}\n");
        assert!(duration.starts_with("kas.yaml:2:"), "{duration}");
        assert!(duration.contains("agent.tunnel.reconnect_wait: \"soon\" is not a duration"), "{duration}");
    }

    /// The example names every key with its default: it parses, and without it the result is the same.
    #[test]
    fn the_example_explains_every_key() {
        let file = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/kas.example.yaml"));
        let mut example = Config::read(file).unwrap();
        let mut default: Config = parse(file, "identity: {file: identity.example.yaml}").unwrap();
        default.identity = example.identity.clone();
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
            include_str!("config/kubernetes_api.rs"),
            include_str!("config/observability.rs"),
            include_str!("config/redis.rs"),
            include_str!("config/private_api.rs"),
            include_str!("config/api.rs"),
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
    fn the_reference_has_every_key_with_its_default() {
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

    /// The example with the sections that are a comment there: they are there or not, and by default they are not.
    fn whole(example: &str) -> String {
        let mut section = false;
        let lines = example.lines().map(|line| {
            section = !line.is_empty() && (section || ["# private_api:", "# api:"].contains(&line));
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
    fn the_example_identity_is_valid() {
        let file = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/identity.example.yaml"));
        assert_eq!(crate::identity::Identity::read(file).unwrap().counts(), (1, 4));
    }

    #[test]
    fn a_missing_file_is_said_to_be_missing() {
        let error = Config::read(Path::new("/nowhere/kas.yaml")).unwrap_err().to_string();
        assert_eq!(error, "/nowhere/kas.yaml: the file does not exist");
    }
}
