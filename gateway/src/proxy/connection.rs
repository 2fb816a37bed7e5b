//! The state that the requests of one connection share.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use prometheus_client::metrics::gauge::Gauge;
use strangers::Stranger;
use tokio::sync::Notify;

use telemetry::GaugeGuard;

use crate::request_count::RequestCount;

/// Counts the requests of one connection.
#[derive(Debug)]
pub(super) struct ConnectionState {
    requests: RequestCount,
    /// Set once the connection was upgraded.
    upgraded: AtomicBool,
    close: Notify,
    stranger: Arc<Stranger>,
    /// Counts the connection until it and its last request have ended.
    _guard: GaugeGuard,
}

/// Counts a request as in flight on its connection until the response has ended.
#[derive(Debug)]
pub(crate) struct RequestGuard(Arc<ConnectionState>);

impl ConnectionState {
    pub(super) fn new(connections: &Gauge, stranger: Arc<Stranger>) -> Self {
        Self {
            requests: RequestCount::default(),
            upgraded: AtomicBool::default(),
            close: Notify::new(),
            stranger,
            _guard: GaugeGuard::new(connections),
        }
    }

    /// Returns whether the connection was upgraded.
    pub(super) fn is_upgraded(&self) -> bool {
        self.upgraded.load(Relaxed)
    }

    /// Returns the number of requests so far, or `None` if one is in flight.
    pub(super) fn requests_before_next(&self) -> Option<u64> {
        self.requests.before_next()
    }

    /// Asks the task of the connection to close it.
    pub(super) fn close(&self) {
        self.close.notify_one();
    }

    /// Completes when the connection was asked to close.
    pub(super) async fn closing(&self) {
        self.close.notified().await;
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

    /// Admits the client of the connection.
    pub(crate) fn admit(&self) {
        self.0.stranger.admit();
    }

    /// Marks the connection as upgraded.
    pub(super) fn set_upgraded(&self) {
        self.0.upgraded.store(true, Relaxed);
    }
}

/// Counts another request of the same connection, which may end later.
impl Clone for RequestGuard {
    fn clone(&self) -> Self {
        Self::new(&self.0)
    }
}

impl Drop for RequestGuard {
    fn drop(&mut self) {
        self.0.requests.end();
    }
}
