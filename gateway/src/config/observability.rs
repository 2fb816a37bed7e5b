//! Section `observability`: probes, metrics, logs, traces.

use std::{net::SocketAddr, path::PathBuf};

use serde::{Deserialize, Deserializer, de::Error as _};
use serde_saphyr::Spanned;
use telemetry::{Endpoint, SampleRatio};

/// Section `observability`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ObservabilityConfig {
    /// The listener for `/liveness`, `/readiness`, `/metrics` and `/agents`.
    pub listen: ObservabilityListen,
    /// Logs on standard error.
    pub logging: Logging,
    /// Traces, sent to an OpenTelemetry collector.
    pub tracing: Tracing,
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

/// Section `observability.tracing`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Tracing {
    /// The collector's URL for OTLP over HTTP; without it there are no traces.
    #[serde(deserialize_with = "endpoint")]
    pub otlp_endpoint: Option<Endpoint>,
    /// Whom to trust that it is the collector, instead of the system's roots; PEM.
    pub otlp_ca_certificate_file: Option<Spanned<PathBuf>>,
    /// What the collector knows us by.
    pub otlp_token_secret_file: Option<Spanned<PathBuf>>,
    /// Which part of the traces that begin here is recorded.
    #[serde(deserialize_with = "ratio")]
    pub sample_ratio: SampleRatio,
    /// Whether a caller's trace is continued, and its decision to record it obeyed.
    pub trust_callers: bool,
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

fn endpoint<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Endpoint>, D::Error> {
    let url = Option::<String>::deserialize(deserializer)?;
    url.map(|url| url.parse().map_err(D::Error::custom)).transpose()
}

fn ratio<'de, D: Deserializer<'de>>(deserializer: D) -> Result<SampleRatio, D::Error> {
    SampleRatio::try_from(f64::deserialize(deserializer)?).map_err(D::Error::custom)
}

impl Default for ObservabilityListen {
    fn default() -> Self {
        Self { address: SocketAddr::from(([127, 0, 0, 1], 8151)) }
    }
}
