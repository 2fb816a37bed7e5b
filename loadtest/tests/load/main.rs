//! The commands that send load, as an operator runs them: against servers that are dead, slow, refusing or broken, and
//! through kas and agentk.
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

mod directory;
mod failover;
mod hol;
mod http;
mod program;
mod server;
mod storm;
mod through;
mod upgrade;
