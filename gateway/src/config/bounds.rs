//! Bounds of numbers and durations: an invalid configuration is refused before a listener is bound. The schema has the same
//! bounds, because both come from one type.

use std::{borrow::Cow, fmt::Display, time::Duration};

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};

/// Durations as the parser reads them.
const DURATION: &str = r"^(([0-9]+\.?[0-9]*|\.[0-9]+)(ms|s|m|h))+$";

/// An integer from `LEAST` to `MOST`, for `#[serde(with)]`.
pub(super) struct Within<const LEAST: u64, const MOST: u64>;

/// Events per second, for `#[serde(with)]`. GitLab's kas has fractions here, such as `50.0`; this one has to be whole.
pub(super) struct Rate;

/// A duration, for `#[serde(with)]`.
pub(super) struct AnyDuration;

/// A duration above zero, for `#[serde(with)]`.
pub(super) struct Timeout;

impl<const LEAST: u64, const MOST: u64> Within<LEAST, MOST> {
    /// Serializes the default for the schema.
    pub(super) fn serialize<T: Serialize, S: Serializer>(
        number: &T,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        number.serialize(serializer)
    }

    pub(super) fn deserialize<'de, D, T>(deserializer: D) -> Result<T, D::Error>
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
}

impl Rate {
    const LEAST: u32 = 1;
    const MOST: u32 = 100_000;

    /// Serializes the default for the schema.
    pub(super) fn serialize<S: Serializer>(rate: &u32, serializer: S) -> Result<S::Ok, S::Error> {
        rate.serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u32, D::Error> {
        let number = f64::deserialize(deserializer)?;
        // The text of a whole number has no point.
        match number.to_string().parse() {
            Ok(rate) if (Self::LEAST..=Self::MOST).contains(&rate) => Ok(rate),
            _ => {
                let (least, most) = (Self::LEAST, Self::MOST);
                Err(D::Error::custom(format!("{number} is not a whole number between {least} and {most}")))
            }
        }
    }
}

impl AnyDuration {
    /// Serializes the default for the schema.
    pub(super) fn serialize<S: Serializer>(duration: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
        proto::duration::serialize(duration, serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
        proto::duration::deserialize(deserializer)
    }
}

impl Timeout {
    /// Serializes the default for the schema.
    pub(super) fn serialize<S: Serializer>(duration: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
        AnyDuration::serialize(duration, serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
        let duration = AnyDuration::deserialize(deserializer)?;
        if duration.is_zero() {
            return Err(D::Error::custom("the duration must be longer than zero"));
        }
        Ok(duration)
    }
}

impl<const LEAST: u64, const MOST: u64> JsonSchema for Within<LEAST, MOST> {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        format!("From{LEAST}To{MOST}").into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({"type": "integer", "minimum": LEAST, "maximum": MOST})
    }
}

impl JsonSchema for Rate {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Rate".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({"type": "integer", "minimum": Self::LEAST, "maximum": Self::MOST})
    }
}

impl JsonSchema for AnyDuration {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Duration".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({"type": "string", "pattern": DURATION, "examples": ["300s", "1.5s", "20ms", "1h30m"]})
    }
}

impl JsonSchema for Timeout {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Timeout".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let mut schema = AnyDuration::json_schema(generator);
        // A pattern cannot exclude zero by itself: the regular expressions of helm have no lookahead.
        schema.insert("allOf".to_owned(), serde_json::json!([{"pattern": "[1-9]"}]));
        schema
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::path::Path;

    use proto::yaml::parse;

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
}
