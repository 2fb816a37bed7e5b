//! Times of objects, in seconds since 1970.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Reads a time as the API server writes it (RFC 3339).
pub(crate) fn seconds(text: &str) -> Option<i64> {
    let since = humantime::parse_rfc3339_weak(text).ok()?.duration_since(UNIX_EPOCH).ok()?;
    since.as_secs().try_into().ok()
}

/// The last second of the year 9999: RFC 3339 has no later one.
const MAX: u64 = 253_402_300_799;

/// Returns a time as RFC 3339, or an empty text for 0, which is no time.
pub(crate) fn text(seconds: i64) -> String {
    let seconds = u64::try_from(seconds).ok().filter(|seconds| (1..=MAX).contains(seconds));
    let since = seconds.map(Duration::from_secs);
    let time = since.and_then(|since| UNIX_EPOCH.checked_add(since));
    time.map_or_else(String::new, |time| humantime::format_rfc3339_seconds(time).to_string())
}

/// Returns the time now.
pub(crate) fn now() -> i64 {
    of(SystemTime::now())
}

/// Waits until a time. The future never completes without one.
pub async fn wait_until(seconds: Option<i64>) {
    let Some(seconds) = seconds else { return std::future::pending().await };
    let rest = u64::try_from(seconds.saturating_sub(now())).unwrap_or(0);
    tokio::time::sleep(Duration::from_secs(rest)).await;
}

/// Returns a time as the system has it.
pub(crate) fn at(seconds: i64) -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(u64::try_from(seconds).unwrap_or(0).min(MAX))
}

/// Returns a time, or 0 if it is before 1970.
pub(crate) fn of(time: SystemTime) -> i64 {
    time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs().try_into().unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_is_written_as_it_is_read() {
        for time in ["2026-01-01T00:00:00Z", "1970-01-01T00:00:01Z"] {
            assert_eq!(text(seconds(time).unwrap()), time);
        }
        assert_eq!(seconds("2026-01-01T00:00:00.123456Z"), seconds("2026-01-01T00:00:00Z"));
        for wrong in ["", "yesterday", "1960-01-01T00:00:00Z"] {
            assert_eq!(seconds(wrong), None, "{wrong}");
        }
        assert_eq!(text(0), "");
        assert_eq!(text(i64::MAX), "");
    }
}
