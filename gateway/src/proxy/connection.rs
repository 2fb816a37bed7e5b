//! The state that the requests of one connection share.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use prometheus_client::metrics::gauge::Gauge;
use tokio::time::sleep;

use crate::metrics::GaugeGuard;

/// Counts the requests of one connection.
#[derive(Debug)]
pub(super) struct ConnectionState {
    started: AtomicU64,
    ended: AtomicU64,
    /// Set once the connection was upgraded.
    upgraded: Arc<AtomicBool>,
    /// Counts the connection until it and its last request have ended.
    _guard: GaugeGuard,
}

/// Counts a request as in flight on its connection until the response has ended.
#[derive(Debug)]
pub(super) struct RequestGuard(Arc<ConnectionState>);

impl ConnectionState {
    pub(super) fn new(connections: &Gauge) -> Self {
        Self {
            started: AtomicU64::new(0),
            ended: AtomicU64::new(0),
            upgraded: Arc::default(),
            _guard: GaugeGuard::new(connections),
        }
    }

    /// Returns the flag that is set once the connection was upgraded.
    pub(super) fn upgraded(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.upgraded)
    }

    /// Completes when no request was in flight for `limit`, and at the latest after half of `limit` more.
    ///
    /// It samples the counters, so that a request neither wakes a task nor sets a timer.
    pub(super) async fn idle(&self, limit: Duration) {
        let mut samples = 0;
        while samples < 2 {
            let started = self.started.load(Relaxed);
            let idle = started == self.ended.load(Relaxed);
            sleep(limit / 2).await;
            samples = if idle && started == self.started.load(Relaxed) { samples + 1 } else { 0 };
        }
    }
}

impl RequestGuard {
    pub(super) fn new(state: &Arc<ConnectionState>) -> Self {
        state.started.fetch_add(1, Relaxed);
        Self(Arc::clone(state))
    }

    /// Marks the connection as upgraded.
    pub(super) fn set_upgraded(&self) {
        self.0.upgraded.store(true, Relaxed);
    }
}

impl Drop for RequestGuard {
    fn drop(&mut self) {
        self.0.ended.fetch_add(1, Relaxed);
    }
}
