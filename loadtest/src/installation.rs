//! An installation of kas, agentk, Redis and a cluster on this machine, and the commands that break its parts.
//!
//! ```text
//!   stack: processes of kas, agentk and Redis       agent_fleet: thousands of agents in this process
//!        └─► failover, restarts, storm: kill parts, and count what callers and agents see
//!        └─► directory: what idle agents cost Redis
//!        └─► events: one event of a project for many agents
//!        └─► gitops: manifests from Git and a real cluster
//!        └─► graph: what runs in a simulated cluster with many objects
//! ```

pub mod agent_fleet;
mod callers;
pub mod directory;
pub mod events;
pub mod failover;
pub mod gitops;
pub mod graph;
pub mod restarts;
pub mod stack;
pub mod storm;
