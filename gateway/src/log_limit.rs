//! A log line at most so often: what a stranger can provoke must not fill a disk.

use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// Admits one event in each period and counts the others.
#[derive(Debug)]
pub struct LogLimit {
    period: Duration,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    last: Option<Instant>,
    suppressed: u64,
}

impl LogLimit {
    /// One event each `period`.
    pub fn new(period: Duration) -> Self {
        Self { period, state: Mutex::default() }
    }

    /// Whether to log now, and how many events were not logged since the last that was.
    pub fn admit(&self, now: Instant) -> Option<u64> {
        let mut state = self.state.lock();
        if state.last.is_some_and(|last| now.saturating_duration_since(last) < self.period) {
            state.suppressed += 1;
            return None;
        }

        state.last = Some(now);
        Some(std::mem::take(&mut state.suppressed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_is_one_line_and_a_count() {
        let limit = LogLimit::new(Duration::from_secs(10));
        let start = Instant::now();
        assert_eq!(limit.admit(start), Some(0));
        for second in 1..10 {
            assert_eq!(limit.admit(start + Duration::from_secs(second)), None);
        }
        assert_eq!(limit.admit(start + Duration::from_secs(10)), Some(9));
        assert_eq!(limit.admit(start + Duration::from_secs(20)), Some(0));
    }
}
