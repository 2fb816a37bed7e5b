//! What `kas` and `agentk` are tried against: load, demonstrations, and a cluster that is not one.

pub mod agents;
pub mod bench;
pub mod bulk;
pub mod demo;
pub mod directory;
pub mod failover;
pub mod fleet;
pub mod hol;
pub mod http;
pub mod load;
pub mod simulator;
pub mod soak;
pub mod stack;
pub mod storm;
pub mod upgrade;

/// Prints to standard output; a reader that went away is an error as any other.
pub(crate) fn say(what: &impl std::fmt::Display) -> std::io::Result<()> {
    use std::io::Write as _;

    writeln!(std::io::stdout().lock(), "{what}")
}
