//! A tunnel as it stands in the table: what sends requests into it, and what is known of its other end.

use std::time::SystemTime;

use proto::Hello;
use tokio_util::sync::CancellationToken;
use tunnel::Tunnel;

/// The handle of a tunnel on this replica.
#[derive(Debug)]
pub struct Connected {
    /// Sends requests.
    pub tunnel: Tunnel,
    /// What the agent said of itself: bounded and printable, and not to be trusted further than that.
    pub hello: Hello,
    /// Where it connected from.
    pub peer: String,
    /// When it did.
    pub since: SystemTime,
    /// Cancelled once another replica should hold it.
    pub moving: CancellationToken,
}
