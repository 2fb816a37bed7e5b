//! Section `observability`: probes, metrics, logs, traces.

use std::{net::SocketAddr, time::Duration};

use kas_core::{
    config::{AuditConfig, TracingConfig},
    gitlab_key::{EndpointConfig, GitLabKey},
};
use kas_listen::listen_address::{self, ListenNetwork};
use schemars::JsonSchema;
use serde::Deserialize;
use settings::{
    AnyDuration, Network, Within,
    patterns::{NETWORK, SOCKET_ADDRESS},
};

/// Section `observability`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ObservabilityConfig {
    /// The listener for `/liveness`, `/readiness`, `/metrics` and `/agents`.
    pub listen: ObservabilityListen,
    /// The log on standard error.
    pub logging: LoggingConfig,
    /// Traces for an OpenTelemetry collector.
    pub tracing: TracingConfig,
    /// The time between two posts of the use of clusters to GitLab. Zero disables them.
    #[serde(with = "AnyDuration")]
    pub usage_reporting_period: Duration,
    /// The most agents with a series of `kas_agent_up`.
    #[serde(with = "Within::<0, 100_000>")]
    pub per_agent_metrics: usize,
    /// The metrics of GitLab's kas that have the same meaning here, under their names there, in addition.
    pub gitlab_metrics: bool,
    /// The audit log.
    pub audit: AuditConfig,
    /// The path of the metrics, which is `/metrics`.
    pub prometheus: EndpointConfig,
    /// The path of the liveness probe, which is `/liveness`.
    pub liveness_probe: EndpointConfig,
    /// The path of the readiness probe, which is `/readiness`.
    pub readiness_probe: EndpointConfig,
    /// Ignored: Sentry for errors of GitLab's kas.
    pub sentry: GitLabKey,
    /// Ignored: profiler of GitLab's kas.
    pub google_profiler: GitLabKey,
}

/// Section `observability.listen`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ObservabilityListen {
    /// The kind of the address.
    pub network: ListenNetwork,
    /// The address for probes and Prometheus.
    #[serde(deserialize_with = "listen_address::address")]
    #[schemars(with = "String", regex(pattern = SOCKET_ADDRESS))]
    pub address: SocketAddr,
    /// The networks of probes, Prometheus and operators. An empty list allows every address.
    #[schemars(with = "Vec<String>", inner(regex(pattern = NETWORK)))]
    pub allowed_networks: Vec<Network>,
    /// TLS of GitLab's kas, which is refused.
    #[schemars(skip)]
    pub certificate_file: GitLabKey,
    /// TLS of GitLab's kas, which is refused.
    #[schemars(skip)]
    pub key_file: GitLabKey,
}

/// Section `observability.logging`.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct LoggingConfig {
    /// The least important level that is logged.
    pub level: LogLevel,
    /// The format of the lines.
    pub format: LoggingFormat,
    /// Ignored: level of the gRPC library in GitLab's kas.
    pub grpc_level: GitLabKey,
}

/// The level of an event.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum LogLevel {
    /// A failure that stops a function of kas.
    Error,
    /// A problem that needs attention, but not at once.
    Warn,
    /// A change of state.
    #[default]
    Info,
    /// A request.
    Debug,
}

/// The format of the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum LoggingFormat {
    /// One JSON object per line.
    #[default]
    Json,
    /// Text for people.
    Text,
}

impl Default for ObservabilityConfig {
    fn default() -> Self {
        Self {
            listen: ObservabilityListen::default(),
            logging: LoggingConfig::default(),
            tracing: TracingConfig::default(),
            usage_reporting_period: Duration::from_secs(60),
            per_agent_metrics: 500,
            gitlab_metrics: false,
            audit: AuditConfig::default(),
            prometheus: EndpointConfig::default(),
            liveness_probe: EndpointConfig::default(),
            readiness_probe: EndpointConfig::default(),
            sentry: GitLabKey::default(),
            google_profiler: GitLabKey::default(),
        }
    }
}

impl Default for ObservabilityListen {
    fn default() -> Self {
        Self {
            network: ListenNetwork::Tcp,
            address: SocketAddr::from(([127, 0, 0, 1], 8151)),
            allowed_networks: Vec::new(),
            certificate_file: GitLabKey::default(),
            key_file: GitLabKey::default(),
        }
    }
}
