//! agentk: its command line ([`cli`]), its features, and how it starts and stops ([`App`]).
//!
//! The crate `agentk-core` has the tunnels and the requests. Each feature has a crate `features/<name>/agentk`, and here is the
//! list of them (`features`). [`admission`] is a webhook that decides by the policy of agentk about what the API server receives.

pub mod admission;
mod app;
mod check;
pub mod cli;
mod features;
mod log_filter;

pub use agentk_core::TaskPanicError;

pub use self::{
    admission::AdmissionApp, app::App, check::CheckCommand, features::feature_writes, log_filter::log_filter,
};
