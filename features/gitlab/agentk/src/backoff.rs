//! The waits between failed RPCs. The caller supplies the time, random numbers and waits.

use std::time::Duration;

use tokio::time::Instant;

/// The parameters of a [`RetryBackoff`].
#[derive(Clone, Copy, Debug)]
pub(super) struct BackoffConfig {
    /// The first wait.
    pub(super) first: Duration,
    /// The longest wait, without jitter.
    pub(super) max: Duration,
    /// The factor between two waits.
    pub(super) factor: f64,
    /// The largest part of a wait that is added to it or subtracted from it.
    pub(super) jitter: f64,
    /// The time without a failure after which a new series begins.
    pub(super) reset: Duration,
}

/// Exponential backoff with jitter, and the parameters of GitLab's agentk.
#[derive(Clone, Copy, Debug)]
pub(super) struct RetryBackoff {
    config: BackoffConfig,
    next: Duration,
    last_failure: Option<Instant>,
}

impl RetryBackoff {
    /// Returns a backoff that has seen no failure.
    pub(super) fn new(config: BackoffConfig) -> Self {
        Self { config, next: config.first, last_failure: None }
    }

    /// Returns the wait after a failure. `random` is in [0, 1).
    pub(super) fn failed(&mut self, now: Instant, random: f64) -> Duration {
        let BackoffConfig { first, max, factor, jitter, reset } = self.config;
        if self.last_failure.is_some_and(|last| now.duration_since(last) > self.next + reset) {
            self.next = first;
        }
        self.last_failure = Some(now);
        let wait = self.next;
        self.next = wait.mul_f64(factor).min(max);
        wait.mul_f64(1.0 + jitter * (2.0 * random.clamp(0.0, 1.0) - 1.0))
    }

    /// Begins a new series.
    pub(super) fn succeeded(&mut self) {
        *self = Self::new(self.config);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONFIG: BackoffConfig = BackoffConfig {
        first: Duration::from_secs(1),
        max: Duration::from_secs(20),
        factor: 1.6,
        jitter: 0.2,
        reset: Duration::from_secs(25),
    };

    #[test]
    fn wait_grows_up_to_its_maximum() {
        let (mut backoff, now) = (RetryBackoff::new(CONFIG), Instant::now());
        let waits: Vec<_> = (0..9).map(|_| backoff.failed(now, 0.5).as_millis()).collect();
        assert_eq!(waits, [1000, 1600, 2560, 4096, 6553, 10485, 16777, 20000, 20000]);
    }

    #[test]
    fn jitter_is_a_part_of_the_wait() {
        let now = Instant::now();
        assert_eq!(RetryBackoff::new(CONFIG).failed(now, 0.0).as_millis(), 800);
        assert_eq!(RetryBackoff::new(CONFIG).failed(now, 1.0).as_millis(), 1200);
    }

    #[test]
    fn series_begins_again_after_a_time_without_failure_or_a_success() {
        let (mut backoff, now) = (RetryBackoff::new(CONFIG), Instant::now());
        backoff.failed(now, 0.5);
        // The wait before the attempt is no time without failure.
        assert_eq!(backoff.failed(now + Duration::from_secs(26), 0.5).as_millis(), 1600);
        assert_eq!(backoff.failed(now + Duration::from_secs(60), 0.5).as_millis(), 1000);
        backoff.succeeded();
        assert_eq!(backoff.failed(now + Duration::from_secs(61), 0.5).as_millis(), 1000);
    }
}
