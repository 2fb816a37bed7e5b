//! The entry of a tunnel in the table of local tunnels.

use std::{sync::Arc, time::SystemTime};

use proto::Hello;
use tokio_util::sync::CancellationToken;
use tunnel::Tunnel;

use access::AgentIdentity;

/// A tunnel that ends at this replica.
#[derive(Debug)]
pub struct TunnelEntry {
    /// Sends requests into the tunnel.
    pub tunnel: Tunnel,
    /// The agent at the other end of the tunnel.
    pub agent: AgentIdentity,
    /// The hello of the agent. It is bounded and printable, but otherwise not trusted.
    pub hello: Arc<Hello>,
    /// The address of the agent.
    pub peer: String,
    /// The time at which the tunnel was opened.
    pub since: SystemTime,
    /// Cancelled once the tunnel should move to another replica.
    pub move_requested: CancellationToken,
    /// True if kas has dialled the tunnel.
    pub dialled: bool,
}
