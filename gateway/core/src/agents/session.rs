//! The work of kas itself in the tunnels of an agent.
//!
//! Each process of agentk has it once at this replica, in one of its tunnels (`agent_process`).

use std::{convert::Infallible, future::pending, sync::Arc, time::Duration};

use futures_util::{FutureExt as _, StreamExt as _, stream::FuturesUnordered};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tunnel::Tunnel;

use super::{
    AgentServer,
    admission::AuthenticatedAgent,
    agent_process::{AgentProcess, ProcessTunnel},
};
use crate::{
    attachments::{OpeningTunnel, TunnelFeature},
    configuration::{ConfigurationPusher, ConfigurationState},
};

/// The time after which another tunnel takes over from one that agentk drains. An agentk that stops drains all of its tunnels one after the
/// other, and its last events arrive through the last one.
const HANDOVER_DELAY: Duration = Duration::from_secs(1);
/// The time after which a tunnel that agentk drains serves it no more, although it has no other tunnel to this replica. agentk then has one to
/// another replica, or has stopped.
const DRAINED_TIMEOUT: Duration = Duration::from_secs(60);

/// The configuration of the agent, and what features do for one process of agentk.
#[derive(Debug)]
pub(super) struct TunnelSession {
    configuration: ConfigurationPusher,
    process: Arc<AgentProcess>,
}

impl TunnelSession {
    /// Prepares the work in a new tunnel. Boxed, because a future has room for each variable that the session has passed through.
    pub(super) fn new(server: &AgentServer, agent: &AuthenticatedAgent) -> Box<Self> {
        let process = (agent.identity.id, agent.hello.instance);
        Box::new(Self {
            configuration: server.configuration.subscribe(&agent.identity, &agent.hello),
            process: server.processes.get_or_insert_with(process, AgentProcess::default),
        })
    }

    /// Does what must be done before the first request of a caller. This takes a second at most.
    pub(super) async fn prepare(&mut self, tunnel: &Tunnel) {
        self.configuration.send_current(tunnel).await;
    }

    /// Serves the process of agentk, while this is the tunnel to do it. The future never completes.
    /// `draining` is cancelled when the tunnel should not be used any more: long streams of kas itself end then.
    pub(super) async fn run(
        &mut self,
        server: &AgentServer,
        agent: &AuthenticatedAgent,
        tunnel: &Tunnel,
        draining: &CancellationToken,
    ) {
        let joined = self.process.join(agent.hello.tunnel_index);
        tokio::select! {
            never = self.serve_in_turn(server, agent, (tunnel, draining), &joined) => match never {},
            () = follow_drain(tunnel, draining, &joined).boxed() => {}
        }
        drop(joined);
        pending().await
    }

    async fn serve_in_turn(
        &mut self,
        server: &AgentServer,
        agent: &AuthenticatedAgent,
        (tunnel, draining): (&Tunnel, &CancellationToken),
        joined: &ProcessTunnel,
    ) -> Infallible {
        loop {
            joined.serves().await;
            // Boxed, so that the other tunnels reserve no memory for it.
            tokio::select! {
                never = self.serve(server, agent, tunnel, draining).boxed() => match never {},
                () = joined.is_replaced() => {}
            }
        }
    }

    async fn serve(
        &mut self,
        server: &AgentServer,
        agent: &AuthenticatedAgent,
        tunnel: &Tunnel,
        draining: &CancellationToken,
    ) -> Infallible {
        let opening = OpeningTunnel {
            agent: &agent.identity,
            token: &agent.token,
            hello: &agent.hello,
            configuration: self.configuration.state(),
            memory: agent.memory(),
            kill_switch: &server.kill_switch,
        };
        // A tunnel that drains still sends the configuration, for the requests of callers in it.
        let features = draining.run_until_cancelled(run_features(&server.features, &opening, tunnel));
        tokio::join!(features, self.configuration.run(tunnel));
        pending().await
    }
}

/// Lets another tunnel serve the process of agentk when kas or agentk drains this one. Completes when this one must not do it any more.
async fn follow_drain(tunnel: &Tunnel, draining: &CancellationToken, joined: &ProcessTunnel) {
    let agentk_drains = async {
        tunnel.goaway_received().await;
        sleep(HANDOVER_DELAY).await;
    };
    tokio::select! {
        () = agentk_drains => {}
        () = draining.cancelled() => {}
    }
    joined.drain();
    tunnel.goaway_received().await;
    sleep(DRAINED_TIMEOUT).await;
}

/// Runs each feature from the first configuration on with which the agent needs it. Each has its own memory and wake-ups, so that those
/// that the agent does not need cost nothing.
async fn run_features(
    features: &[Box<dyn TunnelFeature>],
    opening: &OpeningTunnel<'_>,
    tunnel: &Tunnel,
) -> Infallible {
    let mut configuration = opening.configuration.clone();
    let mut idle: Vec<_> = features.iter().map(|feature| &**feature).collect();
    let mut running = FuturesUnordered::new();
    loop {
        let needed = take_needed(&mut idle, &configuration.borrow_and_update());
        let attachments = needed.into_iter().filter_map(|feature| feature.attach(opening));
        running.extend(attachments.map(|mut attachment| async move { attachment.run(tunnel).await }));
        let changed = async {
            if configuration.changed().await.is_err() {
                pending().await
            }
        };
        let run = async {
            while running.next().await.is_some() {}
            pending::<Infallible>().await
        };
        tokio::select! {
            () = changed => {}
            never = run => match never {},
        }
    }
}

fn take_needed<'a>(
    idle: &mut Vec<&'a dyn TunnelFeature>,
    configuration: &ConfigurationState,
) -> Vec<&'a dyn TunnelFeature> {
    idle.extract_if(.., |feature| feature.is_needed(configuration)).collect()
}
