//! A log line of each kind at most so often: what a stranger can provoke must not fill a disk.

use std::{
    collections::HashMap,
    hash::Hash,
    time::{Duration, Instant},
};

use parking_lot::Mutex;

/// Admits one event of each kind in each period and counts the others. There must be few kinds.
#[derive(Debug)]
pub struct LogLimit<K> {
    period: Duration,
    kinds: Mutex<HashMap<K, State>>,
}

#[derive(Debug)]
struct State {
    last: Instant,
    suppressed: u64,
}

impl<K: Eq + Hash> LogLimit<K> {
    /// One event of a kind each `period`.
    pub fn new(period: Duration) -> Self {
        Self { period, kinds: Mutex::default() }
    }

    /// Whether to log now, and how many events of this kind were not logged since the last that was.
    pub fn admit(&self, kind: K, now: Instant) -> Option<u64> {
        let mut kinds = self.kinds.lock();
        let Some(state) = kinds.get_mut(&kind) else {
            kinds.insert(kind, State { last: now, suppressed: 0 });
            return Some(0);
        };
        if now.saturating_duration_since(state.last) < self.period {
            state.suppressed += 1;
            return None;
        }

        state.last = now;
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
        assert_eq!(limit.admit("a", start), Some(0));
        for second in 1..10 {
            assert_eq!(limit.admit("a", start + Duration::from_secs(second)), None);
        }
        assert_eq!(limit.admit("b", start + Duration::from_secs(9)), Some(0), "another kind");
        assert_eq!(limit.admit("a", start + Duration::from_secs(10)), Some(9));
        assert_eq!(limit.admit("a", start + Duration::from_secs(20)), Some(0));
    }
}
