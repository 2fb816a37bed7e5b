//! Environments of projects: their sources (the file, agents), the deployments to them, and the objects that agentk makes for CI jobs.
#![warn(missing_docs)]

pub mod api;
mod config;
mod deployments;
mod discovery;
mod environment_request;
mod feature;
mod file;
pub mod health;
mod named;
mod provisioner;
mod template;

pub use self::{
    config::ManagedResourcesConfig,
    deployments::{DeploymentEntry, DeploymentQuery, DeploymentSelection, Deployments},
    environment_request::{EnvironmentRequest, parse_environments},
    feature::EnvironmentsFeature,
    file::EnvironmentFile,
    named::AgentEnvironments,
    template::check_template,
};
