//! Traces of the requests that agentk serves: what the flags and the environment come to.

use std::ffi::OsString;

use anyhow::Context as _;
use telemetry::{Collector, TracerConfig, environment::Environment};

use crate::cli::Run;

/// Reads and checks what is named; it blocks. None without a collector. A flag wins over the environment variable that
/// says the same; an error names the one or the other.
pub(crate) fn settings(
    run: &Run,
    variable: &dyn Fn(&str) -> Option<OsString>,
) -> anyhow::Result<Option<TracerConfig>> {
    let environment = Environment::read(variable)?;
    let Some(endpoint) = run.otlp_endpoint.clone().or(environment.endpoint) else {
        let files =
            [("--otlp-ca-cert-file", &run.otlp_ca_cert_file), ("--otlp-token-file", &run.otlp_token_file)];
        if let Some((flag, _)) = files.iter().find(|(_, file)| file.is_some()) {
            anyhow::bail!("{flag} has no effect without --otlp-endpoint");
        }
        return Ok(None);
    };

    let (ca_file, origin) = match &run.otlp_ca_cert_file {
        Some(file) => (Some(file.clone()), "--otlp-ca-cert-file"),
        None => (environment.ca_file, "OTEL_EXPORTER_OTLP_CERTIFICATE"),
    };
    let collector = Collector::new(endpoint, ca_file).context(origin)?;
    let mut collector = collector.with_headers(environment.headers);
    if let Some(file) = run.otlp_token_file.clone() {
        collector = collector.with_token(file).context("--otlp-token-file")?;
    }
    Ok(Some(TracerConfig { collector, ratio: run.otlp_sample_ratio }))
}
