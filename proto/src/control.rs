//! The `control` service: requests of kas to agentk itself.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use settings::duration;

use crate::ServiceName;

/// Path of the request to drain the tunnel that it arrives on. The body is a [`DrainRequest`] as JSON, the response is 202.
pub const DRAIN_PATH: &str = "/drain";
/// Path of the request with the rules by which the operator of kas has disabled the agent. The body is a [`DisabledNotice`] as
/// JSON, the response is 202.
pub const DISABLED_PATH: &str = "/disabled";
/// Longest body of a control request, in bytes. A notice of [`DisabledNotice::MAX_RULES`] rules is shorter.
pub const MAX_BODY: usize = 64 << 10;

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

/// Reports the rules by which the operator of kas has disabled the agent for all callers.
///
/// A notice replaces the previous one of the same tunnel. One without rules reports that the agent is enabled again.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DisabledNotice {
    /// The rules, at most [`Self::MAX_RULES`].
    pub rules: Vec<DisabledScope>,
}

/// One rule of a [`DisabledNotice`].
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct DisabledScope {
    /// The disabled service; `None` for all services.
    pub service: Option<ServiceName>,
    /// The reason, as the operator wrote it.
    pub reason: String,
    /// The time at which the rule ends (RFC 3339), if it ends by itself.
    pub until: Option<String>,
}

impl DisabledNotice {
    /// The most rules of one notice.
    pub const MAX_RULES: usize = 16;
}
