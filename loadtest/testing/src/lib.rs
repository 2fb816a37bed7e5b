//! A simulated cluster, stand-ins and fixtures, which `loadtest` and the tests of several crates share.
//!
//! ```text
//!   simulator: a Kubernetes cluster in memory      gitlab: the internal API of GitLab in memory
//!   process, skip: programs as child processes       └─► kas: kas, agentk and their servers in this process,
//!     └─► redis: redis-server                                 over in-memory pipes
//!   logs: capture of log lines
//! ```
//!
//! The features `simulator`, `gitlab` and `kas` add the modules of these names.

#[cfg(feature = "gitlab")]
pub mod gitlab;
#[cfg(feature = "kas")]
pub mod kas;
pub mod logs;
pub mod process;
pub mod redis;
#[cfg(feature = "simulator")]
pub mod simulator;
pub mod skip;
