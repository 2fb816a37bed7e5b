//! How often somebody may come: over all replicas where they share Redis, and on each by itself where they do not, or
//! while Redis is down.

use std::{collections::HashMap, time::Duration};

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::redis::RedisStore;

/// Most names that are remembered here; those that owe nothing are forgotten first, then everybody.
const MOST_NAMES: usize = 100_000;

/// So many in a while: all of them at once, or evenly, and then as time passes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pace {
    /// Microseconds that each one costs.
    pub(crate) cost: u64,
    /// Microseconds that may be owed.
    pub(crate) credit: u64,
}

/// A limit for whoever is named by a digest.
#[derive(Debug)]
pub struct RateLimit {
    pace: Pace,
    start: Instant,
    /// When who owes something will be quits, in microseconds since the start.
    due: Mutex<HashMap<[u8; 16], u64>>,
    redis: Option<RedisStore>,
}

impl Pace {
    fn new(most: u32, period: Duration) -> Self {
        let credit = period.as_micros() as u64;
        Self { cost: (credit / u64::from(most.max(1))).max(1), credit }
    }

    /// When somebody who is quits at `due` will be quits if they come now, or how long they are to wait.
    fn admit(self, due: u64, now: u64) -> Result<u64, Duration> {
        let due = due.max(now) + self.cost;
        match (due - now).checked_sub(self.credit) {
            None | Some(0) => Ok(due),
            Some(over) => Err(Duration::from_micros(over)),
        }
    }
}

impl RateLimit {
    /// So many in `period`, over all replicas that share this Redis.
    pub fn new(most: u32, period: Duration, redis: Option<RedisStore>) -> Self {
        let pace = Pace::new(most, period);
        Self { pace, start: Instant::now(), due: Mutex::default(), redis }
    }

    /// Counts one, or says how long to wait. `digest` names somebody and gives nothing away.
    pub async fn admit(&self, digest: [u8; 16]) -> Result<(), Duration> {
        if let Some(redis) = &self.redis
            && let Ok(admitted) = redis.admit(digest, self.pace).await
        {
            return admitted;
        }

        self.admit_at(digest, self.start.elapsed().as_micros() as u64)
    }

    fn admit_at(&self, digest: [u8; 16], now: u64) -> Result<(), Duration> {
        let mut due = self.due.lock();
        if due.len() >= MOST_NAMES {
            due.retain(|_, due| *due > now);
        }
        if due.len() >= MOST_NAMES {
            due.clear();
        }
        let theirs = due.entry(digest).or_default();
        *theirs = self.pace.admit(*theirs, now)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    #[test]
    fn so_many_at_once_and_then_as_time_passes() {
        let limit = RateLimit::new(100, MINUTE, None);
        let second = 1_000_000;
        assert!((0..100).all(|_| limit.admit_at([1; 16], second).is_ok()));
        assert_eq!(limit.admit_at([1; 16], second).unwrap_err(), Duration::from_millis(600));
        assert!(limit.admit_at([2; 16], second).is_ok(), "another one's are their own");
        assert!(limit.admit_at([1; 16], second + 600_000).is_ok());
        assert!(limit.admit_at([1; 16], second + 600_000).is_err());
        assert!((0..100).all(|_| limit.admit_at([1; 16], 100 * second).is_ok()));
    }

    #[test]
    fn names_cost_a_bounded_memory() {
        let limit = RateLimit::new(1, MINUTE, None);
        for n in 0..2 * MOST_NAMES as u128 {
            assert!(limit.admit_at(n.to_be_bytes(), 1).is_ok());
        }
        assert!(limit.due.lock().len() <= MOST_NAMES);
    }
}
