//! Parses timestamps of Kubernetes (RFC 3339). agentk has no other dates, and so no dependency for them.

use std::time::{Duration, SystemTime};

/// Parses a timestamp. Fractions of a second are ignored; a time before 1970 is invalid.
pub(super) fn parse(text: &str) -> Option<SystemTime> {
    let (date, rest) = text.split_at_checked(10)?;
    let (time, rest) = rest.strip_prefix(['T', 't', ' '])?.split_at_checked(8)?;
    let [year, month, day] = numbers(date, "-")?;
    let [hour, minute, second] = numbers(time, ":")?;
    let valid = (1..=12).contains(&month)
        && (1..=days_in(year, month)).contains(&day)
        && hour < 24
        && minute < 60
        && second <= 60; // a leap second
    if !valid {
        return None;
    }

    let seconds = days_since_1970(year, month, day) * 86_400 + hour * 3600 + minute * 60 + second;
    let since_1970 = u64::try_from(seconds - offset(rest)?).ok()?;

    Some(SystemTime::UNIX_EPOCH + Duration::from_secs(since_1970))
}

/// Parses the rest after the seconds, an optional fraction and `Z` or `±hh:mm`. Returns the offset in seconds.
fn offset(rest: &str) -> Option<i64> {
    let zone = match rest.strip_prefix('.') {
        Some(fraction) => {
            let zone = fraction.trim_start_matches(|digit: char| digit.is_ascii_digit());
            if zone.len() == fraction.len() {
                return None;
            }
            zone
        }
        None => rest,
    };
    if matches!(zone, "Z" | "z") {
        return Some(0);
    }

    let (sign, zone) = match zone.strip_prefix('+') {
        Some(zone) => (1, zone),
        None => (-1, zone.strip_prefix('-')?),
    };
    let [hours, minutes] = numbers(zone, ":")?;
    (hours < 24 && minutes < 60).then_some(sign * (hours * 3600 + minutes * 60))
}

fn numbers<const N: usize>(text: &str, separator: &str) -> Option<[i64; N]> {
    let parts = text.split(separator).map(|part| {
        let digits = part.len() >= 2 && part.bytes().all(|byte| byte.is_ascii_digit());
        digits.then(|| part.parse().ok()).flatten()
    });

    parts.collect::<Option<Vec<_>>>()?.try_into().ok()
}

fn days_in(year: i64, month: i64) -> i64 {
    match month {
        2 if is_leap(year) => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

fn is_leap(year: i64) -> bool {
    year % 4 == 0 && (year % 100 != 0 || year % 400 == 0)
}

/// Returns the number of days since 1970-01-01 in the Gregorian calendar.
fn days_since_1970(year: i64, month: i64, day: i64) -> i64 {
    let before = year - 1;
    let years = before * 365 + before / 4 - before / 100 + before / 400;
    let months: i64 = (1..month).map(|month| days_in(year, month)).sum();

    years + months + day - 1 - 719_162
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn valid_timestamps_are_parsed() {
        for (text, seconds) in [
            ("1970-01-01T00:00:00Z", 0),
            ("2000-02-29T23:59:59Z", 951_868_799),
            ("2024-03-01T00:00:00.123456Z", 1_709_251_200),
            ("2018-03-05T17:30:20-08:00", 1_520_299_820),
            ("2026-07-14t12:00:00+05:30", 1_784_010_600),
            ("2100-03-01T00:00:00z", 4_107_542_400),
        ] {
            assert_eq!(parse(text), Some(SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)), "{text}");
        }
    }

    #[test]
    fn invalid_timestamps_are_refused() {
        for text in [
            "",
            "2024-01-01",
            "2024-01-01T00:00:00",
            "2024-01-01T00:00:00.Z",
            "2023-02-29T00:00:00Z",
            "2024-13-01T00:00:00Z",
            "2024-00-01T00:00:00Z",
            "2024-01-01T24:00:00Z",
            "2024-01-01T00:60:00Z",
            "2024-01-01T00:00:00+25:00",
            "2024-1-001T00:00:00Z",
            "+024-01-01T00:00:00Z",
            "2024-01-01T00:00:00Zulu",
            "1969-12-31T23:59:59Z",
            "é024-01-01T00:00:00Z",
        ] {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}
