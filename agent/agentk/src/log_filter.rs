//! The filter of the log for a level, and the flag of its format.

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use process::logs::LogFormat;
use tracing::level_filters::LevelFilter;

/// The crates of the workspace in agentk, which log with the configured level. `agent` includes `agentk`.
const OURS: [&str; 29] = [
    "agent",
    "agentk_alerts",
    "agentk_cluster_audit",
    "agentk_core",
    "agentk_environments",
    "agentk_gitlab",
    "agentk_gitops",
    "agentk_graph",
    "agentk_notify",
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
    use std::{
        collections::{BTreeMap, BTreeSet},
        fs,
        path::Path,
    };

    use super::*;

    /// Adds the crates of the workspace that a crate needs, with those that they need.
    fn add_needed(folders: &BTreeMap<&str, &str>, folder: &str, needed: &mut BTreeSet<String>) {
        let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
        let manifest = fs::read_to_string(root.join(folder).join("Cargo.toml")).unwrap();
        let (dependencies, _) = manifest.split_once("[dev-dependencies]").unwrap_or((&manifest, ""));
        for (name, folder) in folders {
            let is_needed = dependencies.contains(&format!("\n{name}.workspace = true"));
            if is_needed && needed.insert(name.replace('-', "_")) {
                add_needed(folders, folder, needed);
            }
        }
    }

    #[test]
    fn each_crate_of_the_workspace_has_the_configured_level() {
        let members = include_str!("../../../Cargo.toml").lines().filter_map(|line| {
            let (name, rest) = line.split_once(" = { path = \"")?;
            Some((name, rest.split_once('"')?.0))
        });
        let mut needed = BTreeSet::from(["agent".to_owned()]);
        add_needed(&members.collect(), "agent/agentk", &mut needed);
        assert_eq!(needed.iter().map(String::as_str).collect::<Vec<_>>(), OURS);
    }
}
