//! Decides whether a failed request to GitLab is sent again, and after which time.

use std::time::Duration;

/// The attempts after the first one.
const MAX_RETRIES: u32 = 4;
const FIRST_DELAY: Duration = Duration::from_millis(100);
const MAX_DELAY: Duration = Duration::from_secs(30);

/// Returns how long to wait after the attempt `attempt`, from 0, or `None` if there is no other attempt.
///
/// `requested` is the `Retry-After` of GitLab, and `jitter` a number between 0 and 1.
pub(super) fn delay(attempt: u32, requested: Option<Duration>, jitter: f64) -> Option<Duration> {
    if attempt >= MAX_RETRIES {
        return None;
    }
    let longest = (FIRST_DELAY * 2_u32.pow(attempt)).min(MAX_DELAY);
    let delay = longest.mul_f64(0.5 + jitter.clamp(0.0, 1.0) / 2.0);
    Some(delay.max(requested.unwrap_or(Duration::ZERO)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delay_doubles_and_ends() {
        let delays: Vec<_> = (0..6).map(|attempt| delay(attempt, None, 1.0)).collect();
        let millis = |millis| Some(Duration::from_millis(millis));
        assert_eq!(delays, [millis(100), millis(200), millis(400), millis(800), None, None]);
        assert_eq!(delay(0, None, 0.0), millis(50));
    }

    #[test]
    fn delay_is_at_least_the_requested_one() {
        assert_eq!(delay(0, Some(Duration::from_secs(7)), 0.5), Some(Duration::from_secs(7)));
    }
}
