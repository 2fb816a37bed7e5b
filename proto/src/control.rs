//! The `control` service: what kas asks of agentk itself.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::duration;

/// Path of the request that asks agentk to leave a tunnel; the body is a [`Drain`] as JSON, the answer 202.
pub const DRAIN_PATH: &str = "/drain";
/// Most bytes of a control request's body.
pub const MAX_BODY: usize = 4096;

/// Please open another tunnel first, then let this one finish its streams.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Drain {
    /// Why.
    pub reason: DrainReason,
    /// How long the tunnel's streams may still take; what is left then is cut.
    #[serde(with = "duration")]
    pub within: Duration,
}

/// Why a tunnel is to be left.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DrainReason {
    /// The tunnel reached its maximum age.
    MaxAge,
    /// The replica is stopping.
    Shutdown,
    /// Another replica should hold it.
    Rebalance,
}
