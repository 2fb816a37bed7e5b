//! The filter of the log for a level.

use tracing::level_filters::LevelFilter;

/// The crates of the workspace in agentk, which log with the configured level. `agent` includes `agentk`.
const OURS: [&str; 13] = [
    "agent",
    "backoff",
    "cores",
    "files",
    "gitops_engine",
    "kube_cluster",
    "process",
    "proto",
    "request_info",
    "settings",
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
