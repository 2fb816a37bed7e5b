//! The graceful end of a [`TunnelServer`](crate::TunnelServer).

use std::{future::pending, time::Duration};

use tokio::sync::watch;

/// Drains a [`TunnelServer`](crate::TunnelServer). Dropping the handle does not affect the tunnel.
#[derive(Clone, Debug)]
pub struct DrainHandle(watch::Sender<Option<Duration>>);

/// The receiver of a [`DrainHandle`].
#[derive(Debug)]
pub(crate) struct DrainSignal(watch::Receiver<Option<Duration>>);

/// Creates a handle and its receiver.
pub(crate) fn channel() -> (DrainHandle, DrainSignal) {
    let (sender, receiver) = watch::channel(None);
    (DrainHandle(sender), DrainSignal(receiver))
}

impl DrainHandle {
    /// Starts the drain: the tunnel accepts no new requests, and ends when those in flight have ended, or after `grace`.
    pub fn drain(&self, grace: Duration) {
        self.0.send_replace(Some(grace));
    }
}

impl DrainSignal {
    /// Waits for the start of the drain, and returns its `grace`. Never completes if the handle is dropped before.
    pub(crate) async fn started(mut self) -> Duration {
        let grace = self.0.wait_for(Option::is_some).await.ok().and_then(|grace| *grace);
        match grace {
            Some(grace) => grace,
            None => pending().await,
        }
    }
}
