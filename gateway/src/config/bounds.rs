//! Bounds of numbers: an invalid configuration is refused before a listener is bound.

use std::{fmt::Display, time::Duration};

use serde::{Deserialize, Deserializer, de::Error as _};

/// Deserializes an integer from `LEAST` to `MOST`.
pub(super) fn within<'de, D, T, const LEAST: u64, const MOST: u64>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de> + TryInto<u64> + Display + Copy,
{
    let number = T::deserialize(deserializer)?;
    match number.try_into() {
        Ok(value) if (LEAST..=MOST).contains(&value) => Ok(number),
        _ => Err(D::Error::custom(format!("{number} is not between {LEAST} and {MOST}"))),
    }
}

/// Deserializes a duration above zero.
pub(super) fn timeout<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    let duration = proto::duration::deserialize(deserializer)?;
    if duration.is_zero() {
        return Err(D::Error::custom("the duration must be longer than zero"));
    }
    Ok(duration)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use proto::yaml::parse;

    use crate::config::Config;

    #[test]
    fn number_out_of_bounds_is_refused_with_its_key() {
        for (section, key, bad, good) in [
            ("agent: {listen: ", "max_connections", "0", "1"),
            ("agent: {listen: ", "max_connections", "1000001", "1000000"),
            ("agent: {listen: ", "max_tunnels_per_agent", "0", "1"),
            ("agent: {listen: ", "connections_per_token_per_minute", "0", "1"),
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
            ("observability: ", "per_agent_metrics", "100001", "0"),
            ("agent: {kubernetes_api: {limits: ", "max_headers", "0", "1"),
            ("agent: {kubernetes_api: {limits: ", "max_head_bytes", "8191", "8192"),
            ("agent: {kubernetes_api: {limits: ", "max_requests_per_caller", "0", "1"),
            ("agent: {kubernetes_api: {limits: ", "head_timeout", "0s", "1s"),
            ("agent: {kubernetes_api: {limits: ", "max_bytes_in_flight", "1048575", "1048576"),
        ] {
            let close = "}".repeat(section.matches('{').count());
            let text = |value: &str| format!("identity: {{file: i}}\n{section}{{{key}: {value}}}{close}\n");
            let file = Path::new("kas.yaml");
            assert!(parse::<Config>(file, &text(good)).is_ok(), "{key}: {good}");
            let error = parse::<Config>(file, &text(bad)).unwrap_err().to_string();
            assert!(error.starts_with("kas.yaml:2:") && error.contains(key), "{error}");
        }
    }
}
