//! Section `observability`: probes, metrics, logs.

use std::net::SocketAddr;

use serde::Deserialize;

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

impl Default for ObservabilityListen {
    fn default() -> Self {
        Self { address: SocketAddr::from(([127, 0, 0, 1], 8151)) }
    }
}
