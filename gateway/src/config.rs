//! The configuration file of kas: inert data with defaults.
//!
//! Keys are those of GitLab's kas where the concept exists. Paths are relative to the configuration file. Every key
//! is explained in `deploy/kas.example.yaml`, which a test reads.

mod source;

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    time::Duration,
};

use serde::Deserialize;
use serde_saphyr::Spanned;

pub use self::source::ConfigError;
pub(crate) use self::source::{parse, read, unreadable};

/// The whole file.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Where agents connect, and where callers reach their clusters.
    #[serde(default)]
    pub agent: AgentConfig,
    /// Probes, metrics, logs.
    #[serde(default)]
    pub observability: ObservabilityConfig,
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
    #[serde(with = "proto::duration")]
    pub max_connection_age: Duration,
    /// Open connections of agents.
    pub max_connections: usize,
}

/// Section `agent.kubernetes_api`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct KubernetesApi {
    /// The listener for callers.
    pub listen: PublicListen,
    /// What one caller, one agent and all together may take.
    pub limits: Limits,
}

/// Section `agent.kubernetes_api.limits`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Limits {
    /// Open connections of callers.
    pub max_connections: usize,
    /// Requests in flight of one caller.
    pub max_requests_per_caller: u32,
    /// Requests in flight to one agent.
    pub max_requests_per_agent: u32,
    /// Header fields of one request.
    pub max_headers: usize,
    /// Bytes of one request's head.
    pub max_head_bytes: usize,
    /// How long a caller may take to send a request's head, the wait for it included.
    #[serde(with = "proto::duration")]
    pub head_timeout: Duration,
    /// How long a caller may stop reading its answer.
    #[serde(with = "proto::duration")]
    pub write_stall_timeout: Duration,
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
    /// How long connections are still accepted after SIGTERM, so that load balancers notice.
    #[serde(with = "proto::duration")]
    pub listen_grace_period: Duration,
    /// How long requests in flight may take after that.
    #[serde(with = "proto::duration")]
    pub shutdown_grace_period: Duration,
}

/// Section `agent.tunnel`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TunnelConfig {
    /// How long a request waits for a tunnel of an agent that has none.
    #[serde(with = "proto::duration")]
    pub reconnect_wait: Duration,
    /// Most requests in flight in one tunnel; further ones wait.
    pub max_concurrent_streams: u32,
    /// Bytes of one response or request that may be under way or unread.
    pub stream_window: u32,
    /// Most bytes of headers in one request or response.
    pub max_header_bytes: u32,
    /// Silence after which the other end is asked for a sign of life.
    #[serde(with = "proto::duration")]
    pub keepalive_interval: Duration,
    /// How long that may take.
    #[serde(with = "proto::duration")]
    pub keepalive_timeout: Duration,
}

/// Section `observability`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ObservabilityConfig {
    /// The listener for `/liveness`, `/readiness`, `/metrics` and `/agents`.
    pub listen: ObservabilityListen,
    /// Logs on standard error.
    pub logging: Logging,
}

/// Section `observability.listen`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ObservabilityListen {
    /// Where probes and Prometheus connect.
    pub address: SocketAddr,
}

/// Section `observability.logging`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Logging {
    /// What is logged.
    pub level: Level,
    /// How it looks.
    pub format: Format,
}

/// The least important event that is still logged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// What stops something.
    Error,
    /// What somebody should look at in the morning.
    Warn,
    /// Changes of state.
    #[default]
    Info,
    /// Each request.
    Debug,
}

/// The look of the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Format {
    /// One JSON object a line.
    #[default]
    Json,
    /// For people.
    Text,
}

/// Section `identity`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct IdentityConfig {
    /// The file that names agents and callers; read again when it changes.
    pub file: Spanned<PathBuf>,
}

impl Config {
    /// Reads a configuration file and makes its paths absolute.
    pub fn read(file: &Path) -> Result<Self, ConfigError> {
        let mut config: Self = read(file)?;
        let directory = file.parent().unwrap_or_else(|| Path::new(""));
        let agent = &mut config.agent;
        for path in [
            &mut agent.listen.certificate_file,
            &mut agent.listen.key_file,
            &mut agent.kubernetes_api.listen.certificate_file,
            &mut agent.kubernetes_api.listen.key_file,
        ]
        .into_iter()
        .flatten()
        .chain([&mut config.identity.file])
        {
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
}

impl Default for AgentListen {
    fn default() -> Self {
        Self {
            address: SocketAddr::from(([127, 0, 0, 1], 8150)),
            certificate_file: None,
            key_file: None,
            max_connection_age: Duration::from_secs(7200),
            max_connections: 20_000,
        }
    }
}

impl Default for PublicListen {
    fn default() -> Self {
        Self {
            address: SocketAddr::from(([0, 0, 0, 0], 8154)),
            certificate_file: None,
            key_file: None,
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
            write_stall_timeout: Duration::from_secs(300),
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
        }
    }
}

impl Default for ObservabilityListen {
    fn default() -> Self {
        Self { address: SocketAddr::from(([127, 0, 0, 1], 8151)) }
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
             certificate_file, key_file, max_connection_age, max_connections"
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

        let text = std::fs::read_to_string(file).unwrap();
        let source = include_str!("config.rs");
        let keys = source
            .lines()
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
    fn the_example_identity_is_valid() {
        let file = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/identity.example.yaml"));
        assert_eq!(crate::identity::Identity::read(file).unwrap().counts(), (1, 3));
    }

    #[test]
    fn a_missing_file_is_said_to_be_missing() {
        let error = Config::read(Path::new("/nowhere/kas.yaml")).unwrap_err().to_string();
        assert_eq!(error, "/nowhere/kas.yaml: the file does not exist");
    }
}
