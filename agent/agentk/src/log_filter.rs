//! The filter of the log for a level, and the flag of its format.

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use process::logs::LogFormat;
use tracing::level_filters::LevelFilter;

/// The crates of the workspace in agentk, which log with the configured level. `agent` includes `agentk`.
const OURS: [&str; 31] = [
    "agent",
    "agentk_alerts",
    "agentk_cluster_audit",
    "agentk_core",
    "agentk_environments",
    "agentk_gitlab",
    "agentk_gitops",
    "agentk_graph",
    "agentk_notify",
    "agentk_policy",
    "backoff",
    "cluster_alerts",
    "cluster_audit",
    "cores",
    "environment_objects",
    "environment_templates",
    "files",
    "gitlab_tunnel",
    "gitops_engine",
    "kube_cluster",
    "object_health",
    "outbound",
    "process",
    "proto",
    "request_info",
    "resource_graph",
    "settings",
    "strangers",
    "telemetry",
    "tls",
    "tunnel",
];

/// Returns the filter of the log for a value of `--log-level`.
pub fn log_filter(level: &str) -> String {
    if level.parse::<LevelFilter>().is_ok() {
        // Libraries log only errors: h2 has a warning for each PING that was acknowledged and never sent.
        return format!("error,{}", OURS.map(|name| format!("{name}={level}")).join(","));
    }
    // At the level trace, tungstenite logs payloads, which contain secrets of the cluster.
    format!("{level},tungstenite=info")
}

/// Returns the parser of `--log-format`.
pub(crate) fn log_format() -> impl TypedValueParser<Value = LogFormat> {
    let text = PossibleValue::new("text").help("For people");
    let json = PossibleValue::new("json").help("A JSON object on each line");
    PossibleValuesParser::new([text, json]).map(|format| match &*format {
        "json" => LogFormat::Json,
        _ => LogFormat::Text,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_crate_of_the_workspace_has_the_configured_level() {
        assert_eq!(testing::crates::within(env!("CARGO_MANIFEST_DIR")), OURS);
    }
}
