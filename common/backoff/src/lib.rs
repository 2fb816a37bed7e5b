//! The waits between attempts to open a tunnel, at the end that dials. The caller supplies random numbers and waits.
#![warn(missing_docs)]

use std::time::Duration;

/// The upper bound of the first wait.
const FIRST_WAIT: Duration = Duration::from_millis(500);
/// The longest wait. With half of it as jitter, ten thousand agents return to a restarted kas over 10 s.
const MAX_WAIT: Duration = Duration::from_secs(20);
/// The lifetime of a tunnel whose loss begins a new series of waits. With less, a tunnel that is lost right after it was
/// accepted would be dialled without a pause.
const STABLE_LIFETIME: Duration = Duration::from_secs(1);
/// The longest wait after the loss of such a tunnel. It spreads the agents of a lost replica in time.
const MAX_REDIAL_WAIT: Duration = Duration::from_millis(250);
/// The number of attempts, at intervals of at most `FIRST_WAIT`, while kas refuses connections: a process restarts within
/// seconds, and a refused connection is cheap.
const QUICK_ATTEMPTS: u32 = 10;
/// The longest `Retry-After` that is obeyed, so that a mistyped one does not disconnect a cluster for a day.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(5 * 60);

/// Exponential backoff with jitter: ½ to 1 of 0.5 s, 1 s, 2 s, … 20 s.
#[derive(Clone, Copy, Debug, Default)]
pub struct Backoff {
    failures: u32,
    quick: u32,
}

impl Backoff {
    /// Returns the wait after a failed attempt. `random` is in [0, 1).
    ///
    /// `retry_after` of the other end is a lower bound. The usual wait is added, so that agents with the same `Retry-After`
    /// do not return at the same moment.
    pub fn failed(&mut self, retry_after: Option<Duration>, random: f64) -> Duration {
        let doubled = FIRST_WAIT.saturating_mul(1 << self.failures.min(16));
        self.failures = self.failures.saturating_add(1);

        retry_after.unwrap_or_default().min(MAX_RETRY_AFTER) + jittered(doubled.min(MAX_WAIT), random)
    }

    /// Returns the wait after a connection that was refused, or broke at once.
    pub fn refused(&mut self, random: f64) -> Duration {
        if self.quick == QUICK_ATTEMPTS {
            return self.failed(None, random);
        }
        self.quick += 1;
        jittered(FIRST_WAIT, random)
    }

    /// Returns the wait after the loss of a tunnel with this lifetime.
    pub fn lost(&mut self, lifetime: Duration, random: f64) -> Duration {
        if lifetime < STABLE_LIFETIME {
            return self.failed(None, random);
        }
        *self = Self::default();
        MAX_REDIAL_WAIT.mul_f64(random.clamp(0.0, 1.0))
    }

    /// Begins a new series if the tunnel that is replaced has lived long enough.
    pub fn replaced(&mut self, lifetime: Duration) {
        if lifetime >= STABLE_LIFETIME {
            *self = Self::default();
        }
    }
}

fn jittered(wait: Duration, random: f64) -> Duration {
    wait.mul_f64(0.5 + random.clamp(0.0, 1.0) / 2.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waits(backoff: &mut Backoff, random: f64, count: usize) -> Vec<u128> {
        (0..count).map(|_| backoff.failed(None, random).as_millis()).collect()
    }

    #[test]
    fn wait_doubles_up_to_twenty_seconds() {
        let mut slow = Backoff::default();
        assert_eq!(waits(&mut slow, 1.0, 8), [500, 1000, 2000, 4000, 8000, 16000, 20000, 20000]);
        assert_eq!(waits(&mut slow, 1.0, 100).last(), Some(&20000));
        let mut quick = Backoff::default();
        assert_eq!(waits(&mut quick, 0.0, 4), [250, 500, 1000, 2000]);
    }

    #[test]
    fn loss_of_a_stable_tunnel_begins_a_new_series() {
        let mut backoff = Backoff::default();
        waits(&mut backoff, 1.0, 4);
        assert_eq!(backoff.lost(Duration::from_millis(999), 1.0).as_millis(), 8000);
        assert_eq!(backoff.lost(Duration::from_secs(1), 1.0).as_millis(), 250);
        assert_eq!(backoff.lost(Duration::from_secs(1), 0.0).as_millis(), 0);
        assert_eq!(waits(&mut backoff, 1.0, 1), [500]);
    }

    #[test]
    fn refused_connection_is_retried_quickly_ten_times() {
        let mut backoff = Backoff::default();
        let waits: Vec<_> = (0..14).map(|_| backoff.refused(1.0).as_millis()).collect();
        assert_eq!(waits[..10], [500; 10]);
        assert_eq!(waits[10..], [500, 1000, 2000, 4000]);
        backoff.lost(STABLE_LIFETIME, 0.0);
        assert_eq!(backoff.refused(0.0).as_millis(), 250);
    }

    #[test]
    fn retry_after_is_a_lower_bound_with_a_maximum() {
        let mut backoff = Backoff::default();
        assert_eq!(backoff.failed(Some(Duration::from_secs(60)), 0.0).as_millis(), 60_250);
        assert_eq!(backoff.failed(Some(Duration::from_secs(86_400)), 1.0).as_secs(), 301);
    }
}
