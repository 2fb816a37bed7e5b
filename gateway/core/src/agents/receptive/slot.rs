//! One tunnel to an agent that kas dials, from the dial to its end.

use std::{
    collections::HashSet,
    future::{pending, ready},
    sync::Arc,
    time::Duration,
};

use access::DialTarget;
use proto::{AgentId, TunnelId, control::DrainReason};
use tokio::{sync::mpsc::UnboundedSender, time::timeout};
use tokio_util::sync::CancellationToken;
use tunnel::{Tunnel, websocket::Role};

use super::{
    super::{
        AgentServer, OpenTunnel,
        admission::{AuthenticatedAgent, ClientAddress},
    },
    connect::{AgentDialer, DialledIo},
    error::DialError,
};

/// The time that the next tunnel of a slot may take before one with the maximum age drains.
const REPLACEMENT_TIMEOUT: Duration = Duration::from_secs(60);

/// The time that another replica may take to dial the agent before the tunnel to this one drains. A free lease is taken within 3 s. A
/// replica that stops cuts tunnels after 5 s, and until then agentk has to learn that this one drains.
const TAKEOVER_TIMEOUT: Duration = Duration::from_millis(4500);

/// The number of a slot, which is unique in a replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct SlotId(pub(super) u64);

/// A message of a slot to the task that supervises all of them.
#[derive(Debug)]
pub(super) struct SlotEvent {
    pub(super) agent: AgentId,
    pub(super) slot: SlotId,
    pub(super) kind: SlotEventKind,
}

#[derive(Debug)]
pub(super) enum SlotEventKind {
    /// Requests may use the tunnel.
    Opened,
    /// Another tunnel should be opened, because kas drains this one then, or because agentk drains it.
    Leaving,
    /// The slot has ended. The error is that of its dial.
    Ended(Option<DialError>),
}

/// The slot of a tunnel that kas has dialled.
#[derive(Clone, Debug)]
pub(crate) struct DialledTunnel {
    agent: AgentId,
    slot: SlotId,
    events: UnboundedSender<SlotEvent>,
    /// Cancelled when this replica has no lease for the tunnel any more.
    pub(crate) leave: CancellationToken,
    /// Cancelled when another tunnel has replaced this one.
    replaced: CancellationToken,
}

/// Reports the end of a slot when it is dropped, also after a panic.
struct EndGuard {
    dialled: DialledTunnel,
    error: Option<DialError>,
}

impl DialledTunnel {
    pub(super) fn new(
        (agent, slot): (AgentId, SlotId),
        events: UnboundedSender<SlotEvent>,
        leave: CancellationToken,
        replaced: CancellationToken,
    ) -> Self {
        Self { agent, slot, events, leave, replaced }
    }

    /// Reports that requests may use the tunnel.
    pub(crate) fn report_open(&self) {
        self.report(SlotEventKind::Opened);
    }

    fn report(&self, kind: SlotEventKind) {
        // Fails if the replica has stopped.
        let _ = self.events.send(SlotEvent { agent: self.agent, slot: self.slot, kind });
    }

    /// Completes when agentk drains the tunnel and the task of all slots knows it.
    async fn observe_drain(&self, tunnel: Tunnel) {
        tunnel.goaway_received().await;
        self.report(SlotEventKind::Leaving);
    }
}

impl Drop for EndGuard {
    fn drop(&mut self) {
        self.dialled.report(SlotEventKind::Ended(self.error.take()));
    }
}

/// Dials once, and serves the tunnel until its end.
pub(super) async fn run(
    server: Arc<AgentServer>,
    dialer: Arc<AgentDialer>,
    target: DialTarget,
    dialled: DialledTunnel,
) {
    let mut guard = EndGuard { dialled: dialled.clone(), error: None };
    // Boxed, like other short phases of a tunnel.
    let opening = Box::pin(open(&server, &dialer, &target, &dialled));
    match dialled.leave.run_until_cancelled(opening).await {
        None => {}
        Some(Err(error)) => guard.error = Some(error),
        Some(Ok((agent, opened))) => {
            let draining = dialled.observe_drain(opened.tunnel.clone());
            let draining = async {
                draining.await;
                pending().await
            };
            tokio::select! {
                () = server.serve_tunnel(&agent, opened) => {}
                never = draining => never,
            }
        }
    }
}

/// Opens a tunnel, and admits the agent as if it had opened the tunnel.
async fn open(
    server: &AgentServer,
    dialer: &AgentDialer,
    target: &DialTarget,
    dialled: &DialledTunnel,
) -> Result<(AuthenticatedAgent, OpenTunnel), DialError> {
    let tunnel = TunnelId::random();
    let connection = dialer.dial(target, &server.welcome(tunnel)).await?;
    let client = ClientAddress::new(connection.address.ip().to_canonical(), connection.address);
    let admitted = server.admit(&connection.headers, &client).await;
    let mut agent = admitted.map_err(DialError::NotAdmitted)?;
    if agent.identity.id != dialled.agent {
        return Err(DialError::WrongAgent { found: agent.identity.name.clone() });
    }
    agent.tunnel = tunnel;
    agent.dialled = Some(dialled.clone());
    let upgraded = ready(Ok(connection.upgraded));
    let opened = server.open::<DialledIo>(upgraded, Role::Client, &agent).await;
    Ok((agent, opened.map_err(DialError::Incomplete)?))
}

impl AgentServer {
    /// Waits until requests find another tunnel, if agentk does not open one by itself.
    pub(in super::super) async fn before_drain(&self, agent: &AuthenticatedAgent, reason: DrainReason) {
        let Some(dialled) = &agent.dialled else { return };
        // After the timeouts, requests wait for the next tunnel.
        let _ = match reason {
            DrainReason::MaxAge => {
                dialled.report(SlotEventKind::Leaving);
                timeout(REPLACEMENT_TIMEOUT, dialled.replaced.cancelled()).await
            }
            DrainReason::Shutdown | DrainReason::Rebalance => {
                let local = reason == DrainReason::Rebalance;
                timeout(TAKEOVER_TIMEOUT, self.another_tunnel(dialled.agent, local)).await
            }
        };
    }

    /// Completes when the agent has a tunnel to another replica, or if `local` is true, one to this replica that stays. Without another
    /// replica, there is nothing to wait for.
    async fn another_tunnel(&self, agent: AgentId, local: bool) {
        loop {
            let (change, arrival) = (self.store.changed(agent), self.tunnels.registered(agent));
            let stays = self
                .tunnels
                .views_of(agent)
                .iter()
                .any(|view| !view.is_draining() && !view.handle().move_requested.is_cancelled());
            if local && stays {
                return;
            }
            let live = self.store.replicas().into_iter().map(|replica| replica.id);
            let others: HashSet<_> = live.filter(|replica| *replica != self.replica).collect();
            if others.is_empty() && !local {
                return;
            }
            let routes = self.store.lookup(agent).await.map(|found| found.routes).unwrap_or_default();
            if routes.iter().any(|route| others.contains(&route.replica)) {
                return;
            }
            tokio::select! { () = change => {}, () = arrival => {} }
        }
    }
}
