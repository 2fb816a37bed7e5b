//! Closes idle connections of callers: all of them after `idle_timeout`, and some earlier while there are too many.
//!
//! Requests only count themselves. A task compares the counters of all connections from time to time, so that a request neither
//! reads the clock nor sets a timer, and an idle connection wakes no task.

use std::{collections::HashMap, sync::Arc, time::Duration};

use kas_listen::metrics::Limit;
use parking_lot::Mutex;
use tokio::time::{Instant, sleep};

use super::connection::ConnectionState;
use crate::{config::CallerLimits, metrics::Metrics};

/// The idle time after which a connection may be closed while too many are open.
const MIN_IDLE: Duration = Duration::from_secs(60);

/// The percentage of `max_connections` from which too many connections are open.
const CROWDED_PERCENT: usize = 80;

/// The number of comparisons within the shorter of the two idle times.
const SAMPLES: u32 = 6;

/// The open connections of callers that can be closed.
#[derive(Debug)]
pub struct IdleConnections {
    timeout: Duration,
    max_connections: usize,
    connections: Mutex<Connections>,
}

/// The connections, by a number that is not used again.
#[derive(Debug, Default)]
struct Connections {
    next: u64,
    by_number: HashMap<u64, Sampled>,
}

/// A connection, and when it was last seen with a request.
#[derive(Debug)]
struct Sampled {
    state: Arc<ConnectionState>,
    /// The requests before the next one at the last comparison, or `None` if one was in flight.
    requests: Option<u64>,
    idle_since: Instant,
    /// It was asked to close.
    closing: bool,
}

/// Removes a connection once it has ended.
#[derive(Debug)]
pub(super) struct IdleGuard<'a> {
    connections: &'a IdleConnections,
    number: u64,
}

/// The numbers of connections that one comparison closed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Closed {
    timed_out: usize,
    excess: usize,
}

impl IdleConnections {
    /// Creates the table, without connections.
    pub(crate) fn new(limits: &CallerLimits) -> Self {
        let (timeout, max_connections) = (limits.idle_timeout, limits.max_connections);
        Self { timeout, max_connections, connections: Mutex::default() }
    }

    /// Adds a connection, until the guard is dropped.
    pub(super) fn insert(&self, state: &Arc<ConnectionState>) -> IdleGuard<'_> {
        IdleGuard { connections: self, number: self.connections.lock().insert(state, Instant::now()) }
    }

    /// Closes idle connections. The future never completes.
    pub async fn run(&self, metrics: &Metrics) {
        let period = self.timeout.min(MIN_IDLE) / SAMPLES;
        loop {
            sleep(period).await;
            // Connections that were upgraded are open, but not among those that can be closed.
            let open = usize::try_from(metrics.connections.get()).unwrap_or(0);
            let excess = open.saturating_sub(self.max_connections * CROWDED_PERCENT / 100);
            let closed = self.connections.lock().close_idle(Instant::now(), self.timeout, excess);
            metrics.limit_counter(Limit::Idle).inc_by(closed.timed_out as u64);
            if closed.excess > 0 {
                metrics.limit_counter(Limit::IdleConnections).inc_by(closed.excess as u64);
                tracing::warn!(
                    open,
                    closed = closed.excess,
                    max_connections = self.max_connections,
                    "over 80 % of max_connections are open: those that were idle for the longest time are closed"
                );
            }
        }
    }
}

impl Connections {
    fn insert(&mut self, state: &Arc<ConnectionState>, now: Instant) -> u64 {
        let (state, requests) = (Arc::clone(state), Some(0));
        self.next += 1;
        self.by_number.insert(self.next, Sampled { state, requests, idle_since: now, closing: false });
        self.next
    }

