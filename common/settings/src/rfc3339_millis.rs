//! Times as RFC 3339, to the millisecond, for `#[serde(with)]`.

use std::time::SystemTime;

use serde::Serializer;

pub use super::rfc3339::deserialize;

/// Serializes a time.
pub fn serialize<S: Serializer>(time: &SystemTime, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&humantime::format_rfc3339_millis(*time))
}
