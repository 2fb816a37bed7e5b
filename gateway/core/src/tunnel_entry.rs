//! The entry of a tunnel in the table of local tunnels.

use std::{sync::Arc, time::SystemTime};

use arc_swap::ArcSwap;
use proto::Hello;
use tokio_util::sync::CancellationToken;
use tunnel::Tunnel;

use access::{AgentIdentity, token::TokenHash};

/// A tunnel that ends at this replica.
#[derive(Debug)]
pub struct TunnelEntry {
    /// Sends requests into the tunnel.
    pub tunnel: Tunnel,
    /// The agent at the other end of the tunnel.
    pub agent: AgentIdentity,
    /// The hello of the agent. It is bounded and printable, but otherwise not trusted. GitLab's agentk may describe itself again.
    pub described: Arc<ArcSwap<Hello>>,
    /// The address of the agent.
    pub peer: String,
    /// The hash of the token with which the tunnel was opened.
    pub token: TokenHash,
    /// The time at which the tunnel was opened.
    pub since: SystemTime,
    /// Cancelled once the tunnel should move to another replica.
    pub move_requested: CancellationToken,
    /// True if kas has dialled the tunnel.
    pub dialled: bool,
}

impl TunnelEntry {
    /// Returns the agent as it has described itself last.
    pub fn hello(&self) -> Arc<Hello> {
        self.described.load_full()
    }
}
