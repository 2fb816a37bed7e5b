//! The work of kas itself in the tunnels of an agent.
//!
//! Each process of agentk has it once at this replica, in one of its tunnels. When this tunnel ends or drains, the next one takes over.

use std::{convert::Infallible, future::pending, sync::Arc, time::Duration};

use futures_util::{FutureExt as _, StreamExt as _, stream::FuturesUnordered};
use tokio::{sync::Semaphore, time::sleep};
use tokio_util::sync::CancellationToken;
use tunnel::Tunnel;

use super::{AgentServer, admission::AuthenticatedAgent};
use crate::{
    attachments::{OpeningTunnel, TunnelFeature},
    configuration::{ConfigurationPusher, ConfigurationState},
    tunnel_entry::TunnelEntry,
};

/// The time after which another tunnel takes over from one that agentk drains. An agentk that stops drains all of its tunnels, and the
/// streams then stay until it has ended them: its last events arrive.
const HANDOVER_DELAY: Duration = Duration::from_secs(1);

/// The configuration of the agent, and what features do for one process of agentk.
#[derive(Debug)]
pub(super) struct TunnelSession {
    configuration: ConfigurationPusher,
    /// Has one permit for all tunnels of the process.
    turn: Arc<Semaphore>,
}

impl TunnelSession {
    /// Prepares the work in a new tunnel. Boxed, because a future has room for each variable that the session has passed through.
    pub(super) fn new(server: &AgentServer, agent: &AuthenticatedAgent) -> Box<Self> {
        let process = (agent.identity.id, agent.hello.instance);
        Box::new(Self {
            configuration: server.configuration.subscribe(&agent.identity, &agent.hello),
            turn: server.turns.get_or_insert_with(process, || Semaphore::new(1)),
        })
    }

    /// Does what must be done before the first request of a caller. This takes a second at most.
    pub(super) async fn prepare(&mut self, tunnel: &Tunnel) {
        self.configuration.send_current(tunnel).await;
    }

    /// Serves the process of agentk, while no other of its tunnels does. The future never completes.
    /// `draining` is cancelled when the tunnel should not be used any more: the next tunnel takes over then.
    pub(super) async fn run(
        &mut self,
        server: &AgentServer,
        agent: &AuthenticatedAgent,
        tunnel: &Tunnel,
        draining: &CancellationToken,
    ) {
        let turn = Arc::clone(&self.turn);
        let serve = async {
            let _turn = turn.acquire().await;
            // Boxed, so that the other tunnels reserve no memory for it.
            tokio::select! {
                never = self.serve(server, agent, tunnel).boxed() => match never {},
                () = left(server, agent, tunnel).boxed() => {}
            }
        };
        draining.run_until_cancelled(serve).await;
        pending().await
    }

    async fn serve(
        &mut self,
        server: &AgentServer,
        agent: &AuthenticatedAgent,
        tunnel: &Tunnel,
    ) -> Infallible {
        let opening = OpeningTunnel {
            agent: &agent.identity,
            token: &agent.token,
            hello: &agent.hello,
            configuration: self.configuration.state(),
            memory: agent.memory(),
            kill_switch: &server.kill_switch,
        };
        let configure = async {
            self.configuration.run(tunnel).await;
            pending().await
        };
        tokio::select! {
            never = run_features(&server.features, &opening, tunnel) => never,
            never = configure => never,
        }
    }
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
        tokio::select! {
            Some(()) = running.next() => {}
            changed = configuration.changed() => if changed.is_err() { pending().await },
        }
    }
}

fn take_needed<'a>(
    idle: &mut Vec<&'a dyn TunnelFeature>,
    configuration: &ConfigurationState,
) -> Vec<&'a dyn TunnelFeature> {
    idle.extract_if(.., |feature| feature.is_needed(configuration)).collect()
}

/// Completes when agentk has drained the tunnel, and the same process has another one.
async fn left(server: &AgentServer, agent: &AuthenticatedAgent, tunnel: &Tunnel) {
    tunnel.leaving().await;
    loop {
        let arrival = server.tunnels.registered(agent.identity.id);
        sleep(HANDOVER_DELAY).await;
        if has_open_tunnel(server, agent) {
            return;
        }
        arrival.await;
    }
}

/// Returns whether the process of agentk has a tunnel that takes requests.
fn has_open_tunnel(server: &AgentServer, agent: &AuthenticatedAgent) -> bool {
    let tunnels = server.tunnels.views_of(agent.identity.id);
    tunnels.iter().any(|view| {
        let TunnelEntry { tunnel, described, .. } = view.handle();
        described.load().instance == agent.hello.instance && !view.is_draining() && !tunnel.is_closed()
    })
}
