//! The environments of projects in kas: those of the file and those that agents name, the deployments of CI jobs to them, and those whose
//! objects kas lets agentk make.
#![warn(missing_docs)]

pub mod api;
mod config;
mod deployments;
mod feature;
mod file;
pub mod health;
mod named;
mod provisioner;
mod template;

pub use self::{
    config::ManagedResourcesConfig,
    deployments::{DeploymentQuery, Deployments},
    feature::EnvironmentsFeature,
    file::EnvironmentFile,
    named::AgentEnvironments,
    template::check_template,
};
