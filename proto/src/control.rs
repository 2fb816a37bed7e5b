//! The `control` service: requests of kas to agentk itself.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::duration;

/// Path of the request to drain the tunnel that it arrives on. The body is a [`DrainRequest`] as JSON, the response is 202.
pub const DRAIN_PATH: &str = "/drain";
/// Longest body of a control request, in bytes.
pub const MAX_BODY: usize = 4096;

/// Asks agentk to open another tunnel first, and then to drain this one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DrainRequest {
    /// The reason for the drain.
    pub reason: DrainReason,
    /// The time that the streams of the tunnel have to finish. Streams that are left then are aborted.
    #[serde(with = "duration")]
    pub within: Duration,
}

/// The reason why kas drains a tunnel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DrainReason {
    /// The tunnel reached its maximum age.
    MaxAge,
    /// The replica is stopping.
    Shutdown,
    /// The agent should have a tunnel to another replica instead.
    Rebalance,
}
