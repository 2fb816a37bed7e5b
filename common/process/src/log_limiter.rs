//! A limit on repeated log lines, so that a remote host cannot fill a disk.

use std::{
    collections::HashMap,
    hash::Hash,
    mem,
    time::{Duration, Instant},
};

use parking_lot::Mutex;

/// Admits one event of each kind per period and counts the others. It keeps every kind, so there must be few.
#[derive(Debug)]
pub struct LogLimiter<K> {
    period: Duration,
    kinds: Mutex<HashMap<K, KindState>>,
}

#[derive(Debug)]
struct KindState {
    last_admitted: Instant,
    suppressed: u64,
}

impl<K: Eq + Hash> LogLimiter<K> {
    /// Creates a limiter that admits one event of each kind per `period`.
    pub fn new(period: Duration) -> Self {
        Self { period, kinds: Mutex::default() }
    }

    /// Returns the number of events of this kind that were suppressed since the last admitted one, or `None` if this event
    /// is suppressed, too.
    pub fn admit(&self, kind: K, now: Instant) -> Option<u64> {
        let mut kinds = self.kinds.lock();
        let Some(state) = kinds.get_mut(&kind) else {
            kinds.insert(kind, KindState { last_admitted: now, suppressed: 0 });
            return Some(0);
        };
        if now.saturating_duration_since(state.last_admitted) < self.period {
            state.suppressed += 1;
            return None;
        }

        state.last_admitted = now;
        Some(mem::take(&mut state.suppressed))
    }

    /// Forgets all events, so that the next one of each kind is admitted.
    pub fn reset(&self) {
        self.kinds.lock().clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_event_per_kind_and_period_is_admitted() {
        let limiter = LogLimiter::new(Duration::from_secs(10));
        let start = Instant::now();
        assert_eq!(limiter.admit("a", start), Some(0));
        for second in 1..10 {
            assert_eq!(limiter.admit("a", start + Duration::from_secs(second)), None);
        }
        assert_eq!(limiter.admit("b", start + Duration::from_secs(9)), Some(0), "another kind");
        assert_eq!(limiter.admit("a", start + Duration::from_secs(10)), Some(9));
        assert_eq!(limiter.admit("a", start + Duration::from_secs(20)), Some(0));
        limiter.reset();
        assert_eq!(limiter.admit("a", start + Duration::from_secs(20)), Some(0), "events were forgotten");
    }
}
