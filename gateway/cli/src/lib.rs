//! The parts of the command line of kas that know nothing of a replica.
//!
//! * [`AuditCommand`] shows who has done what in a cluster, as a caller of kas.
//! * [`EnvironmentsCommand`] lists environments with their deployments, and shows and deletes their objects, as a caller of kas.
//! * [`AgentListCommand`] and [`FleetCommand`] show all agents of a caller of kas, and their clusters. [`ApplicationsCommand`] and
//!   [`ComponentsCommand`] list the applications and the programs in these clusters.
//! * [`GitopsCommand`] shows and controls manifests, as a caller of kas.
//! * [`EventsCommand`] shows what has happened to agents and in their clusters.
//! * [`TreeCommand`], [`GroupsCommand`] and [`HealthCommand`] show what runs in a cluster, as a caller of kas.
//! * [`Login`] and [`Logout`] are whole commands: the login of a person at an OIDC issuer, for kubectl.
//! * [`RegisterCommand`] registers an agent in GitLab, and installs it. [`chart`] has the values of the chart of agentk.
//! * A command returns a [`CommandResult`]; a [`CliError`] is one line and an exit code.
//! * [`table`] aligns columns, [`shell`] quotes arguments, and [`manual`] writes the manual and completion scripts.
#![warn(missing_docs)]

mod audit;
mod caller;
pub mod chart;
mod environments;
mod error;
mod events;
mod fleet;
mod gitops;
mod graph;
mod http_client;
mod login;
pub mod manual;
mod register;
mod retry;
pub mod shell;
pub mod table;
mod time_argument;

use self::time_argument::parse_time;
pub use self::{
    audit::AuditCommand,
    environments::EnvironmentsCommand,
    error::{CliError, CommandResult, print, warn},
    events::EventsCommand,
    fleet::{AgentListCommand, ApplicationsCommand, ComponentsCommand, FleetCommand},
    gitops::GitopsCommand,
    graph::{GroupsCommand, HealthCommand, HealthPlace, TreeCommand},
    login::{Login, Logout},
    register::RegisterCommand,
};
