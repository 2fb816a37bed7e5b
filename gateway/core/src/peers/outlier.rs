//! The ejection of replicas that fail: they are used only after all others for a while. No I/O; the time is passed in.

use std::time::Duration;

use tokio::time::Instant;

/// The duration of the first ejection. Each further failure in a row doubles it.
const MIN_EJECTION: Duration = Duration::from_millis(500);
/// The duration of the longest ejection. After it the replica is used like the others again.
const MAX_EJECTION: Duration = Duration::from_secs(30);

/// Ejects one replica after a failure. An ejected replica is still used if all others decline.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct OutlierDetector {
    failures: u32,
    ejected_until: Option<Instant>,
}

impl OutlierDetector {
    /// Records that the replica did not respond. Returns true if that ejects it; it is false if it was ejected before.
    pub(super) fn record_failure(&mut self, now: Instant) -> bool {
        if self.is_ejected(now) {
            // When a replica stops, many requests fail at once: they count as one failure.
            return false;
        }
        self.failures = self.failures.saturating_add(1);
        let factor = 1u32.checked_shl(self.failures - 1).unwrap_or(u32::MAX);
        self.ejected_until = Some(now + MIN_EJECTION.saturating_mul(factor).min(MAX_EJECTION));
        true
    }

    /// Records that the replica responded.
    pub(super) fn record_success(&mut self) {
        *self = Self::default();
    }

    /// Returns true if the replica is used only after all others.
    pub(super) fn is_ejected(&self, now: Instant) -> bool {
        self.ejected_until.is_some_and(|until| now < until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_in_a_row_double_the_ejection_up_to_thirty_seconds() {
        let mut outlier = OutlierDetector::default();
        let mut now = Instant::now();
        assert!(!outlier.is_ejected(now));
        for expected in [500, 1000, 2000, 4000, 8000, 16_000, 30_000, 30_000] {
            assert!(outlier.record_failure(now));
            let expected = Duration::from_millis(expected);
            assert!(outlier.is_ejected(now + expected - Duration::from_millis(1)));
            assert!(!outlier.is_ejected(now + expected), "{expected:?}");
            now += expected;
        }
    }

    #[test]
    fn failures_during_an_ejection_count_as_one() {
        let (mut outlier, now) = (OutlierDetector::default(), Instant::now());
        assert!(outlier.record_failure(now));
        assert!(!(0..50).any(|_| outlier.record_failure(now)));
        assert!(!outlier.is_ejected(now + MIN_EJECTION));
    }

    #[test]
    fn success_ends_the_ejection() {
        let (mut outlier, now) = (OutlierDetector::default(), Instant::now());
        outlier.record_failure(now);
        outlier.record_success();
        assert!(!outlier.is_ejected(now));
        assert!(outlier.record_failure(now) && !outlier.is_ejected(now + MIN_EJECTION));
    }
}
