//! Counters of a [`RedisStore`](super::RedisStore).

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The counters of a [`RedisStore`](super::RedisStore), for the metrics of kas.
#[derive(Debug, Default)]
pub struct RedisMetrics {
    /// Commands sent to Redis; a script counts as one.
    pub commands: RedisCounter,
    /// Commands that failed.
    pub errors: RedisCounter,
    /// Attempts to connect to Redis.
    pub connections: RedisCounter,
    /// Values read from Redis that kas cannot use: malformed, of another version, out of bounds, of another fleet.
    pub rejected: RedisCounter,
    /// Lookups that the cache answered.
    pub hits: RedisCounter,
    /// Lookups that were sent to Redis.
    pub misses: RedisCounter,
    /// Misses that Redis did not answer and an old cache entry did.
    pub stale: RedisCounter,
    /// Misses that Redis did not answer and the cache could not answer.
    pub unavailable: RedisCounter,
}

/// One counter, which only increases.
#[derive(Debug, Default)]
pub struct RedisCounter(AtomicU64);

impl RedisCounter {
    /// Returns the present value.
    pub fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }

    pub(crate) fn increment(&self) {
        self.0.fetch_add(1, Relaxed);
    }
}
