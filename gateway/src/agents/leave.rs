//! Why a tunnel is to end from this side, and how its agent is asked to open another and leave this one.

use std::{future::pending, time::Duration};

use bytes::Bytes;
use http::Request;
use proto::{
    ServiceName,
    control::{DRAIN_PATH, Drain, DrainReason},
    header,
};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tunnel::{Body, Ended, Tunnel};

use super::{Agents, Peer};

/// How long an agent may take to answer a control request.
const CONTROL_TIMEOUT: Duration = Duration::from_secs(10);

impl Agents {
    /// Waits for reasons to end a tunnel from this side. Never completes by itself: the driver does.
    pub(super) async fn attend(
        &self,
        peer: &Peer,
        tunnel: &Tunnel,
        moving: &CancellationToken,
        draining: impl Fn(),
    ) -> Ended {
        let mut changes = self.identities.changes();
        let age = sleep(self.max_age.mul_f64(rand::random_range(0.95..1.05)));
        tokio::pin!(age);
        let revoked = async {
            while self.identities.load().is_active(&peer.token) {
                if changes.changed().await.is_err() {
                    pending::<()>().await;
                }
            }
        };
        tokio::pin!(revoked);

        let reason = tokio::select! {
            () = &mut age => DrainReason::MaxAge,
            () = self.leaving.cancelled() => DrainReason::Shutdown,
            () = moving.cancelled() => DrainReason::Rebalance,
            () = &mut revoked => return close_revoked(peer, tunnel).await,
        };
        draining();
        let drained = async {
            if let Err(what) = ask_to_leave(tunnel, reason, self.grace).await {
                tracing::warn!(agent.name = %peer.name, tunnel = %peer.tunnel, what, "an agent did not agree to leave");
            }
            if reason == DrainReason::Shutdown {
                // This replica finishes the requests in flight. The others send new ones to the replica of the next tunnel.
                self.withdraw(peer.agent).await;
            }
            revoked.await;
            close_revoked(peer, tunnel).await
        };
        tokio::select! {
            ended = drained => ended,
            () = self.cut.cancelled() => {
                tunnel.close();
                Ended::Cut
            }
        }
    }
}

/// Closes the tunnel of an agent whose token was revoked. The driver reports the end.
async fn close_revoked(peer: &Peer, tunnel: &Tunnel) -> Ended {
    tracing::warn!(agent.name = %peer.name, tunnel = %peer.tunnel, "token revoked, tunnel cut");
    tunnel.close();
    pending().await
}

/// Fails, with what happened, unless the agent agrees.
async fn ask_to_leave(tunnel: &Tunnel, reason: DrainReason, within: Duration) -> Result<(), String> {
    let body = serde_json::to_vec(&Drain { reason, within }).expect("it is plain data");
    let request = Request::post(DRAIN_PATH)
        .header(header::SERVICE, ServiceName::CONTROL)
        .body(Body::from(Bytes::from(body)))
        .expect("it is a valid request");
    match timeout(CONTROL_TIMEOUT, tunnel.call(request)).await {
        Ok(Ok(answer)) if answer.status().is_success() => Ok(()),
        Ok(Ok(answer)) => Err(format!("it answered {}", answer.status())),
        Ok(Err(error)) => Err(error.to_string()),
        Err(_) => Err("it did not answer".to_owned()),
    }
}
