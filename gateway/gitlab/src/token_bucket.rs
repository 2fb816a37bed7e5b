//! The limit of requests to GitLab per second.

use std::time::Duration;

use tokio::time::Instant;

/// A token bucket.
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

    /// Returns the time until the bucket has a token.
    pub(super) fn until_next(&self, now: Instant) -> Duration {
        (self.full_at.max(now) + self.interval - now).saturating_sub(self.capacity)
    }

    /// Takes a token, which the bucket has.
    pub(super) fn take(&mut self, now: Instant) {
        self.full_at = self.full_at.max(now) + self.interval;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn burst_is_free_and_then_tokens_come_at_the_rate() {
        let mut now = Instant::now();
        let mut bucket = TokenBucket::new(50, 250, now);
        for _ in 0..250 {
            assert_eq!(bucket.until_next(now), Duration::ZERO);
            bucket.take(now);
        }
        for _ in 0..50 {
            assert_eq!(bucket.until_next(now), Duration::from_millis(20));
            now += Duration::from_millis(20);
            assert_eq!(bucket.until_next(now), Duration::ZERO);
            bucket.take(now);
        }
        now += Duration::from_secs(3600);
        (0..250).for_each(|_| bucket.take(now));
        assert_eq!(bucket.until_next(now), Duration::from_millis(20), "it holds 250 at most");
    }
}
