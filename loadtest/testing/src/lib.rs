//! A simulated cluster, stand-ins and fixtures, which `loadtest` and the tests of several crates share.
//!
//! ```text
//!   simulator: a Kubernetes cluster in memory      gitlab: the API of GitLab in memory
//!   json_schema: values against a schema
//!   process, skip: programs as child processes     logs: capture of log lines     crates: those of a program
//!     └─► redis: redis-server                      test_cluster: an API server that a test writes
//! ```
//!
//! The features `simulator`, `gitlab`, `json-schema` and `test-cluster` add the modules of these names.

pub mod crates;
#[cfg(feature = "gitlab")]
pub mod gitlab;
#[cfg(feature = "json-schema")]
pub mod json_schema;
pub mod logs;
pub mod process;
pub mod redis;
#[cfg(feature = "simulator")]
pub mod simulator;
pub mod skip;
#[cfg(feature = "test-cluster")]
pub mod test_cluster;
