//! The bounds of numbers and durations, for the tests of the parser and of the schema.

use std::path::Path;

use settings::parse;

use crate::config::Config;

/// Section, key, a value out of its bounds, and the next one within them.
pub(in crate::config) const BOUNDS: [(&str, &str, &str, &str); 28] = [
    ("agent: {listen: ", "max_connections", "0", "1"),
    ("agent: {listen: ", "max_connections", "1000001", "1000000"),
    ("agent: {listen: ", "max_tunnels_per_agent", "0", "1"),
    ("agent: {listen: ", "connections_per_token_per_minute", "0", "1"),
    ("agent: {listen: ", "connections_per_address_per_minute", "0", "1"),
    ("agent: {listen: ", "unknown_tokens_per_address_per_minute", "1000001", "1000000"),
    ("agent: {listen: ", "connections_per_second", "0", "1"),
    ("agent: {listen: ", "connections_per_second", "1000001", "1000000"),
    ("agent: {listen: ", "handshake_timeout", "0s", "1ms"),
    ("agent: {listen: ", "max_connection_age", "0s", "1s"),
    ("agent: {tunnel: ", "max_concurrent_streams", "0", "1"),
    ("agent: {tunnel: ", "stream_window", "65534", "65535"),
    ("agent: {tunnel: ", "stream_window", "1073741825", "1073741824"),
    ("agent: {tunnel: ", "max_header_bytes", "16383", "16384"),
    ("agent: {tunnel: ", "keepalive_interval", "0s", "1s"),
    ("agent: {tunnel: ", "keepalive_timeout", "0ms", "1s"),
    ("agent: {tunnel: ", "rebalance_threshold", "1001", "0"),
    ("agent: {tunnel: ", "rebalance_rate", "0", "1"),
    ("gitaly: {global_api_rate_limit: ", "refill_rate_per_second", "0.0", "30.0"),
    ("gitaly: {global_api_rate_limit: ", "refill_rate_per_second", "1.5", "1"),
    ("gitaly: {per_server_api_rate_limit: ", "refill_rate_per_second", "100001", "100000"),
    ("observability: ", "per_agent_metrics", "100001", "0"),
    ("agent: {kubernetes_api: {limits: ", "max_headers", "0", "1"),
    ("agent: {kubernetes_api: {limits: ", "max_head_bytes", "8191", "8192"),
    ("agent: {kubernetes_api: {limits: ", "max_requests_per_caller", "0", "1"),
    ("agent: {kubernetes_api: {limits: ", "unknown_credentials_per_address_per_minute", "0", "1"),
    ("agent: {kubernetes_api: {limits: ", "head_timeout", "0s", "1s"),
    ("agent: {kubernetes_api: {limits: ", "max_bytes_in_flight", "1048575", "1048576"),
];

/// Returns a file that sets the key.
pub(in crate::config) fn file(section: &str, key: &str, value: &str) -> String {
    let close = "}".repeat(section.matches('{').count());
    format!("identity: {{file: i}}\n{section}{{{key}: {value}}}{close}\n")
}

#[test]
fn number_out_of_bounds_is_refused_with_its_key() {
    for (section, key, bad, good) in BOUNDS {
        let path = Path::new("kas.yaml");
        assert!(parse::<Config>(path, &file(section, key, good)).is_ok(), "{key}: {good}");
        let error = parse::<Config>(path, &file(section, key, bad)).unwrap_err().to_string();
        assert!(error.starts_with("kas.yaml:2:") && error.contains(key), "{error}");
    }
}
