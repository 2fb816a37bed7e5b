//! Rate limits by GCRA, the generic cell rate algorithm (ITU-T I.371).
//!
//! The limiters admit a burst and then a steady rate. [`RateLimiter`] limits one stream of events of this replica.
//! [`KeyedRateLimiter`] has one limit for each key, and counts over all replicas while Redis answers. [`AddressRateLimiter`] has
//! two limits for each address.

mod address;

use std::{collections::HashMap, time::Duration};

use parking_lot::Mutex;
use tokio::time::Instant;

pub use self::address::AddressRateLimiter;
use crate::{gcra::Gcra, redis::RedisStore};

/// The highest number of keys in the memory of a limiter. Beyond it, keys without a debt are removed, then
/// all keys.
const MAX_KEYS: usize = 100_000;
/// The longest wait that a [`RateLimiter`] returns. The events that it refuses beyond this come back in one moment and
/// are then given other waits.
const MAX_WAIT: Duration = Duration::from_secs(60);

/// Limits the rate of events, and spreads the retries of refused ones.
#[derive(Debug)]
pub struct RateLimiter {
    gcra: Gcra,
    start: Instant,
    arrival: Duration,
    /// The time of the last retry that was assigned.
    last_retry: Duration,
}

/// Limits the rate of events for each key, over all replicas that share a Redis.
///
/// Without Redis, or while it does not answer, each replica counts for itself.
#[derive(Debug)]
pub struct KeyedRateLimiter {
    gcra: Gcra,
    start: Instant,
    /// The theoretical arrival time of each key.
    arrivals: Mutex<HashMap<[u8; 16], Duration>>,
    redis: Option<RedisStore>,
}

impl RateLimiter {
    /// Creates a limiter that admits `per_second` events in each second, and as many in a burst.
    pub fn new(per_second: u32, now: Instant) -> Self {
        let gcra = Gcra::new(per_second, Duration::from_secs(1));
        Self { gcra, start: now, arrival: Duration::ZERO, last_retry: Duration::ZERO }
    }

    /// Admits an event, or returns after which time to retry it.
    ///
    /// Retries are assigned one after the other at the steady rate, up to 60 s from now: thousands of agents that were
    /// refused at once do not return at once.
    pub fn admit(&mut self, now: Instant) -> Result<(), Duration> {
        let now = now.saturating_duration_since(self.start);
        if let Ok(arrival) = self.gcra.admit(self.arrival, now) {
            self.arrival = arrival;
            return Ok(());
        }
        self.last_retry = (self.last_retry.max(now) + self.gcra.interval).min(now + MAX_WAIT);
        Err(self.last_retry - now)
    }
}

impl KeyedRateLimiter {
    /// Creates a limiter that admits `limit` events of each key in `period`, over all replicas that share `redis`.
    pub fn new(limit: u32, period: Duration, redis: Option<RedisStore>) -> Self {
        let gcra = Gcra::new(limit, period);
        Self { gcra, start: Instant::now(), arrivals: Mutex::default(), redis }
    }

    /// Admits an event of the key, or returns how long to wait.
    ///
    /// The key becomes part of a key in Redis: pass a digest from which a secret cannot be recovered.
    pub async fn admit(&self, key: [u8; 16]) -> Result<(), Duration> {
        if let Some(redis) = &self.redis
            && let Ok(admitted) = redis.admit(key, self.gcra).await
        {
            return admitted;
        }

        self.admit_at(key, self.start.elapsed())
    }

    /// Returns how long to wait if an event of the key would not be admitted now. It counts nothing, and does not use Redis.
    pub fn check(&self, key: [u8; 16]) -> Result<(), Duration> {
        match self.arrivals.lock().get(&key) {
            Some(arrival) => self.gcra.admit(*arrival, self.start.elapsed()).map(drop),
            None => Ok(()),
        }
    }

