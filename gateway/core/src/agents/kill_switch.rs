//! Reports the rules of the kill switch to agentk, so that the owner of the cluster sees why there are no requests.

use std::{convert::Infallible, future::pending, time::Duration};

use access::{AgentIdentity, kill_switch::KillSwitch};
use proto::{
    TunnelId,
    control::{DISABLED_PATH, DisabledNotice},
};
use tokio::time::sleep;
use tunnel::Tunnel;

use super::control;
use crate::agent_requests::AgentRequestError;

/// The time after which a notice that got no response is sent again.
const RETRY_PERIOD: Duration = Duration::from_secs(30);

/// Sends a notice through a new tunnel if a rule concerns its agent, and after each change of these rules.
pub(super) async fn report(
    switch: &KillSwitch,
    agent: &AgentIdentity,
    (tunnel_id, tunnel): (TunnelId, &Tunnel),
) -> Infallible {
    let mut changes = switch.changes();
    // A new tunnel has no rules.
    let mut reported = DisabledNotice::default();
    loop {
        changes.borrow_and_update();
        let notice = switch.notice(agent.attributes());
        let sent = if notice == reported {
            Ok(())
        } else {
            Box::pin(control::send(tunnel, DISABLED_PATH, &notice)).await
        };
        if let Err(error) = &sent {
            tracing::debug!(agent.name = %agent.name, tunnel = %tunnel_id, %error, "rules of the kill switch not reported");
        }
        let retry = matches!(sent, Err(AgentRequestError::Failed(_) | AgentRequestError::TimedOut));
        if !retry {
            reported = notice;
        }
        let again = async { if retry { sleep(RETRY_PERIOD).await } else { pending().await } };
        tokio::select! {
            // The sender lives as long as the switch.
            _ = changes.changed() => {}
            () = again => {}
        }
    }
}
