//! Times in the formats of Kubernetes and Prometheus: RFC 3339, Unix seconds, and ages such as `5m`.

use std::time::{SystemTime, UNIX_EPOCH};

const DAY: i64 = 86_400;

/// Returns the current Unix time in seconds, with the fraction.
pub(crate) fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}

/// Returns the current time in the format of `metadata.creationTimestamp`.
pub(crate) fn timestamp() -> String {
    format(now())
}

/// Formats Unix seconds as RFC 3339 in UTC, without a fraction.
pub(crate) fn format(unix: f64) -> String {
    let unix = unix.floor() as i64;
    let (year, month, day) = date(unix.div_euclid(DAY));
    let second = unix.rem_euclid(DAY);
    format!("{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}Z", second / 3600, second / 60 % 60, second % 60)
}

/// Parses an RFC 3339 time with any offset as Unix seconds.
pub(crate) fn parse(text: &str) -> Option<f64> {
    let (date, rest) = text.split_once(['T', 't'])?;
    let mut date = date.splitn(3, '-').map(digits);
    let days = days(date.next()??, date.next()??, date.next()??);
    let zone = rest.find(['Z', 'z', '+', '-'])?;
    let (clock, zone) = rest.split_at(zone);
    let (clock, fraction) = clock.split_once('.').unwrap_or((clock, "0"));
    let mut clock = clock.splitn(3, ':').map(digits);
    let seconds = clock.next()?? * 3600 + clock.next()?? * 60 + clock.next()??;
    digits(fraction)?;
    let offset = match zone.split_at_checked(1)? {
        ("Z" | "z", "") => 0,
        (sign, zone) => {
            let (hours, minutes) = zone.split_once(':')?;
            let offset = digits(hours)? * 3600 + digits(minutes)? * 60;
            if sign == "-" { -offset } else { offset }
        }
    };
    Some((days * DAY + seconds - offset) as f64 + format!("0.{fraction}").parse::<f64>().ok()?)
}

/// Formats an age as `kubectl` does.
pub(crate) fn age(seconds: f64) -> String {
    let seconds = seconds.max(0.0) as u64;
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86_400);
    // The remainder in the next smaller unit.
    let (odd_seconds, odd_minutes, odd_hours) = (seconds % 60, minutes % 60, hours % 24);
    match seconds {
        0..120 => format!("{seconds}s"),
        120..600 if odd_seconds > 0 => format!("{minutes}m{odd_seconds}s"),
        120..10_800 => format!("{minutes}m"),
        10_800..28_800 if odd_minutes > 0 => format!("{hours}h{odd_minutes}m"),
        10_800..172_800 => format!("{hours}h"),
        172_800..691_200 if odd_hours > 0 => format!("{days}d{odd_hours}h"),
        _ => format!("{days}d"),
    }
}

/// Parses at most nine digits, so that sums do not overflow.
fn digits(text: &str) -> Option<i64> {
    let plain = !text.is_empty() && text.len() <= 9 && text.bytes().all(|byte| byte.is_ascii_digit());
    plain.then(|| text.parse().ok()).flatten()
}

/// Converts days since 1970 to year, month and day (Howard Hinnant's `civil_from_days`).
fn date(days: i64) -> (i64, i64, i64) {
    let days = days + 719_468;
    let era = days.div_euclid(146_097);
    let day_of_era = days.rem_euclid(146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * day_of_year + 2) / 153;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    (year, month, day_of_year - (153 * shifted + 2) / 5 + 1)
}

/// Converts year, month and day to days since 1970 (Howard Hinnant's `days_from_civil`).
fn days(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let year_of_era = year.rem_euclid(400);
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    era * 146_097 + year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year - 719_468
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timestamps_round_trip() {
        for unix in [0.0, 951_782_400.0, 1_709_164_799.0, 4_102_444_800.0] {
            assert_eq!(parse(&format(unix)), Some(unix));
        }
        assert_eq!(format(951_782_400.0), "2000-02-29T00:00:00Z");
    }

    #[test]
    fn timestamps_with_offset_and_fraction_are_parsed() {
        assert_eq!(parse("1970-01-01T02:00:00.5+02:00"), Some(0.5));
        assert_eq!(parse("1970-01-01T00:00:00-00:01"), Some(60.0));
        for wrong in ["", "1970-01-01", "1970-01-01T00:00:00", "T:Z", "1970-01-01T00:00:00X", "é-1-1T1:1:1é"]
        {
            assert_eq!(parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn ages_are_formatted_like_kubectl() {
        let ages = [5.0, 119.0, 120.0, 150.0, 700.0, 11_000.0, 90_000.0, 200_000.0].map(age);
        assert_eq!(ages, ["5s", "119s", "2m", "2m30s", "11m", "3h3m", "25h", "2d7h"]);
    }
}
