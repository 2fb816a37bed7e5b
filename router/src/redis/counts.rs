//! What a store counts, for whoever shows it to scrapers.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The counters.
#[derive(Debug, Default)]
pub struct Counts {
    /// Commands sent to Redis; a script is one.
    pub commands: Count,
    /// Commands that failed.
    pub errors: Count,
    /// Connections to Redis that were made, or tried.
    pub connections: Count,
    /// Texts in Redis that cannot be used: garbage, of another version, out of bounds.
    pub rejected: Count,
    /// Lookups that were answered from memory.
    pub hits: Count,
    /// Lookups for which Redis was asked.
    pub misses: Count,
    /// Of those, the ones that it did not answer, and that an old answer had to serve.
    pub stale: Count,
    /// Of those, the ones that it did not answer, and nothing could serve.
    pub unavailable: Count,
}

/// One of them.
#[derive(Debug, Default)]
pub struct Count(AtomicU64);

impl Count {
    /// The count now.
    pub fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }

    pub(crate) fn add(&self) {
        self.0.fetch_add(1, Relaxed);
    }
}
