//! The pool of unused connections.

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use parking_lot::Mutex;
use tokio::time::{Instant, sleep};

use super::connection::UpstreamConnection;

/// The time that unused connections beyond `max_idle` are kept. In a burst, each of them is used again at once; if it were
/// closed, every request of the burst would need a new one.
const SURPLUS_TIMEOUT: Duration = Duration::from_secs(2);
/// The most unused connections.
const MAX_UNUSED: usize = 1024;

pub(super) struct Pool {
    max_idle: usize,
    idle_timeout: Duration,
    state: Mutex<State>,
}

struct State {
    /// In the order of their last use. The most recent one is used first, so that after a burst the surplus expires.
    idle: Vec<Idle>,
    generation: u64,
    /// True while a task closes expired connections.
    has_reaper: bool,
}

struct Idle {
    since: Instant,
    connection: UpstreamConnection,
}

/// A connection of a pool that is in use for one request. Dropping it closes the connection.
pub(super) struct PooledConnection {
    pub(super) connection: UpstreamConnection,
    /// The time that the connection was unused; `None` if it is new.
    pub(super) unused: Option<Duration>,
    generation: u64,
    pool: Arc<Pool>,
}

impl Pool {
    pub(super) fn new(max_idle: usize, idle_timeout: Duration) -> Arc<Self> {
        let state = Mutex::new(State { idle: Vec::new(), generation: 0, has_reaper: false });
        Arc::new(Self { max_idle, idle_timeout, state })
    }

    /// Returns an unused connection that can send a request now.
    pub(super) fn checkout(self: &Arc<Self>, now: Instant) -> Option<PooledConnection> {
        let mut state = self.state.lock();
        state.expire(now, self.idle_timeout, self.max_idle);
        while let Some(mut idle) = state.idle.pop() {
            if idle.connection.is_ready() {
                let unused = Some(now.duration_since(idle.since));
                return Some(PooledConnection { unused, ..self.add(state.generation, idle.connection) });
            }
        }

        None
    }

    /// Returns a new connection as one of this pool. It was opened with the certificates of `generation`.
    pub(super) fn add(self: &Arc<Self>, generation: u64, connection: UpstreamConnection) -> PooledConnection {
        PooledConnection { connection, unused: None, generation, pool: Arc::clone(self) }
    }

    /// Closes all connections of the generations so far. Those in use are closed when their exchange is complete.
    pub(super) fn renew(&self) {
        let mut state = self.state.lock();
        state.generation += 1;
        state.idle.clear();
    }

    /// Returns the current generation. It must be read before the certificates of a new connection.
    pub(super) fn generation(&self) -> u64 {
        self.state.lock().generation
    }

    #[cfg(test)]
    pub(super) fn idle(&self) -> usize {
        self.state.lock().idle.len()
    }
}

impl State {
    fn expire(&mut self, now: Instant, timeout: Duration, max_idle: usize) {
        let unused = |idle: &Idle| now.duration_since(idle.since);
        let surplus = &self.idle[..self.idle.len().saturating_sub(max_idle)];
        let surplus = surplus.partition_point(|idle| unused(idle) >= SURPLUS_TIMEOUT);
        let expired = self.idle.partition_point(|idle| unused(idle) >= timeout);
        self.idle.drain(..expired.max(surplus));
    }
}

impl PooledConnection {
    /// Returns the connection to its pool. The exchange must be complete in both directions.
    pub(super) fn release(self) {
        let Self { connection, generation, pool, .. } = self;
        let now = Instant::now();
        let mut state = pool.state.lock();
        state.expire(now, pool.idle_timeout, pool.max_idle);
        if generation == state.generation && state.idle.len() < MAX_UNUSED {
            state.idle.push(Idle { since: now, connection });
            if !state.has_reaper {
                state.has_reaper = true;
                tokio::spawn(reap(Arc::downgrade(&pool)));
            }
        }
    }
}

/// Closes connections that have expired, or that their server has closed, until the pool is empty.
async fn reap(pool: Weak<Pool>) {
    loop {
        sleep(SURPLUS_TIMEOUT).await;
        let Some(pool) = pool.upgrade() else { return };
        let mut state = pool.state.lock();
        state.expire(Instant::now(), pool.idle_timeout, pool.max_idle);
        state.idle.retain_mut(|idle| idle.connection.is_ready());
        if state.idle.is_empty() {
            state.has_reaper = false;
            return;
        }
    }
}
