//! The memory of responses that are not read, and the time for which they may stay so.
//!
//! An agent may send as much of a response as the window of its stream allows before the caller reads any of it. That makes a
//! distant cluster fast; thousands of callers that do not read could use up all memory with it. All responses therefore
//! share a budget. When it is exceeded, the responses that hold the most are cut.
//!
//! A response that is not read for too long is cut as well. [`crate::io::StallGuard`] sees only whole connections, and on
//! HTTP/2 a caller can keep a connection alive while it never opens the window of one stream.

use std::{
    collections::HashMap,
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use parking_lot::Mutex;
use tokio::time::{Instant, MissedTickBehavior, interval};
use tunnel::{StreamMonitor, StreamStats};

use crate::metrics::{Limit, Metrics};

/// How often the responses are checked. Between two checks the budget may be exceeded.
const PERIOD: Duration = Duration::from_millis(250);

/// The responses in flight.
#[derive(Debug)]
pub struct Budget {
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
    /// Since when the caller has neither read anything nor waited for more.
    unread_since: Instant,
}

/// Counts a response in the budget until this is dropped.
#[derive(Debug)]
pub struct BudgetShare {
    budget: Arc<Budget>,
    number: u64,
}

impl Budget {
    /// `limit`: bytes that all responses together may hold. `read_timeout`: how long one may be left unread.
    pub fn new(limit: u64, read_timeout: Duration) -> Self {
        Self { limit, read_timeout, responses: Mutex::default(), next: AtomicU64::new(0) }
    }

    /// Adds a response. `release` is called when the response was cut, and must not block.
    pub fn share(
        self: &Arc<Self>,
        monitor: StreamMonitor,
        release: impl Fn() + Send + 'static,
    ) -> BudgetShare {
        let number = self.next.fetch_add(1, Relaxed);
        let response = WatchedResponse {
            monitor,
            release: Box::new(release),
            last: StreamStats::default(),
            unread_since: Instant::now(),
        };
        self.responses.lock().insert(number, response);
        BudgetShare { budget: Arc::clone(self), number }
    }

    /// Checks the responses and cuts the ones that exceed a limit. Never completes.
    pub async fn keep(&self, metrics: &Metrics) {
        let mut ticks = interval(PERIOD);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let now = ticks.tick().await;
            let held = self.check(now, metrics);
            metrics.bytes_in_flight.set(i64::try_from(held).unwrap_or(i64::MAX));
        }
    }

    /// Returns the bytes that all responses hold.
    fn check(&self, now: Instant, metrics: &Metrics) -> u64 {
        let mut responses = self.responses.lock();
        let mut holders = Vec::with_capacity(responses.len());
        let mut held = 0;
        let mut cut = Vec::new();
        for (number, response) in responses.iter_mut() {
            let bytes = response.check(now);
            if now.saturating_duration_since(response.unread_since) >= self.read_timeout {
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
        // Removed, so that nothing is cut twice, and dropped after the lock is released.
        let cut: Vec<_> =
            cut.into_iter().filter_map(|(number, limit)| Some((responses.remove(&number)?, limit))).collect();
        drop(responses);
        for (response, limit) in cut {
            response.cut();
            metrics.limit(limit);
        }
        held
    }
}

impl WatchedResponse {
    fn cut(&self) {
        self.monitor.cut();
        (self.release)();
    }

    /// Returns the bytes that it holds.
    fn check(&mut self, now: Instant) -> u64 {
        let look = self.monitor.stats();
        if look.taken != self.last.taken || look.awaited {
            self.unread_since = now;
        }
        self.last = look;
        look.unread as u64
    }
}

impl fmt::Debug for WatchedResponse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WatchedResponse").field("last", &self.last).finish_non_exhaustive()
    }
}

/// Returns the greatest holders, as many as must be cut.
fn over<T>(holders: &[(u64, T)], held: u64, limit: u64) -> impl Iterator<Item = &(u64, T)> {
    let mut held = held;
    holders.iter().take_while(move |(bytes, _)| {
        let over = held > limit;
        held -= bytes;
        over
    })
}

impl Drop for BudgetShare {
    fn drop(&mut self) {
        let response = self.budget.responses.lock().remove(&self.number);
        // After the lock is released: this may be the last reference to a tunnel.
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
