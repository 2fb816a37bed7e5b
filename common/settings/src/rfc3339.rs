//! Times as RFC 3339, to the second, for `#[serde(with)]`.

use std::time::SystemTime;

use serde::{Deserialize, Deserializer, Serializer, de::Error as _};

/// Serializes a time.
pub fn serialize<S: Serializer>(time: &SystemTime, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&humantime::format_rfc3339_seconds(*time))
}

/// Deserializes a time.
pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<SystemTime, D::Error> {
    humantime::parse_rfc3339(&String::deserialize(deserializer)?).map_err(D::Error::custom)
}
