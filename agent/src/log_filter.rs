//! The filter of the log for a level, and the flag of its format.

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use process::logs::LogFormat;
use tracing::level_filters::LevelFilter;

/// The crates of the workspace in agentk, which log with the configured level. `agent` includes `agentk`.
const OURS: [&str; 19] = [
    "agent",
    "backoff",
    "cluster_alerts",
    "cluster_audit",
    "cores",
    "environment_templates",
    "files",
    "gitlab_tunnel",
    "gitops_engine",
    "kube_cluster",
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
        let manifest = include_str!("../Cargo.toml");
        let (dependencies, _) = manifest.split_once("[dev-dependencies]").unwrap();
        let members = include_str!("../../Cargo.toml").lines().filter_map(|line| {
            let (name, rest) = line.split_once(" = ")?;
            rest.starts_with("{ path = ").then_some(name)
        });
        let used = members.filter(|name| dependencies.contains(&format!("\n{name}.workspace = true")));
        let mut used: Vec<_> = used.map(|name| name.replace('-', "_")).collect();
        used.push("agent".to_owned());
        used.sort_unstable();
        assert_eq!(used, OURS);
    }
}
