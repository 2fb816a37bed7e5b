//! Sections of `observability`: traces, and the audit log.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, de::Error as _};
use serde_saphyr::Spanned;
use settings::{Within, patterns::HTTP_URL};
use telemetry::{OtlpEndpoint, SampleRatio};

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

fn endpoint<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<OtlpEndpoint>, D::Error> {
    let url = Option::<String>::deserialize(deserializer)?;
    url.map(|url| url.parse().map_err(D::Error::custom)).transpose()
}

fn ratio<'de, D: Deserializer<'de>>(deserializer: D) -> Result<SampleRatio, D::Error> {
    SampleRatio::try_from(f64::deserialize(deserializer)?).map_err(D::Error::custom)
}

impl Default for AuditConfig {
    fn default() -> Self {
        Self { sink: AuditSink::None, file: None, max_file_size: 100 << 20, max_files: 10 }
    }
}
