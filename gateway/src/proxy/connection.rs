//! Connections that have nothing to do.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use prometheus_client::metrics::gauge::Gauge;
use tokio::time::sleep;

/// The requests of one connection.
#[derive(Debug, Default)]
pub(super) struct Activity {
    begun: AtomicU64,
    ended: AtomicU64,
    /// Set once the connection has switched protocols.
    pub(super) upgraded: Arc<AtomicBool>,
}

/// A request whose answer has not ended, until this is dropped.
#[derive(Debug)]
pub struct Busy(Arc<Activity>);

impl Activity {
    pub(super) fn begin(self: &Arc<Self>) -> Busy {
        self.begun.fetch_add(1, Relaxed);
        Busy(Arc::clone(self))
    }

    /// Completes when there was nothing to do for `limit`, and for less than half as long again. It looks now and then,
    /// so that no request has to wake anybody.
    pub(super) async fn idle(&self, limit: Duration) {
        let mut quiet = 0;
        while quiet < 2 {
            let begun = self.begun.load(Relaxed);
            let nothing_to_do = begun == self.ended.load(Relaxed);
            sleep(limit / 2).await;
            quiet = if nothing_to_do && begun == self.begun.load(Relaxed) { quiet + 1 } else { 0 };
        }
    }
}

impl Busy {
    /// Marks the connection as one that has switched protocols.
    pub(super) fn set_upgraded(&self) {
        self.0.upgraded.store(true, Relaxed);
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.ended.fetch_add(1, Relaxed);
    }
}

/// A connection that is counted while it is open, however it ends.
pub(super) struct Open(Gauge);

impl Open {
    pub(super) fn one_more(connections: &Gauge) -> Self {
        connections.inc();
        Self(connections.clone())
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.dec();
    }
}
