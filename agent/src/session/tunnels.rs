//! One tunnel that is up, from the handshake to its end.

use std::sync::Arc;

use proto::{ReplicaId, TunnelId, control::Drain};
use tokio::{
    sync::watch,
    task::JoinHandle,
    time::{Duration, Instant, timeout},
};
use tunnel::{DrainHandle, Ended, Session, websocket::WebSocket};

use super::Shared;
use crate::{Dial, handlers::control::Control};

/// How much longer than asked a tunnel may take to end by itself. Less than `AFTERMATH`, so that its end is reported.
const LENIENCE: Duration = Duration::from_millis(200);

/// A tunnel that serves requests in a task of its own. Dropping this does not end it.
pub(super) struct Live {
    pub(super) tunnel: TunnelId,
    pub(super) replica: ReplicaId,
    since: Instant,
    leave: DrainHandle,
    drain: watch::Receiver<Option<Drain>>,
    running: JoinHandle<()>,
}

/// What happens to a tunnel that is in use.
pub(super) enum Event {
    /// It is gone.
    Ended,
    /// kas wants us to leave it.
    Drain(Drain),
    /// There is one to a replica where there was none yet: this one is to be left for it.
    Better(Live),
}

impl Live {
    /// Serves what comes through `session`.
    pub(super) fn start<D: Dial>(
        shared: &Arc<Shared<D>>,
        (tunnel, replica): (TunnelId, ReplicaId),
        (session, leave): (Session<WebSocket<D::Io>>, DrainHandle),
    ) -> Self {
        let (control, drain) = Control::new();
        let serving = serve(Arc::clone(shared), session, leave.clone(), control);
        let running = shared.tunnels.spawn({
            let shared = Arc::clone(shared);
            async move {
                let up = shared.telemetry.tunnel_up();
                let since = Instant::now();
                let ended = serving.await;
                drop(up);
                report(&shared, tunnel, replica, since, &ended);
            }
        });

        Self { tunnel, replica, since: Instant::now(), leave, drain, running }
    }

    /// Waits until the tunnel wants attention. Cancel-safe.
    pub(super) async fn event(&mut self) -> Event {
        tokio::select! {
            // Why it ended was told where it ended.
            _ = &mut self.running => Event::Ended,
            Ok(drain) = self.drain.wait_for(Option::is_some) => {
                Event::Drain(drain.clone().expect("just asked"))
            }
        }
    }

    /// How long it has been up.
    pub(super) fn age(&self) -> Duration {
        self.since.elapsed()
    }

    /// Takes no more requests, and ends once those in flight are finished.
    pub(super) fn leave(self, within: Duration) {
        self.leave.within(within);
    }
}

/// Serves until the tunnel ends. At shutdown it is left; the grace period then counts for whatever is in flight, also
/// on a tunnel that was being left already.
async fn serve<D: Dial>(
    shared: Arc<Shared<D>>,
    session: Session<WebSocket<D::Io>>,
    leave: DrainHandle,
    control: Control,
) -> Ended {
    let on_request = |exchange| {
        // Boxed once, for spawning moves a future about ten times, and this one has some kilobytes.
        let answering = Box::pin(Arc::clone(&shared.dispatch).serve(exchange, control.clone()));
        shared.requests.spawn(answering);
    };
    let mut running = std::pin::pin!(session.run(on_request));
    if let Some(ended) = shared.shutdown.run_until_cancelled(&mut running).await {
        return ended;
    }

    let grace = shared.options.grace;
    leave.within(grace);
    timeout(grace + LENIENCE, running).await.unwrap_or(Ended::Cut)
}

fn report<D>(shared: &Shared<D>, tunnel: TunnelId, replica: ReplicaId, since: Instant, ended: &Ended) {
    shared.telemetry.metrics.tunnel_end(ended.label(), since.elapsed());
    let seconds = since.elapsed().as_secs();
    match ended {
        Ended::Gracefully => tracing::info!(%tunnel, %replica, seconds, "tunnel ended"),
        Ended::Cut => tracing::warn!(
            %tunnel, %replica, seconds,
            "tunnel ended; requests that took longer than allowed were cut"
        ),
        ended => tracing::warn!(%tunnel, %replica, seconds, reason = %ended, "tunnel lost"),
    }
}
