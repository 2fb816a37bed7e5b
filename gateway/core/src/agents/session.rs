//! The work of kas itself in one tunnel.

use std::{future::pending, sync::Arc};

use futures_util::{FutureExt as _, StreamExt as _, stream::FuturesUnordered};
use tokio_util::sync::CancellationToken;
use tunnel::Tunnel;

use super::admission::AuthenticatedAgent;
use crate::{
    attachments::{Attachment, OpeningTunnel, TunnelFeature},
    configuration::{ConfigurationPusher, ConfigurationService},
};
use access::kill_switch::KillSwitch;

/// The configuration of the agent, and what features do in the tunnel.
#[derive(Debug)]
pub(super) struct TunnelSession {
    configuration: ConfigurationPusher,
    attachments: Vec<Box<dyn Attachment>>,
}

impl TunnelSession {
    /// Prepares the work in a new tunnel. Boxed, because a future has room for each variable that the session has passed through.
    pub(super) fn new(
        agent: &AuthenticatedAgent,
        configuration: &ConfigurationService,
        features: &[Box<dyn TunnelFeature>],
        kill_switch: &Arc<KillSwitch>,
    ) -> Box<Self> {
        let configuration = configuration.subscribe(&agent.identity, &agent.hello);
        let opening = OpeningTunnel {
            agent: &agent.identity,
            token: &agent.token,
            hello: &agent.hello,
            configuration: configuration.state(),
            memory: agent.memory(),
            kill_switch,
        };
        let attachments = features.iter().filter_map(|feature| feature.attach(&opening)).collect();
        Box::new(Self { configuration, attachments })
    }

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
