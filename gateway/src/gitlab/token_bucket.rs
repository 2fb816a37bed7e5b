//! The limit of requests to GitLab per second.

use std::time::Duration;

use tokio::time::Instant;

/// A token bucket whose takers wait for their turn.
#[derive(Clone, Copy, Debug)]
pub(super) struct TokenBucket {
    /// The time in which one token is added.
    interval: Duration,
    /// The time in which an empty bucket fills.
    capacity: Duration,
    /// The time at which the bucket is full again.
    full_at: Instant,
}

impl TokenBucket {
    /// Creates a full bucket of `size` tokens, to which `per_second` tokens are added per second.
    pub(super) fn new(per_second: u32, size: u32, now: Instant) -> Self {
        let interval = Duration::from_secs(1) / per_second.max(1);
        Self { interval, capacity: interval * size.max(1), full_at: now }
    }

    /// Takes a token, and returns how long to wait before its use.
    ///
    /// # Errors
    ///
    /// The wait, which would be longer than `longest`. No token is taken then.
    pub(super) fn take(&mut self, now: Instant, longest: Duration) -> Result<Duration, Duration> {
        let full_at = self.full_at.max(now) + self.interval;
        let wait = (full_at - now).saturating_sub(self.capacity);
        if wait > longest {
            return Err(wait);
        }
        self.full_at = full_at;
        Ok(wait)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn burst_is_free_and_later_takers_wait_in_turn() {
        let now = Instant::now();
        let mut bucket = TokenBucket::new(50, 250, now);
        assert!((0..250).all(|_| bucket.take(now, SECOND) == Ok(Duration::ZERO)));
        for turn in 1..=50 {
            assert_eq!(bucket.take(now, SECOND), Ok(Duration::from_millis(20 * turn)));
        }
        assert_eq!(bucket.take(now, SECOND), Err(Duration::from_millis(1020)), "it takes no token");
        assert_eq!(bucket.take(now, SECOND), Err(Duration::from_millis(1020)));
        assert_eq!(bucket.take(now + 2 * SECOND, SECOND), Ok(Duration::ZERO));
    }
}
