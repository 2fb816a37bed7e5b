//! Durations in configuration files: `300s`, `1.5s`, `20ms`, `10m`, `2h`, and sums like `1h30m`.
//!
//! Use with `#[serde(with = "settings::duration")]`.

use std::time::Duration;

use serde::{Deserialize, Deserializer, Serializer, de::Error as _};

/// Longest duration, in seconds: a hundred years, which can still be added to the current time.
const LONGEST: f64 = 100.0 * 365.0 * 86_400.0;

/// A text that is no duration.
#[derive(Debug, thiserror::Error)]
pub enum InvalidDuration {
    /// The text is not a sum of numbers with units.
    #[error("{0:?} is not a duration: write a number and a unit (ms, s, m, h), like 300s, 1.5s or 1h30m")]
    Malformed(String),
    /// The duration is longer than a hundred years, so it may not fit into a clock.
    #[error("{0:?} is longer than a hundred years")]
    TooLong(String),
}

/// Parses a duration.
pub fn parse(text: &str) -> Result<Duration, InvalidDuration> {
    let invalid = || InvalidDuration::Malformed(text.to_owned());
    let mut seconds = 0.0;
    let mut rest = text;
    if rest.is_empty() {
        return Err(invalid());
    }
    while !rest.is_empty() {
        let number = rest.find(|c: char| !c.is_ascii_digit() && c != '.').ok_or_else(invalid)?;
        let (value, tail) = rest.split_at(number);
        let unit = tail.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(tail.len());
        let (unit, tail) = tail.split_at(unit);
        let scale = match unit {
            "ms" => 0.001,
            "s" => 1.0,
            "m" => 60.0,
            "h" => 3600.0,
            _ => return Err(invalid()),
        };
        seconds += value.parse::<f64>().map_err(|_| invalid())? * scale;
        rest = tail;
    }

    if seconds > LONGEST {
        return Err(InvalidDuration::TooLong(text.to_owned()));
    }
    Duration::try_from_secs_f64(seconds).map_err(|_| invalid())
}

/// Formats a duration for [`parse`]: in seconds, or in milliseconds if it is not a whole number of seconds.
pub fn format(duration: Duration) -> String {
    match duration.subsec_millis() {
        0 => format!("{}s", duration.as_secs()),
        _ => format!("{}ms", duration.as_millis()),
    }
}

/// Serializes a duration as [`format()`] writes it, for serde's `with`.
pub fn serialize<S: Serializer>(duration: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&format(*duration))
}

/// Deserializes a duration as [`parse`] reads it, for serde's `with`.
pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    parse(&String::deserialize(deserializer)?).map_err(D::Error::custom)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn duration_is_a_sum_of_numbers_with_units() {
        for (text, millis) in [
            ("300s", 300_000),
            ("1.5s", 1_500),
            ("20ms", 20),
            ("10m", 600_000),
            ("1h30m", 5_400_000),
            ("0s", 0),
        ] {
            assert_eq!(parse(text).unwrap(), Duration::from_millis(millis), "{text}");
        }
        for bad in [
            "",
            "5",
            "s",
            "5 s",
            "-5s",
            "5d",
            "1..5s",
            "1e9s",
            "99999999999999999999999h",
            "5000000000000000h",
        ] {
            assert!(parse(bad).is_err(), "{bad:?}");
        }
        assert_eq!(
            parse("1000000000h").unwrap_err().to_string(),
            "\"1000000000h\" is longer than a hundred years"
        );
    }

    #[test]
    fn formatted_duration_is_parsed_to_the_same() {
        for millis in [0, 20, 1_500, 7_200_000] {
            let duration = Duration::from_millis(millis);
            assert_eq!(parse(&format(duration)).unwrap(), duration);
        }
    }
}
