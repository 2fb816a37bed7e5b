//! The permission of a sync to write.

use tokio::time::Instant;

/// Says before each write whether it may happen.
pub trait Fence: Send + Sync {
    /// Returns the time until which a request may run before the fence must be asked again.
    ///
    /// # Errors
    ///
    /// The sync must stop before its next write.
    fn check(&self) -> Result<Instant, Stopped>;
}

/// The reason why a sync stops before its end. The objects that it has written stay, and the next sync continues from there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Stopped {
    /// Another pod leads.
    #[error("another pod of agentk leads now")]
    LostLease,
    /// There is a newer commit, or the settings have changed.
    #[error("a newer version is there")]
    Superseded,
    /// A person has suspended the project.
    #[error("the project was suspended")]
    Suspended,
    /// The time for a diff is over.
    #[error("it takes too long")]
    TooLong,
}
