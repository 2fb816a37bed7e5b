//! The rate of reports.

use std::time::{Duration, SystemTime};

/// A bucket of tokens that fills with time.
#[derive(Clone, Debug)]
pub(crate) struct ReportRate {
    burst: u32,
    period: Duration,
    tokens: u32,
    /// The time at which the last token was added.
    filled: SystemTime,
}

impl ReportRate {
    /// Returns a full bucket, which gets a token each `period`.
    pub(crate) fn new(burst: u32, period: Duration) -> Self {
        Self { burst, period, tokens: burst, filled: SystemTime::UNIX_EPOCH }
    }

    /// Takes a token if there is one.
    pub(crate) fn try_take(&mut self, now: SystemTime) -> bool {
        let elapsed = now.duration_since(self.filled).unwrap_or_default();
        let new = elapsed.as_nanos() / self.period.as_nanos();
        let new = u32::try_from(new).unwrap_or(u32::MAX);
        if self.tokens.saturating_add(new) >= self.burst {
            (self.tokens, self.filled) = (self.burst, now);
        } else {
            self.tokens += new;
            self.filled += self.period * new;
        }
        // A clock that was set back must not stop all reports.
        self.filled = self.filled.min(now);
        let taken = self.tokens > 0;
        self.tokens -= u32::from(taken);
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn burst_then_steady_rate() {
        let start = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000);
        let mut rate = ReportRate::new(3, Duration::from_secs(1));
        let mut taken = |after: u64, attempts: usize| {
            (0..attempts).filter(|_| rate.try_take(start + Duration::from_secs(after))).count()
        };
        assert_eq!((taken(0, 10), taken(0, 10), taken(2, 10), taken(100, 10)), (3, 0, 2, 3));
        assert_eq!((taken(50, 10), taken(52, 10)), (0, 2), "after the clock was set back");
    }
}
