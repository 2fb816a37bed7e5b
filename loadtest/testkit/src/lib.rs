//! Fixtures that the tests of several crates share.
//!
//! With the feature `kas`, `world` and `fleet` are kas, agentk and a cluster in this process, over in-memory pipes.
#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    clippy::print_stdout,
    reason = "a failed step is a failed test, and the helpers for processes are for tests without a runtime"
)]

#[cfg(feature = "kas")]
pub mod fleet;
#[cfg(feature = "kas")]
pub mod gitaly;
#[cfg(feature = "kas")]
pub mod gitlab;
#[cfg(feature = "kas")]
pub mod handshake;
#[cfg(feature = "kas")]
pub mod internal_api;
#[cfg(feature = "kas")]
pub mod issuer;
#[cfg(feature = "kas")]
pub mod load_balancer;
pub mod logs;
pub mod process;
pub mod redis;
#[cfg(feature = "kas")]
pub mod server;
pub mod skip;
#[cfg(feature = "kas")]
pub mod world;
