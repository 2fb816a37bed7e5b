//! One slot: it has one tunnel in use at any time, or connects to get one.

use std::sync::Arc;

use backoff::Backoff;
use proto::{
    ReplicaId,
    control::{DrainReason, DrainRequest},
};
use tokio::{
    sync::OwnedSemaphorePermit,
    time::{Duration, Instant, sleep, timeout},
};

use super::{
    AgentContext,
    active_tunnel::{ActiveTunnel, TunnelEvent},
    spread::ReplicaSearch,
};
use crate::{
    Dial, DialError,
    connect::{self, GitLabStream, PendingConnection, PendingTunnel},
};

/// The longest time that a stopping replica waits for the next tunnel of this slot. There may be no other replica, and the
/// stopping one cannot end before agentk drains its tunnel.
const STOPPING_REPLICA_TIMEOUT: Duration = Duration::from_secs(5);

/// The time that streams may take in a tunnel that another one replaces: the default of kas for drained tunnels.
const REPLACED_TUNNEL_TIMEOUT: Duration = Duration::from_secs(3600);

pub(super) struct TunnelSlot<D> {
    context: Arc<AgentContext<D>>,
    index: u16,
    backoff: Backoff,
    /// The permit to have the connection to GitLab's kas, from its handshake until kas has another protocol.
    client_permit: Option<OwnedSemaphorePermit>,
}

impl<D: Dial> TunnelSlot<D> {
    pub(super) fn new(context: Arc<AgentContext<D>>, index: u16) -> Self {
        Self { context, index, backoff: Backoff::default(), client_permit: None }
    }

    /// Keeps a tunnel open until the shutdown.
    pub(super) async fn run(mut self) {
        let shutdown = self.context.shutdown.clone();
        let mut next = self.connect(None).await;
        while let Some(mut tunnel) = next {
            // At shutdown, the task of each tunnel drains it.
            let event = shutdown.run_until_cancelled(async {
                match self.next_event(&mut tunnel).await {
                    TunnelEvent::TokenChanged => self.renew(&mut tunnel).await,
                    event => event,
                }
            });
            let Some(event) = event.await else { return };
            next = match event {
                TunnelEvent::Ended => self.reconnect(tunnel.age()).await,
                TunnelEvent::Drain(drain) => self.replace(tunnel, drain).await,
                // Only the end of the agent interrupts `renew`.
                TunnelEvent::TokenChanged => return,
                TunnelEvent::Replacement(replacement) => {
                    tunnel.drain(REPLACED_TUNNEL_TIMEOUT);
                    Some(replacement)
                }
            };
        }
    }

    /// Waits for an event of the tunnel. While the tunnel shares its replica with another one of the agent, it also dials
    /// other replicas: an agent whose tunnels all end at one replica is unreachable for as long as a freeze of that replica
    /// is not noticed.
    async fn next_event(&self, tunnel: &mut ActiveTunnel) -> TunnelEvent {
        for nth in 0.. {
            let delay = self.context.spread.lock().search_delay(usize::from(self.index), nth, rand::random());
            let Some(delay) = delay else { break };
            let searching = async {
                sleep(delay).await;
                self.dial_other_replica().await
            };
            tokio::select! {
                event = tunnel.event() => return event,
                found = searching => {
                    if let Some(replacement) = found {
                        return TunnelEvent::Replacement(replacement);
                    }
                }
            }
        }
        tunnel.event().await
    }

    /// Dials once. Returns a tunnel if it ends at a replica without one; errors are logged only.
    async fn dial_other_replica(&self) -> Option<ActiveTunnel> {
        let (spread, slot) = (&self.context.spread, usize::from(self.index));
        let dialled = async {
            let pending = match self.dial().await? {
                PendingConnection::Tunnel(pending) => pending,
                PendingConnection::GitLab(stream) => {
                    stream.decline().await;
                    return Ok(None);
                }
            };
            let (replica, replicas) = (pending.welcome.replica, pending.welcome.replicas);
            if !spread.lock().replace(slot, replica, replicas) {
                self.decline(pending).await;
                return Ok(None);
            }
            Ok(Some(self.accept(pending)))
        };
        dialled.await.unwrap_or_else(|error: DialError| {
            tracing::debug!(%error, slot, "the search for another replica failed");
            None
        })
    }

    /// Opens a tunnel with the new token, so that the removal of the old token from the identity file of kas cuts nothing. The
    /// old tunnel stays in use as long as kas refuses the new token.
    async fn renew(&mut self, old: &mut ActiveTunnel) -> TunnelEvent {
        tracing::info!(tunnel = %old.id, "the agent token has changed, opening another tunnel with the new one");
        self.backoff.replaced(old.age());
        loop {
            tokio::select! {
                next = self.connect(None) => return next.map_or(TunnelEvent::TokenChanged, TunnelEvent::Replacement),
                event = old.event() => match event {
                    // The next attempt reads the newer token.
                    TunnelEvent::TokenChanged => {}
                    event => return event,
                },
            }
        }
    }

    async fn reconnect(&mut self, lifetime: Duration) -> Option<ActiveTunnel> {
        self.context.spread.lock().release(usize::from(self.index));
        let wait = self.backoff.lost(lifetime, rand::random());
        tracing::info!(slot = self.index, retry_in = ?wait, "opening another tunnel");
        if !self.context.pause(wait).await {
            return None;
        }

        self.connect(None).await
    }

