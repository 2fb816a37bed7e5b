//! One open tunnel, or one connection of another protocol, from the handshake to its end.

use std::sync::Arc;

use cores::poll_on_wake;
use proto::{ReplicaId, TunnelId, control::DrainRequest};
use tokio::{
    sync::{oneshot, watch},
    task::JoinHandle,
    time::{Duration, Instant, timeout},
};
use tunnel::{CloseReason, DrainHandle, IDLE_TIMEOUT_HINT, TunnelServer, websocket::WebSocket};

use crate::tunnel_context::TunnelContext;
use crate::{
    client_protocol::{DrainSignals, ServeProtocol},
    connect::TokenChange,
    services::control::ControlService,
    upstream::Io,
};

/// The time that a tunnel may take to end by itself beyond the drain timeout. Less than `FORCED_CLOSE_TIMEOUT`, so that its
/// end is logged.
const DRAIN_TOLERANCE: Duration = Duration::from_millis(200);

/// A tunnel that serves requests in a task of its own. Dropping this does not end the task.
pub(super) struct ActiveTunnel {
    pub(super) id: TunnelId,
    /// The replica of kas. Other protocols do not name it.
    pub(super) replica: Option<ReplicaId>,
    opened: Instant,
    drain: DrainTrigger,
    drain_request: watch::Receiver<Option<DrainRequest>>,
    token_change: TokenChange,
    task: JoinHandle<()>,
}

/// Starts the drain of a tunnel.
enum DrainTrigger {
    Tunnel(DrainHandle),
    Client(oneshot::Sender<Duration>),
}

/// An event that ends the use of a tunnel.
pub(super) enum TunnelEvent {
    /// The tunnel has ended.
    Ended,
    /// kas has sent a drain request.
    Drain(DrainRequest),
    /// The tunnel has a token that is no longer the current one.
    TokenChanged,
    /// Another tunnel is open, which replaces this one.
    Replacement(ActiveTunnel),
}

impl ActiveTunnel {
    /// Spawns a task that serves the requests of `session`.
    pub(super) fn spawn<T: Io>(
        context: &Arc<TunnelContext>,
        (id, replica): (TunnelId, ReplicaId),
        (session, drain, token_change): (TunnelServer<WebSocket<T>>, DrainHandle, TokenChange),
    ) -> Self {
        let (control, drain_request) = ControlService::new(context.observability.health.disabled.tunnel(id));
        let serving = serve(Arc::clone(context), session, drain.clone(), control);
        let task = context.tunnels.spawn({
            let context = Arc::clone(context);
            async move {
                let tunnel = context.observability.tunnel_opened();
                let opened = Instant::now();
                let ended = serving.await;
                drop(tunnel);
                report_end(&context, id, replica, opened, &ended);
            }
        });

        let drain = DrainTrigger::Tunnel(drain);
        Self { id, replica: Some(replica), opened: Instant::now(), drain, drain_request, token_change, task }
    }

    /// Spawns a task that serves the requests of a connection of another protocol.
    pub(super) fn spawn_client(
        context: &Arc<TunnelContext>,
        serve: ServeProtocol,
        token_change: TokenChange,
    ) -> Self {
        let id = TunnelId::random();
        let (drain, drain_started) = oneshot::channel();
        let (drain_request_sender, drain_request) = watch::channel(None);
        let signals = DrainSignals {
            drain: drain_started,
            shutdown: context.shutdown.clone(),
            grace: context.config.grace,
            goaway: drain_request_sender,
        };
        let task = context.tunnels.spawn(serve(id, signals));

        let drain = DrainTrigger::Client(drain);
        Self { id, replica: None, opened: Instant::now(), drain, drain_request, token_change, task }
    }

    /// Waits for the end of the tunnel, a drain request or another token. Cancel-safe.
    pub(super) async fn event(&mut self) -> TunnelEvent {
        tokio::select! {
            // The task has logged the reason.
            _ = &mut self.task => TunnelEvent::Ended,
            Ok(drain) = self.drain_request.wait_for(Option::is_some) => {
                TunnelEvent::Drain(drain.clone().expect("the condition of wait_for"))
            }
            () = self.token_change.changed() => TunnelEvent::TokenChanged,
        }
    }

    /// Waits for the end of the tunnel. Cancel-safe; it must not be called again after it has completed.
    pub(super) async fn ended(&mut self) {
        let _ = (&mut self.task).await;
    }

    /// Returns the time since the tunnel was opened.
    pub(super) fn age(&self) -> Duration {
        self.opened.elapsed()
    }

    /// Stops accepting requests. The tunnel ends once those in flight are complete, or cut after `within`. Returns the task that
    /// ends with it.
    pub(super) fn drain(self, within: Duration) -> JoinHandle<()> {
        match self.drain {
            DrainTrigger::Tunnel(drain) => drain.drain(within),
            // Fails if the connection has ended.
            DrainTrigger::Client(drain) => drop(drain.send(within)),
        }
        self.task
    }
}

/// Serves requests until the tunnel ends. At shutdown it drains the tunnel; the grace period then bounds all requests in
/// flight, also those of a tunnel that drains already.
async fn serve<T: Io>(
    context: Arc<TunnelContext>,
    session: TunnelServer<WebSocket<T>>,
    drain: DrainHandle,
    control: ControlService,
) -> CloseReason {
    let on_request = |incoming| {
        // Boxed once: spawning moves a future about ten times, and this one has some kilobytes.
        let serving = Box::pin(Arc::clone(&context.dispatcher).serve(incoming, control.clone()));
        context.requests.spawn(serving);
    };
    let mut running = std::pin::pin!(session.run(on_request));
    tokio::select! {
        biased;
        ended = &mut running => return ended,
        () = poll_on_wake(context.shutdown.cancelled()) => {}
    }

    let grace = context.config.grace;
    drain.drain(grace);
    timeout(grace + DRAIN_TOLERANCE, running).await.unwrap_or(CloseReason::LocallyClosed)
}

fn report_end(
    context: &TunnelContext,
    tunnel: TunnelId,
    replica: ReplicaId,
    opened: Instant,
    ended: &CloseReason,
) {
    context.observability.metrics.record_tunnel_end(ended.label(), opened.elapsed());
    let seconds = opened.elapsed().as_secs();
    let hint = match ended {
        CloseReason::Graceful => return tracing::info!(%tunnel, %replica, seconds, "tunnel ended"),
        CloseReason::LocallyClosed => {
            return tracing::warn!(
                %tunnel, %replica, seconds,
                "tunnel ended; requests that exceeded the drain timeout were cut"
            );
        }
        CloseReason::Lost { silence, .. } => {
            context.idle_timeouts.lock().record_loss(*silence, Instant::now()).then_some(IDLE_TIMEOUT_HINT)
        }
        CloseReason::TimedOut | CloseReason::Protocol(_) | CloseReason::Flooded => None,
    };
    tracing::warn!(%tunnel, %replica, seconds, reason = %ended, hint, "tunnel lost");
}
