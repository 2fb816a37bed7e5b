//! Counts the requests of one connection, to find out when it is idle.

use std::{
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Duration,
};

use tokio::time::sleep;

/// The requests of one connection that have started and ended.
#[derive(Debug, Default)]
pub(crate) struct RequestCount {
    started: AtomicU64,
    ended: AtomicU64,
}

impl RequestCount {
    /// Counts a request as in flight.
    pub(crate) fn start(&self) {
        self.started.fetch_add(1, Relaxed);
    }

    /// Counts a request as ended.
    pub(crate) fn end(&self) {
        self.ended.fetch_add(1, Relaxed);
    }

    /// Returns the number of requests so far, or `None` if one is in flight.
    pub(crate) fn before_next(&self) -> Option<u64> {
        let started = self.started.load(Relaxed);
        (started == self.ended.load(Relaxed)).then_some(started)
    }

    /// Completes when no request was in flight for `limit`, and at the latest after half of `limit` more.
    ///
    /// It samples the counters, so that a request neither wakes a task nor sets a timer.
    pub(crate) async fn idle(&self, limit: Duration) {
        let mut samples = 0;
        while samples < 2 {
            let started = self.started.load(Relaxed);
            let idle = started == self.ended.load(Relaxed);
            sleep(limit / 2).await;
            samples = if idle && started == self.started.load(Relaxed) { samples + 1 } else { 0 };
        }
    }
}