    fn admit_at(&self, key: [u8; 16], now: Duration) -> Result<(), Duration> {
        let mut arrivals = self.arrivals.lock();
        if arrivals.len() >= MAX_KEYS {
            arrivals.retain(|_, arrival| *arrival > now);
        }
        if arrivals.len() >= MAX_KEYS {
            arrivals.clear();
        }
        let arrival = arrivals.entry(key).or_default();
        *arrival = self.gcra.admit(*arrival, now)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RATE: u32 = 100;
    const MINUTE: Duration = Duration::from_secs(60);

    fn admitted(limiter: &mut RateLimiter, now: Instant, events: usize) -> usize {
        (0..events).filter(|_| limiter.admit(now).is_ok()).count()
    }

    #[test]
    fn limiter_admits_a_burst_then_a_steady_rate() {
        let start = Instant::now();
        let mut limiter = RateLimiter::new(RATE, start);
        assert_eq!(admitted(&mut limiter, start, 1000), 100);
        let mut more = 0;
        for millisecond in 1..=2000 {
            more += admitted(&mut limiter, start + Duration::from_millis(millisecond), 10);
        }
        assert_eq!(more, 200);
        assert_eq!(admitted(&mut limiter, start + MINUTE, 1000), 100, "burst after an idle minute");
    }

    #[test]
    fn limiter_admits_every_assigned_retry() {
        let start = Instant::now();
        let mut limiter = RateLimiter::new(RATE, start);
        let mut waits: Vec<Duration> = (0..1000).filter_map(|_| limiter.admit(start).err()).collect();
        assert_eq!(waits.len(), 900);
        waits.sort();
        assert_eq!(waits.last(), Some(&Duration::from_secs(9)));
        // Rounded up to seconds as in Retry-After: each burst of a second is admitted whole.
        let refused = waits.iter().filter(|wait| {
            let seconds = wait.as_millis().div_ceil(1000);
            limiter.admit(start + Duration::from_secs(seconds as u64)).is_err()
        });
        assert_eq!(refused.count(), 0);
    }

    #[test]
    fn limiter_wait_is_bounded() {
        let start = Instant::now();
        let mut limiter = RateLimiter::new(RATE, start);
        let longest = (0..100_000).filter_map(|_| limiter.admit(start).err()).max();
        assert_eq!(longest, Some(MAX_WAIT));
        assert!(limiter.admit(start + Duration::from_secs(1)).is_ok());
    }

    #[test]
    fn keyed_limiter_admits_a_burst_then_a_steady_rate_for_each_key() {
        let limiter = KeyedRateLimiter::new(RATE, MINUTE, None);
        let second = Duration::from_secs(1);
        let later = second + Duration::from_millis(600);
        assert!((0..100).all(|_| limiter.admit_at([1; 16], second).is_ok()));
        assert_eq!(limiter.admit_at([1; 16], second).unwrap_err(), Duration::from_millis(600));
        assert!(limiter.admit_at([2; 16], second).is_ok(), "another key");
        assert!(limiter.admit_at([1; 16], later).is_ok());
        assert!(limiter.admit_at([1; 16], later).is_err());
        assert!((0..100).all(|_| limiter.admit_at([1; 16], 100 * second).is_ok()));
    }

    #[tokio::test(start_paused = true)]
    async fn keyed_limiter_check_counts_nothing() {
        let limiter = KeyedRateLimiter::new(1, MINUTE, None);
        assert!((0..10).all(|_| limiter.check([1; 16]).is_ok()));
        limiter.admit([1; 16]).await.unwrap();
        assert_eq!(limiter.check([1; 16]).unwrap_err(), MINUTE);
        assert!(limiter.check([2; 16]).is_ok(), "another key");
        tokio::time::advance(MINUTE).await;
        assert!((0..10).all(|_| limiter.check([1; 16]).is_ok()));
    }

    #[test]
    fn keyed_limiter_memory_is_bounded() {
        let limiter = KeyedRateLimiter::new(1, MINUTE, None);
        for n in 0..2 * MAX_KEYS as u128 {
            assert!(limiter.admit_at(n.to_be_bytes(), Duration::from_micros(1)).is_ok());
        }
        assert!(limiter.arrivals.lock().len() <= MAX_KEYS);
    }
}
