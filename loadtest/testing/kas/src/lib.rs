//! kas, agentk and a cluster in this process, over in-memory pipes, and the servers that kas uses.
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

pub mod fleet;
pub mod gitaly;
pub mod gitlab;
pub mod handshake;
pub mod internal_api;
pub mod issuer;
pub mod load_balancer;
pub mod page_login;
pub mod server;
pub mod world;
