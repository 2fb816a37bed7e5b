//! The state of the switch with which GitLab switches kas off.

use tokio::sync::{Notify, watch};

/// The state of the switch.
#[derive(Debug)]
pub(super) struct Switch {
    off: watch::Sender<bool>,
    suspected: Notify,
}

impl Default for Switch {
    fn default() -> Self {
        Self { off: watch::Sender::new(false), suspected: Notify::new() }
    }
}

impl Switch {
    /// Requests a probe, after a 404.
    pub(super) fn suspect(&self) {
        self.suspected.notify_one();
    }

    /// Completes when a probe was requested.
    pub(super) async fn suspected(&self) {
        self.suspected.notified().await;
    }

    /// Sets whether GitLab has switched kas off.
    pub(super) fn set_off(&self, off: bool) {
        self.off.send_replace(off);
    }

    pub(super) fn off(&self) -> watch::Receiver<bool> {
        self.off.subscribe()
    }
}
