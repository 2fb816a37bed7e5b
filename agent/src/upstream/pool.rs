//! Connections that wait for their next request.

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use parking_lot::Mutex;
use tokio::time::{Instant, sleep};

use super::connection::Connection;

/// How long unused connections beyond those that are kept may wait: in a burst each of them is used again at once, and
/// closing it would make every request of the burst pay for a new one.
const SURPLUS_TIMEOUT: Duration = Duration::from_secs(2);
/// How many unused connections there may be at all.
const MAX_SURPLUS: usize = 1024;

pub(super) struct Pool {
    max_idle: usize,
    idle_timeout: Duration,
    state: Mutex<State>,
}

struct State {
    /// Longest unused first. The last is taken first, so that after a burst the surplus expires.
    idle: Vec<Idle>,
    generation: u64,
    /// A task looks after those that wait.
    watched: bool,
}

struct Idle {
    since: Instant,
    connection: Connection,
}

/// A connection and the right to send one request on it. Dropping it closes the connection.
pub(super) struct Lease {
    pub(super) connection: Connection,
    /// How long the connection was unused; `None` if it is new.
    pub(super) unused: Option<Duration>,
    generation: u64,
    pool: Arc<Pool>,
}

impl Pool {
    pub(super) fn new(max_idle: usize, idle_timeout: Duration) -> Arc<Self> {
        let state = Mutex::new(State { idle: Vec::new(), generation: 0, watched: false });
        Arc::new(Self { max_idle, idle_timeout, state })
    }

    /// A connection that is ready now.
    pub(super) fn take(self: &Arc<Self>, now: Instant) -> Option<Lease> {
        let mut state = self.state.lock();
        state.expire(now, self.idle_timeout, self.max_idle);
        while let Some(mut idle) = state.idle.pop() {
            if idle.connection.is_ready() {
                let unused = Some(now.duration_since(idle.since));
                return Some(Lease { unused, ..self.lend(state.generation, idle.connection) });
            }
        }

        None
    }

    /// Lends out a new connection, made with the certificates of `generation`.
    pub(super) fn lend(self: &Arc<Self>, generation: u64, connection: Connection) -> Lease {
        Lease { connection, unused: None, generation, pool: Arc::clone(self) }
    }

    /// Closes every connection of the generations so far, those in use when their exchange is over.
    pub(super) fn renew(&self) {
        let mut state = self.state.lock();
        state.generation += 1;
        state.idle.clear();
    }

    /// To be asked before the certificates for a new connection are.
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

impl Lease {
    /// To be called once the exchange is over: both messages have ended.
    pub(super) fn give_back(self) {
        let Self { connection, generation, pool, .. } = self;
        let now = Instant::now();
        let mut state = pool.state.lock();
        state.expire(now, pool.idle_timeout, pool.max_idle);
        if generation == state.generation && state.idle.len() < MAX_SURPLUS {
            state.idle.push(Idle { since: now, connection });
            if !state.watched {
                state.watched = true;
                tokio::spawn(watch(Arc::downgrade(&pool)));
            }
        }
    }
}

/// Closes what has waited for too long, and what its server has closed, for as long as anything waits.
async fn watch(pool: Weak<Pool>) {
    loop {
        sleep(SURPLUS_TIMEOUT).await;
        let Some(pool) = pool.upgrade() else { return };
        let mut state = pool.state.lock();
        state.expire(Instant::now(), pool.idle_timeout, pool.max_idle);
        state.idle.retain_mut(|idle| idle.connection.is_ready());
        if state.idle.is_empty() {
            state.watched = false;
            return;
        }
    }
}
