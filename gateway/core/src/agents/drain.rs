//! Ends tunnels from the side of kas: make-before-break where the agent can move, at once after a revocation.

use std::{future::pending, time::Duration};

use access::AgentIdentity;
use cores::TaskGroup;
use proto::{
    TunnelId,
    control::{DRAIN_PATH, DrainReason, DrainRequest},
};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tunnel::{CloseReason, Tunnel};

use super::{control, max_age::MaxAge};

/// The shortest time for the streams of a tunnel that is replaced while its replica goes on. A stopping replica holds up a
/// rollout, and `shutdown_grace_period` may be a few minutes; here nothing waits for the streams.
const MIN_REPLACEMENT_GRACE: Duration = Duration::from_secs(3600);

/// The tunnel to supervise, and the reasons to end it.
pub(super) struct Supervised<'a> {
    pub(super) agent: &'a AgentIdentity,
    pub(super) id: TunnelId,
    pub(super) tunnel: &'a Tunnel,
    /// The tunnel drains at this age, ±5 %.
    pub(super) max_age: &'a MaxAge,
    /// The time at which the tunnel was opened.
    pub(super) since: Instant,
    /// Cancelled once the tunnel should move to another replica.
    pub(super) move_requested: &'a CancellationToken,
    /// The tunnel drains when this group drains, and is closed when this group is cut.
    pub(super) connections: &'a TaskGroup,
    /// The time that the streams in flight may take once the replica stops.
    pub(super) grace: Duration,
}

/// Waits for a reason to end the tunnel, and drains it.
///
/// `revoked` completes when the agent may no longer connect, with a message for the log. `before_drain` runs first, for tunnels that
/// agentk does not replace by itself. `on_drain` is called when the drain
/// begins. `withdraw` runs once the agent was asked to leave because the replica stops.
///
/// The future completes only if the group is cut: otherwise the driver of the tunnel reports the end.
pub(super) async fn supervise<F: Future<Output = ()>>(
    supervised: &Supervised<'_>,
    revoked: impl Future<Output = &'static str>,
    before_drain: impl FnOnce(DrainReason) -> F,
    on_drain: impl Fn(),
    withdraw: impl Future<Output = ()>,
) -> CloseReason {
    let tunnel = supervised.tunnel;
    let age =
        supervised.max_age.reached(supervised.agent.id, supervised.since, rand::random_range(0.95..1.05));
    tokio::pin!(age);
    tokio::pin!(revoked);

    let reason = tokio::select! {
        () = &mut age => DrainReason::MaxAge,
        () = supervised.connections.draining.cancelled() => DrainReason::Shutdown,
        () = supervised.move_requested.cancelled() => DrainReason::Rebalance,
        message = &mut revoked => return close_revoked(supervised, message).await,
    };
    // Boxed: most of the life of a tunnel is before its drain.
    let drained = Box::pin(async {
        // The agent opens another tunnel, and leaves this one.
        let asked = async {
            before_drain(reason).await;
            on_drain();
            let within = match reason {
                DrainReason::Shutdown => supervised.grace,
                DrainReason::MaxAge | DrainReason::Rebalance => supervised.grace.max(MIN_REPLACEMENT_GRACE),
            };
            let request = DrainRequest { reason, within };
            if let Err(error) = control::send(tunnel, DRAIN_PATH, &request).await {
                tracing::warn!(agent.name = %supervised.agent.name, tunnel = %supervised.id, %error, "drain request failed");
            }
        };
        // An agent that does not answer may be the one whose token was revoked.
        tokio::select! {
            () = asked => {}
            message = &mut revoked => return close_revoked(supervised, message).await,
        }
        if reason == DrainReason::Shutdown {
            // This replica finishes the requests in flight. New requests go to the replica of the agent's next tunnel.
            withdraw.await;
        }
        let message = revoked.await;
        close_revoked(supervised, message).await
    });
    tokio::select! {
        ended = drained => ended,
        () = supervised.connections.cut.cancelled() => {
            tunnel.close();
            CloseReason::LocallyClosed
        }
    }
}

/// Closes the tunnel of an agent that may no longer connect. The future never completes, because the driver of the tunnel reports
/// the end.
async fn close_revoked(supervised: &Supervised<'_>, message: &str) -> CloseReason {
    tracing::warn!(agent.name = %supervised.agent.name, tunnel = %supervised.id, "{message}");
    supervised.tunnel.close();
    pending().await
}