    /// Closes connections that are idle for `timeout`, and up to `excess` others that are idle for a minute, the longest idle
    /// ones first. Their idle times are up to one period longer than measured.
    fn close_idle(&mut self, now: Instant, timeout: Duration, excess: usize) -> Closed {
        let mut closed = Closed::default();
        let mut closing = 0;
        let mut idlest = Vec::new();
        for connection in self.by_number.values_mut() {
            let idle = connection.idle_time(now);
            if connection.closing {
                closing += 1;
            } else if idle >= timeout {
                connection.close();
                closed.timed_out += 1;
            } else if excess > 0 && idle >= MIN_IDLE {
                idlest.push(connection);
            }
        }
        closed.excess = excess.saturating_sub(closing + closed.timed_out).min(idlest.len());
        if closed.excess < idlest.len() {
            idlest.sort_unstable_by_key(|connection| connection.idle_since);
        }
        for connection in idlest.into_iter().take(closed.excess) {
            connection.close();
        }
        closed
    }
}

impl Sampled {
    /// Returns the time since the connection was first seen without a request.
    fn idle_time(&mut self, now: Instant) -> Duration {
        let requests = self.state.requests_before_next();
        if requests.is_none() || requests != self.requests {
            (self.requests, self.idle_since) = (requests, now);
        }
        now - self.idle_since
    }

    fn close(&mut self) {
        self.closing = true;
        self.state.close();
    }
}

impl Drop for IdleGuard<'_> {
    fn drop(&mut self) {
        self.connections.connections.lock().by_number.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use prometheus_client::metrics::gauge::Gauge;

    use super::*;
    use crate::proxy::connection::RequestGuard;

    const TIMEOUT: Duration = Duration::from_secs(4200);

    struct World {
        connections: Connections,
        states: Vec<Arc<ConnectionState>>,
        start: Instant,
    }

    impl World {
        /// Opens a connection each second.
        fn new(count: u64) -> Self {
            let (mut connections, start) = (Connections::default(), Instant::now());
            let gauge = Gauge::default();
            let states: Vec<_> =
                (0..count).map(|_| Arc::new(ConnectionState::new(&gauge, Arc::default()))).collect();
            for (second, state) in (0..).zip(&states) {
                connections.insert(state, start + Duration::from_secs(second));
            }
            Self { connections, states, start }
        }

        /// Returns the connections that timed out and that were closed because there were too many.
        fn close(&mut self, second: u64, excess: usize) -> (usize, usize) {
            let now = self.start + Duration::from_secs(second);
            let Closed { timed_out, excess: closed } = self.connections.close_idle(now, TIMEOUT, excess);
            (timed_out, closed)
        }

        fn closing(&self) -> Vec<u64> {
            let closing = self.connections.by_number.iter().filter(|(_, connection)| connection.closing);
            let mut numbers: Vec<u64> = closing.map(|(number, _)| *number).collect();
            numbers.sort_unstable();
            numbers
        }
    }

    #[test]
    fn connection_is_closed_after_the_timeout_and_only_once() {
        let mut world = World::new(1);
        assert_eq!(world.close(4199, 0), (0, 0));
        assert_eq!(world.close(4200, 0), (1, 0));
        assert_eq!(world.close(4210, 0), (0, 0));
    }

    #[test]
    fn longest_idle_connections_are_closed_first() {
        let mut world = World::new(5);
        assert_eq!(world.close(59, 2), (0, 0), "nothing is idle for a minute");
        assert_eq!(world.close(100, 2), (0, 2));
        assert_eq!(world.closing(), [1, 2]);
        assert_eq!(world.close(110, 2), (0, 0), "the closing ones are the excess");
        assert_eq!(world.close(120, 9), (0, 3), "only as many as are idle");
    }

    #[test]
    fn connection_with_a_request_is_not_idle() {
        let mut world = World::new(2);
        let request = RequestGuard::new(&world.states[0]);
        assert_eq!(world.close(5000, 2), (1, 0));
        assert_eq!(world.closing(), [2]);
        drop(request);
        // It became idle after the last comparison.
        assert_eq!(world.close(5010, 2), (0, 0));
        assert_eq!(world.close(5069, 2), (0, 0));
        drop(RequestGuard::new(&world.states[0]));
        assert_eq!(world.close(5071, 2), (0, 0), "a short request between two comparisons");
        assert_eq!(world.close(5131, 2), (0, 1));
    }
}
