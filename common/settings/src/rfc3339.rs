//! Times as RFC 3339: for `#[serde(with)]`, to the second, and for the parameters of requests and commands.

use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Deserializer, Serializer, de::Error as _};

/// Serializes a time.
pub fn serialize<S: Serializer>(time: &SystemTime, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&humantime::format_rfc3339_seconds(*time))
}

/// Deserializes a time.
pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<SystemTime, D::Error> {
    let text = String::deserialize(deserializer)?;
    parse(&text).ok_or_else(|| D::Error::custom("write a time of RFC 3339, such as 2026-01-31T12:00:00Z"))
}

/// Parses a time since 1970, in UTC or with the offset of a time zone.
pub fn parse(text: &str) -> Option<SystemTime> {
    let time: jiff::Timestamp = text.parse().ok()?;
    Some(SystemTime::from(time)).filter(|time| *time >= UNIX_EPOCH)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn time_may_have_the_offset_of_a_time_zone() {
        let noon = Some(UNIX_EPOCH + Duration::from_secs(1_769_860_800));
        for text in [
            "2026-01-31T12:00:00Z",
            "2026-01-31T14:00:00+02:00",
            "2026-01-31T07:00:00-05:00",
            "2026-01-31T12:00:00.000Z",
        ] {
            assert_eq!(parse(text), noon, "{text}");
        }
        for text in [
            "",
            "yesterday",
            "2026-01-31",
            "2026-01-31T12:00:00",
            "2026-02-31T12:00:00Z",
            "1969-12-31T23:00:00Z",
        ] {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}
