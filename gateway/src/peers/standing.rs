//! Whether a replica was good for anything lately: pure, time is passed in.

use std::time::Duration;

use tokio::time::Instant;

/// How long the first failure counts.
const FIRST: Duration = Duration::from_millis(500);
/// How long any number of failures counts: then it is tried like the others again.
const MOST: Duration = Duration::from_secs(30);

/// What one replica's failures in a row have come to. One that is passed over is asked after all others, not never.
#[derive(Clone, Copy, Debug, Default)]
pub struct Standing {
    failures: u32,
    until: Option<Instant>,
}

impl Standing {
    /// It did not answer. True if it was in good standing before.
    pub fn fail(&mut self, now: Instant) -> bool {
        let news = !self.is_passed_over(now);
        // Many requests fail at once when a replica dies: that is one failure.
        if news {
            self.failures = self.failures.saturating_add(1);
            let doubled = FIRST.saturating_mul(1u32.checked_shl(self.failures - 1).unwrap_or(u32::MAX));
            self.until = Some(now + doubled.min(MOST));
        }
        news
    }

    /// It answered, whatever it said.
    pub fn succeed(&mut self) {
        *self = Self::default();
    }

    /// Whether others are asked before it.
    pub fn is_passed_over(&self, now: Instant) -> bool {
        self.until.is_some_and(|until| now < until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_failure_in_a_row_counts_twice_as_long_up_to_half_a_minute() {
        let mut standing = Standing::default();
        let mut now = Instant::now();
        assert!(!standing.is_passed_over(now));
        for expected in [500, 1000, 2000, 4000, 8000, 16_000, 30_000, 30_000] {
            assert!(standing.fail(now));
            let expected = Duration::from_millis(expected);
            assert!(standing.is_passed_over(now + expected - Duration::from_millis(1)));
            assert!(!standing.is_passed_over(now + expected), "{expected:?}");
            now += expected;
        }
    }

    #[test]
    fn requests_that_fail_together_are_one_failure() {
        let (mut standing, now) = (Standing::default(), Instant::now());
        assert!(standing.fail(now));
        assert!(!(0..50).any(|_| standing.fail(now)));
        assert!(!standing.is_passed_over(now + FIRST));
    }

    #[test]
    fn one_answer_makes_it_good() {
        let (mut standing, now) = (Standing::default(), Instant::now());
        standing.fail(now);
        standing.succeed();
        assert!(!standing.is_passed_over(now));
        assert!(standing.fail(now) && !standing.is_passed_over(now + FIRST));
    }
}
