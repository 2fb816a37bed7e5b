//! Why another replica was good for nothing.

use proto::Reason;

use crate::metrics::Asked;

/// A replica that did not say that it holds the agent.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Trouble {
    /// It said why not.
    #[error("{message}")]
    Declines {
        /// For programs.
        reason: Reason,
        /// For people.
        message: String,
    },
    /// No connection.
    #[error("no connection to it: {0}")]
    Unreachable(String),
    /// No answer in time.
    #[error("it did not answer in time")]
    Silent,
    /// No answer of a kas.
    #[error("it does not answer as a kas of this version does: {0}")]
    Garbage(String),
    /// It does not prove that it belongs to us.
    #[error(
        "it and this replica do not trust one another: they have different secrets \
         (private_api.listen.authentication_secret_file), or clocks that differ"
    )]
    Untrusted,
}

impl Trouble {
    /// What it is counted as.
    pub fn asked(&self) -> Asked {
        match self {
            Self::Declines { reason: Reason::AgentNotConnected, .. } => Asked::Absent,
            Self::Declines { reason: Reason::Unauthorized, .. } | Self::Untrusted => Asked::Untrusted,
            Self::Declines { .. } => Asked::Declined,
            Self::Unreachable(_) => Asked::Unreachable,
            Self::Silent => Asked::Silent,
            Self::Garbage(_) => Asked::Garbage,
        }
    }

    /// Whether the replica is well and only has not what is asked for.
    pub fn is_healthy(&self) -> bool {
        matches!(self.asked(), Asked::Absent | Asked::Declined)
    }
}
