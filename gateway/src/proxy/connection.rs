//! The state that the requests of one connection share.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use prometheus_client::metrics::gauge::Gauge;

use crate::{metrics::GaugeGuard, request_count::RequestCount};

/// Counts the requests of one connection.
#[derive(Debug)]
pub(super) struct ConnectionState {
    requests: RequestCount,
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
            requests: RequestCount::default(),
            upgraded: Arc::default(),
            _guard: GaugeGuard::new(connections),
        }
    }

    /// Returns the flag that is set once the connection was upgraded.
    pub(super) fn upgraded(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.upgraded)
    }

    /// Completes when no request was in flight for `limit`, and at the latest after half of `limit` more.
    pub(super) async fn idle(&self, limit: Duration) {
        self.requests.idle(limit).await;
    }
}

impl RequestGuard {
    pub(super) fn new(state: &Arc<ConnectionState>) -> Self {
        state.requests.start();
        Self(Arc::clone(state))
    }

    /// Marks the connection as upgraded.
    pub(super) fn set_upgraded(&self) {
        self.0.upgraded.store(true, Relaxed);
    }
}

impl Drop for RequestGuard {
    fn drop(&mut self) {
        self.0.requests.end();
    }
}
