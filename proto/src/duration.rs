//! Durations as the configuration files write them: `300s`, `1.5s`, `20ms`, `10m`, `2h`, and sums like `1h30m`.
//!
//! Use with `#[serde(with = "proto::duration")]`.

use std::time::Duration;

use serde::{Deserialize, Deserializer, Serializer, de::Error as _};

/// A hundred years, in seconds: clocks can still add it to now.
const LONGEST: f64 = 100.0 * 365.0 * 86_400.0;

/// Not a duration.
#[derive(Debug, thiserror::Error)]
#[error("{0:?} is not a duration: write a number and a unit (ms, s, m, h), like 300s, 1.5s or 1h30m")]
pub struct InvalidDuration(String);

/// Reads a duration.
pub fn parse(text: &str) -> Result<Duration, InvalidDuration> {
    let invalid = || InvalidDuration(text.to_owned());
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
        return Err(invalid());
    }
    Duration::try_from_secs_f64(seconds).map_err(|_| invalid())
}

/// Writes a duration the shortest way that [`parse`] reads back: whole seconds, else milliseconds.
pub fn format(duration: Duration) -> String {
    match duration.subsec_millis() {
        0 => format!("{}s", duration.as_secs()),
        _ => format!("{}ms", duration.as_millis()),
    }
}

/// For serde's `with`.
pub fn serialize<S: Serializer>(duration: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&format(*duration))
}

/// For serde's `with`.
pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    parse(&String::deserialize(deserializer)?).map_err(D::Error::custom)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_read_as_people_write_them() {
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
    }

    #[test]
    fn a_written_duration_reads_back() {
        for millis in [0, 20, 1_500, 7_200_000] {
            let duration = Duration::from_millis(millis);
            assert_eq!(parse(&format(duration)).unwrap(), duration);
        }
    }
}
