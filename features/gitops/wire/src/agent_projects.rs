//! The Git projects of agents: which ones an agent may read, and their newest commits.

use std::{fmt::Debug, time::Duration};

use access::AgentIdentity;
use futures_util::future::BoxFuture;
use secrecy::SecretString;

/// The Git projects that agents may read.
pub trait AgentProjects: Debug + Send + Sync {
    /// Returns whether the operator of kas has chosen the configuration of an agent: the identity file has the agent.
    fn is_configured_by_operator(&self, agent: &AgentIdentity) -> bool;

    /// Checks that an agent may read a project.
    ///
    /// # Errors
    ///
    /// The agent may not read it, or the source does not respond.
    fn check_access<'a>(
        &'a self,
        reader: ProjectReader<'a>,
        project: &'a str,
    ) -> BoxFuture<'a, Result<(), ProjectAccessError>>;

    /// Returns the full name of the default branch of a project and its newest commit, as it was at most `age` ago.
    ///
    /// # Errors
    ///
    /// The agent may not read the project, or the repository cannot be reached. The error is a sentence.
    fn newest_commit<'a>(
        &'a self,
        reader: ProjectReader<'a>,
        project: &'a str,
        age: Duration,
    ) -> BoxFuture<'a, Result<Option<(String, String)>, String>>;
}

/// An agent that reads projects.
#[derive(Clone, Copy, Debug)]
pub struct ProjectReader<'a> {
    /// The agent.
    pub agent: &'a AgentIdentity,
    /// Its token.
    pub token: &'a SecretString,
    /// The project with its configuration.
    pub own: &'a str,
}

/// The reason why an agent receives nothing of a project. Each is a sentence.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProjectAccessError {
    /// The source does not say now whether the agent may read the project, or where it is. The next look asks again.
    #[error("{0}")]
    Unknown(String),
    /// The agent may not read the project, or there is no such version of it.
    #[error("{0}")]
    Refused(String),
}
