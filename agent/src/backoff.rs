//! How long to wait before the next attempt. Arithmetic only: the caller brings the randomness and the clock.

use std::time::Duration;

/// The first wait, at most.
const FIRST: Duration = Duration::from_millis(500);
/// The longest wait. With half of it as jitter, ten thousand agents come back to a restarted kas over 10 s.
const LONGEST: Duration = Duration::from_secs(20);
/// What worked for this long ends a series of failures. Less would let a tunnel that is accepted and lost at once be
/// dialled twice a second for ever.
const STABLE: Duration = Duration::from_secs(30);
/// The longest `Retry-After` that is believed: a mistyped one should not take a cluster off for a day.
const LONGEST_RETRY_AFTER: Duration = Duration::from_secs(5 * 60);

/// Exponential, with jitter: ½ to 1 of 0.5 s, 1 s, 2 s, … 20 s.
#[derive(Clone, Copy, Debug, Default)]
pub struct Backoff {
    failures: u32,
}

impl Backoff {
    /// Another failure: the wait before the next attempt. `random` is from [0, 1).
    ///
    /// `asked` is the other end's `Retry-After`. It is a lower bound; the usual wait comes on top, so that all who
    /// were told the same do not come at the same moment.
    pub fn failed(&mut self, asked: Option<Duration>, random: f64) -> Duration {
        let doubled = FIRST.saturating_mul(1 << self.failures.min(16));
        self.failures = self.failures.saturating_add(1);
        let wait = doubled.min(LONGEST).mul_f64(0.5 + random.clamp(0.0, 1.0) / 2.0);

        asked.unwrap_or_default().min(LONGEST_RETRY_AFTER) + wait
    }

    /// What was attempted worked for this long, and ended.
    pub fn lived(&mut self, time: Duration) {
        if time >= STABLE {
            self.failures = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waits(backoff: &mut Backoff, random: f64, count: usize) -> Vec<u128> {
        (0..count).map(|_| backoff.failed(None, random).as_millis()).collect()
    }

    #[test]
    fn doubles_up_to_twenty_seconds() {
        let mut slow = Backoff::default();
        assert_eq!(waits(&mut slow, 1.0, 8), [500, 1000, 2000, 4000, 8000, 16000, 20000, 20000]);
        assert_eq!(waits(&mut slow, 1.0, 100).last(), Some(&20000));
        let mut quick = Backoff::default();
        assert_eq!(waits(&mut quick, 0.0, 4), [250, 500, 1000, 2000]);
    }

    #[test]
    fn only_what_was_stable_ends_a_series() {
        let mut backoff = Backoff::default();
        waits(&mut backoff, 1.0, 5);
        backoff.lived(Duration::from_secs(29));
        assert_eq!(waits(&mut backoff, 1.0, 1), [16000]);
        backoff.lived(Duration::from_secs(30));
        assert_eq!(waits(&mut backoff, 1.0, 1), [500]);
    }

    #[test]
    fn never_earlier_than_asked_and_never_much_later() {
        let mut backoff = Backoff::default();
        assert_eq!(backoff.failed(Some(Duration::from_secs(60)), 0.0).as_millis(), 60_250);
        assert_eq!(backoff.failed(Some(Duration::from_secs(86_400)), 1.0).as_secs(), 301);
    }
}
