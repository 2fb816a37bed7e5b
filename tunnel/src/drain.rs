//! The orderly end of a [`Session`](crate::Session).

use std::{future::pending, time::Duration};

use tokio::sync::watch;

/// Starts the orderly end of a [`Session`](crate::Session). Dropping it does nothing.
#[derive(Clone, Debug)]
pub struct DrainHandle(watch::Sender<Option<Duration>>);

/// Tells a session that its drain has started.
#[derive(Debug)]
pub(crate) struct DrainSignal(watch::Receiver<Option<Duration>>);

/// Makes both ends.
pub(crate) fn channel() -> (DrainHandle, DrainSignal) {
    let (sender, receiver) = watch::channel(None);
    (DrainHandle(sender), DrainSignal(receiver))
}

impl DrainHandle {
    /// Accepts no new requests, finishes those in flight, and cuts the rest after this time.
    pub fn within(&self, grace: Duration) {
        self.0.send_replace(Some(grace));
    }
}

impl DrainSignal {
    /// Waits for the start of the drain. Returns how long the requests in flight may take.
    pub(crate) async fn started(mut self) -> Duration {
        let grace = self.0.wait_for(Option::is_some).await.ok().and_then(|grace| *grace);
        match grace {
            Some(grace) => grace,
            // The handle was dropped.
            None => pending().await,
        }
    }
}
