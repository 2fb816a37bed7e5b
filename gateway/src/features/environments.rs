//! The environments of CI jobs: those that agents name, and those whose objects kas lets agentk make.

pub(crate) mod api;
mod config;
pub(crate) mod health;
mod named;
mod provisioner;
mod template;

pub use self::config::ManagedResourcesConfig;
pub(crate) use self::{named::AgentEnvironments, provisioner::Provisioner, template::check_template};
