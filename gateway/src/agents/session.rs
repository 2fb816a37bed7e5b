//! What kas does in one tunnel by itself.

use std::future::pending;

use futures_util::{FutureExt as _, StreamExt as _, stream::FuturesUnordered};
use tokio_util::sync::CancellationToken;
use tunnel::Tunnel;

use crate::{attachments::Attachment, configuration::ConfigurationPusher};

/// The configuration of the agent, and what features do in the tunnel.
#[derive(Debug)]
pub(super) struct TunnelSession {
    pub(super) configuration: ConfigurationPusher,
    pub(super) attachments: Vec<Box<dyn Attachment>>,
}

impl TunnelSession {
    /// Does what must be done before the first request of a caller. This takes a second at most.
    pub(super) async fn prepare(&mut self, tunnel: &Tunnel) {
        self.configuration.send_current(tunnel).await;
    }

    /// Serves the tunnel. The future never completes.
    /// `draining` is cancelled when the tunnel should not be used any more: long streams of kas itself end then.
    ///
    /// Each attachment has its own memory and wake-ups, so that those that agentk does not accept cost nothing.
    pub(super) async fn run(&mut self, tunnel: &Tunnel, draining: &CancellationToken) {
        let attached: FuturesUnordered<_> =
            self.attachments.iter_mut().map(|attachment| attachment.run(tunnel)).collect();
        let until_drain = draining.run_until_cancelled(attached.collect::<()>());
        tokio::join!(self.configuration.run(tunnel).boxed(), until_drain);
        pending().await
    }
}
