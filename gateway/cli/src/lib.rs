//! The parts of the command line of kas that know nothing of a replica.
//!
//! * [`EnvironmentsCommand`] shows and deletes the objects of environments, as a caller of kas.
//! * [`GitopsCommand`] shows and controls manifests, as a caller of kas.
//! * [`TreeCommand`], [`GroupsCommand`] and [`HealthCommand`] show what runs in a cluster, as a caller of kas.
//! * [`Login`] and [`Logout`] are whole commands: the login of a person at an OIDC issuer, for kubectl.
//! * A command returns a [`CommandResult`]; a [`CliError`] is one line and an exit code.
//! * [`table`] aligns columns, and [`manual`] writes the manual and completion scripts.
#![warn(missing_docs)]

mod caller;
mod environments;
mod error;
mod gitops;
mod graph;
mod login;
pub mod manual;
pub mod table;

pub use self::{
    environments::EnvironmentsCommand,
    error::{CliError, CommandResult, print, warn},
    gitops::GitopsCommand,
    graph::{GroupsCommand, HealthCommand, HealthPlace, TreeCommand},
    login::{Login, Logout},
};
