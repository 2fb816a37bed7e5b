//! The commands of `loadtest` against servers that are unreachable, slow, refusing or broken, and through kas and agentk.
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

mod directory;
mod failover;
mod hol;
mod http;
mod program;
mod restarts;
mod server;
mod soak;
mod storm;
mod through;
mod upgrade;
