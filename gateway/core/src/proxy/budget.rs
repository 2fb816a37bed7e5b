//! Limits of the memory and the time of unread responses.
//!
//! An agent may send one stream window of a response before the caller reads any of it. Such windows make a distant cluster
//! fast, and thousands of callers that do not read could exhaust the memory with them. All responses therefore share a
//! budget. When it is exceeded, the largest unread responses are cut.
//!
//! The budget counts payload. Each frame in the buffer of h2 costs 256 bytes besides, so that each check joins the small
//! frames of the responses that are not read.
//!
//! A response that is not read for too long is cut as well. [`kas_listen::io::StallGuard`] monitors only whole connections, and an
//! HTTP/2 caller can keep a connection alive while it never opens the window of one stream.

use std::{
    collections::HashMap,
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use kas_listen::metrics::Limit;
use parking_lot::Mutex;
use tokio::time::{Instant, MissedTickBehavior, interval};
use tunnel::{StreamMonitor, StreamStats};

use crate::metrics::Metrics;

/// The interval between two checks. The budget may be exceeded in the meantime.
const PERIOD: Duration = Duration::from_millis(250);

/// The responses in flight.
#[derive(Debug)]
pub struct ResponseBudget {
    limit: u64,
    read_timeout: Duration,
    responses: Mutex<HashMap<u64, WatchedResponse>>,
    next: AtomicU64,
}

struct WatchedResponse {
    monitor: StreamMonitor,
    /// Releases the guards of the response.
    release: Box<dyn Fn() + Send>,
    last: StreamStats,
    /// The last check at which the caller had read something, or had nothing left to read.
    last_progress: Instant,
}

/// Counts a response in the budget until it is dropped.
#[derive(Debug)]
pub(super) struct BudgetGuard {
    budget: Arc<ResponseBudget>,
    number: u64,
}

impl ResponseBudget {
    /// Returns a budget of `limit` bytes for all responses together. A response that is not read for `read_timeout` is cut.
    pub fn new(limit: u64, read_timeout: Duration) -> Self {
        Self { limit, read_timeout, responses: Mutex::default(), next: AtomicU64::new(0) }
    }

    /// Adds a response. `release` is called after the response was cut, and must not block.
    pub(super) fn add(
        self: &Arc<Self>,
        monitor: StreamMonitor,
        release: impl Fn() + Send + 'static,
    ) -> BudgetGuard {
        let number = self.next.fetch_add(1, Relaxed);
        let response = WatchedResponse {
            monitor,
            release: Box::new(release),
            last: StreamStats::default(),
            last_progress: Instant::now(),
        };
        self.responses.lock().insert(number, response);
        BudgetGuard { budget: Arc::clone(self), number }
    }

    /// Checks the responses regularly and cuts those above a limit. Never completes.
    pub async fn run(&self, metrics: &Metrics) {
        let mut ticks = interval(PERIOD);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let now = ticks.tick().await;
            let held = self.check(now, metrics);
            metrics.bytes_in_flight.set(i64::try_from(held).unwrap_or(i64::MAX));
        }
    }

    /// Cuts the responses above a limit. Returns the unread bytes of all responses before the cut.
    fn check(&self, now: Instant, metrics: &Metrics) -> u64 {
        let mut responses = self.responses.lock();
        let mut holders = Vec::with_capacity(responses.len());
        let mut held = 0;
        let mut cut = Vec::new();
        for (number, response) in responses.iter_mut() {
            let bytes = response.check(now);
            if now.saturating_duration_since(response.last_progress) >= self.read_timeout {
                cut.push((*number, Limit::WriteStall));
                continue;
            }
            held += bytes;
            holders.push((bytes, *number));
        }
        if held > self.limit {
            holders.sort_by_key(|(bytes, _)| std::cmp::Reverse(*bytes));
            let over = over(&holders, held, self.limit);
            cut.extend(over.map(|(_, number)| (*number, Limit::BytesInFlight)));
        }
        // Removed, so that no response is cut twice. Dropped after the lock is released: a response may own the last reference
        // to a tunnel.
        let cut: Vec<_> =
            cut.into_iter().filter_map(|(number, limit)| Some((responses.remove(&number)?, limit))).collect();
        drop(responses);
        for (response, limit) in cut {
            response.cut();
            metrics.count_limit(limit);
        }
        held
    }
}

impl WatchedResponse {
    fn cut(&self) {
        self.monitor.reset();
        (self.release)();
    }

    /// Returns the unread bytes.
    fn check(&mut self, now: Instant) -> u64 {
        let stats = self.monitor.stats();
        if stats.reads != self.last.reads || stats.reader_waiting {
            self.last_progress = now;
        }
        if stats.unread > 0 {
            self.monitor.compact();
        }
        self.last = stats;
        stats.unread as u64
    }
}

impl fmt::Debug for WatchedResponse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WatchedResponse").field("last", &self.last).finish_non_exhaustive()
    }
}

/// Returns the first of `holders`, as many as must be cut so that the rest fits into `limit`.
fn over<T>(holders: &[(u64, T)], held: u64, limit: u64) -> impl Iterator<Item = &(u64, T)> {
    let mut held = held;
    holders.iter().take_while(move |(bytes, _)| {
        let over = held > limit;
        held -= bytes;
        over
    })
}

impl Drop for BudgetGuard {
    fn drop(&mut self) {
        let response = self.budget.responses.lock().remove(&self.number);
        // After the lock is released: the response may own the last reference to a tunnel.
        drop(response);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn greatest_holders_are_cut_until_the_rest_fits() {
        let holders = [(50, 'a'), (30, 'b'), (20, 'c')];
        for (limit, expected) in [(100, ""), (99, "a"), (50, "a"), (49, "ab"), (20, "ab"), (0, "abc")] {
            let cut: String = over(&holders, 100, limit).map(|(_, name)| *name).collect();
            assert_eq!(cut, expected, "{limit}");
        }
    }
}