    /// Opens the next tunnel, and then drains the old one (make before break).
    async fn replace(&mut self, mut old: ActiveTunnel, drain: DrainRequest) -> Option<ActiveTunnel> {
        let (tunnel, replica, reason) = (old.id, old.replica, drain.reason);
        tracing::info!(%tunnel, replica = replica.map(display), ?reason, within = ?drain.within, "drain request of kas");
        self.backoff.replaced(old.age());
        let deadline = Instant::now() + drain.within;
        let (avoid, connect_timeout) = match reason {
            DrainReason::MaxAge => (None, drain.within / 2),
            DrainReason::Rebalance => (replica, drain.within / 2),
            DrainReason::Shutdown => (replica, STOPPING_REPLICA_TIMEOUT.min(drain.within / 2)),
        };
        let next = tokio::select! {
            next = timeout(connect_timeout, self.connect(avoid)) => next,
            // The waits so far were for a kas that was stopping. The next one may be running now.
            () = old.ended() => return self.reconnect(old.age()).await,
        };
        old.drain(deadline.saturating_duration_since(Instant::now()));
        match next {
            Ok(next) => next,
            Err(_) => {
                tracing::warn!(%tunnel, "no other tunnel was opened in time; draining without a replacement");
                self.connect(avoid).await
            }
        }
    }

    /// Opens a tunnel, with as many attempts as it takes. Returns `None` if the agent is stopping.
    async fn connect(&mut self, avoid: Option<ReplicaId>) -> Option<ActiveTunnel> {
        let shutdown = self.context.shutdown.clone();
        let mut search = ReplicaSearch::new(usize::from(self.index), avoid);
        loop {
            let error = match shutdown.run_until_cancelled(self.open(&mut search)).await? {
                Ok(tunnel) => return Some(tunnel),
                Err(error) => error,
            };
            search.on_failure();
            let wait = if error.is_refused_connection() {
                self.backoff.refused(rand::random())
            } else {
                self.backoff.failed(error.retry_after(), rand::random())
            };
            self.report_failure(&error, wait);
            if !self.context.pause(wait).await {
                return None;
            }
        }
    }

    /// Dials until the spread of replicas accepts the one that answered, or GitLab's kas did.
    async fn open(&mut self, search: &mut ReplicaSearch) -> Result<ActiveTunnel, DialError> {
        loop {
            let pending = match self.dial().await? {
                PendingConnection::Tunnel(pending) => pending,
                PendingConnection::GitLab(stream) => match self.open_gitlab(stream).await? {
                    Some(connection) => return Ok(connection),
                    None => continue,
                },
            };
            self.client_permit = None;
            let (replica, replicas) = (pending.welcome.replica, pending.welcome.replicas);
            if self.context.spread.lock().claim(search, replica, replicas) {
                return Ok(self.accept(pending));
            }
            self.decline(pending).await;
        }
    }

    /// Completes a connection to GitLab's kas. If another slot has one, it waits for as long as that is so, and returns `None`.
    async fn open_gitlab(&mut self, stream: GitLabStream) -> Result<Option<ActiveTunnel>, DialError> {
        let (context, slot) = (&self.context, self.index);
        context.spread.lock().release(usize::from(slot));
        if self.client_permit.is_none() {
            let slots = &context.client_slot;
            let Ok(permit) = Arc::clone(slots).try_acquire_owned() else {
                stream.decline().await;
                tracing::debug!(slot, "connection declined: the agent has one to GitLab's kas");
                self.client_permit = Arc::clone(slots).acquire_owned().await.ok();
                return Ok(None);
            };
            self.client_permit = Some(permit);
        }
        let GitLabStream { io, authorization, token_change, server } = stream;
        let opening = Arc::clone(&context.protocol).open(io, authorization, context.config.target());
        let serve = opening.await?;
        context.observability.metrics.record_dial("connected");
        context.dial_errors.reset();
        tracing::info!(server, slot, "connected to GitLab's kas");
        Ok(Some(ActiveTunnel::spawn_client(&context.tunnel, serve, token_change)))
    }

    async fn dial(&self) -> Result<PendingConnection<D::Io>, DialError> {
        let hello = self.context.hello(self.index);
        connect::open(&self.context.dialer, self.context.config.target(), &hello).await
    }

    fn accept(&self, pending: PendingTunnel<D::Io>) -> ActiveTunnel {
        let context = &self.context;
        let (tunnel, replica) = (pending.welcome.tunnel, pending.welcome.replica);
        let session = pending.accept(&context.config.tunnel);
        context.observability.metrics.record_dial("connected");
        context.dial_errors.reset();
        tracing::info!(%tunnel, %replica, slot = self.index, "tunnel opened");
        ActiveTunnel::spawn(&context.tunnel, (tunnel, replica), session)
    }

    async fn decline(&self, pending: PendingTunnel<D::Io>) {
        let replica = pending.welcome.replica;
        pending.decline().await;
        self.context.observability.metrics.record_dial("same-replica");
        tracing::debug!(%replica, slot = self.index, "tunnel declined: the agent has another one to this replica");
    }

    fn report_failure(&self, error: &DialError, retry_in: Duration) {
        let (context, slot) = (&self.context, self.index);
        context.observability.metrics.record_dial(error.label());
        match context.dial_errors.admit(error.label(), Instant::now().into_std()) {
            Some(suppressed) => {
                tracing::warn!(%error, ?retry_in, suppressed, "cannot open a tunnel to kas");
            }
            None => tracing::debug!(%error, ?retry_in, slot, "cannot open a tunnel to kas"),
        }
        context.observability.health.dial_failed(error.to_string());
    }
}
