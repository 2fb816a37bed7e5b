//! Section `observability`: probes, metrics, logs, traces.

use std::{net::SocketAddr, path::PathBuf, time::Duration};

use kas_listen::listen_address::{self, ListenNetwork};
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, de::Error as _};
use serde_saphyr::Spanned;
use settings::{
    AnyDuration, Network, Within,
    patterns::{HTTP_URL, NETWORK, SOCKET_ADDRESS},
};
use telemetry::{OtlpEndpoint, SampleRatio};

use crate::gitlab_key::{EndpointConfig, GitLabKey};

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

/// Section `observability.tracing`.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct TracingConfig {
    /// The URL of the collector for OTLP over HTTP. Without it there are no traces.
    #[serde(deserialize_with = "endpoint")]
    #[schemars(with = "Option<String>", regex(pattern = HTTP_URL))]
    pub otlp_endpoint: Option<OtlpEndpoint>,
    /// The authority of the collector (PEM), in place of those of the system.
    #[schemars(with = "Option<PathBuf>")]
    pub otlp_ca_certificate_file: Option<Spanned<PathBuf>>,
    /// The token for the collector.
    #[schemars(with = "Option<PathBuf>")]
    pub otlp_token_secret_file: Option<Spanned<PathBuf>>,
    /// The fraction of the traces beginning at kas that is recorded.
    #[serde(deserialize_with = "ratio")]
    #[schemars(with = "f64", range(min = 0, max = 1))]
    pub sample_ratio: SampleRatio,
    /// If true, kas continues the trace of a caller, with its decision to record.
    pub trust_callers: bool,
}

/// Section `observability.audit`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct AuditConfig {
    /// The place of the lines.
    pub sink: AuditSink,
    /// The file of `sink: file`.
    #[schemars(with = "Option<PathBuf>")]
    pub file: Option<Spanned<PathBuf>>,
    /// The size at which the file is replaced, in bytes.
    #[serde(with = "Within::<{ 1 << 20 }, { 1 << 40 }>")]
    pub max_file_size: u64,
    /// The most files, with the current one.
    #[serde(with = "Within::<1, 1000>")]
    pub max_files: u32,
}

/// The place of the lines of the audit log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum AuditSink {
    /// There is no audit log.
    #[default]
    None,
    /// Standard output.
    Stdout,
    /// A file, which is rotated by its size.
    File,
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

fn endpoint<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<OtlpEndpoint>, D::Error> {
    let url = Option::<String>::deserialize(deserializer)?;
    url.map(|url| url.parse().map_err(D::Error::custom)).transpose()
}

fn ratio<'de, D: Deserializer<'de>>(deserializer: D) -> Result<SampleRatio, D::Error> {
    SampleRatio::try_from(f64::deserialize(deserializer)?).map_err(D::Error::custom)
}

impl Default for ObservabilityConfig {
    fn default() -> Self {
        Self {
            listen: ObservabilityListen::default(),
            logging: LoggingConfig::default(),
            tracing: TracingConfig::default(),
            usage_reporting_period: Duration::from_secs(60),
            per_agent_metrics: 500,
            audit: AuditConfig::default(),
            prometheus: EndpointConfig::default(),
            liveness_probe: EndpointConfig::default(),
            readiness_probe: EndpointConfig::default(),
            sentry: GitLabKey::default(),
            google_profiler: GitLabKey::default(),
        }
    }
}

impl Default for AuditConfig {
    fn default() -> Self {
        Self { sink: AuditSink::None, file: None, max_file_size: 100 << 20, max_files: 10 }
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
