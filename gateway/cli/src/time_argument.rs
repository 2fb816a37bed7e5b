//! Times on the command line.

use std::time::SystemTime;

/// A text that is no time.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("write a duration such as 2h, or a time such as 2026-11-20T13:00:00Z")]
pub(crate) struct InvalidTime;

/// Parses a time, or the time since then.
pub(crate) fn parse_time(text: &str) -> Result<SystemTime, InvalidTime> {
    if let Some(time) = settings::rfc3339::parse(text) {
        return Ok(time);
    }
    let duration = humantime::parse_duration(text);
    let time = duration.ok().and_then(|duration| SystemTime::now().checked_sub(duration));
    // Times before 1970 cannot be written in a request.
    let time = time.filter(|time| *time >= SystemTime::UNIX_EPOCH);
    time.ok_or(InvalidTime)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn time_is_a_duration_or_a_time() {
        assert_eq!(parse_time("1970-01-01T00:00:07Z"), Ok(SystemTime::UNIX_EPOCH + Duration::from_secs(7)));
        let in_zone = parse_time("1970-01-01T02:00:07+02:00");
        assert_eq!(in_zone, Ok(SystemTime::UNIX_EPOCH + Duration::from_secs(7)));
        let age = parse_time("2h").unwrap().elapsed().unwrap();
        assert!((7200..7300).contains(&age.as_secs()));
        for text in ["yesterday", "999999999h", "900000000years", "-5m", ""] {
            assert!(parse_time(text).is_err(), "{text}");
        }
    }
}
