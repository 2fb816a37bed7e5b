//! The repositories of projects.

use std::{
    fmt,
    hash::{Hash, Hasher},
    sync::Arc,
};

use access::AgentIdentity;
use futures_util::future::BoxFuture;
use git::{Reference, Repository};
use secrecy::SecretString;

use super::ProjectAccessError;

/// A source of answers: which repository does a project have, and may an agent read it?
pub trait ProjectSource: fmt::Debug + Send + Sync {
    /// Returns the repository with the configuration of an agent.
    ///
    /// # Errors
    ///
    /// The source does not know it yet.
    fn configuration_project<'a>(
        &'a self,
        agent: &'a AgentIdentity,
    ) -> BoxFuture<'a, Result<ProjectVersion, ProjectAccessError>>;

    /// Returns the repository of another project, if the agent with this token may read it. Questions of callers must
    /// not delay those for agents.
    ///
    /// # Errors
    ///
    /// The agent may not read it, or the source does not respond.
    fn readable_project<'a>(
        &'a self,
        agent: &'a AgentIdentity,
        token: &'a SecretString,
        project: &'a str,
        asker: ProjectAsker,
    ) -> BoxFuture<'a, Result<ProjectVersion, ProjectAccessError>>;
}

/// The party for which kas asks about a project.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProjectAsker {
    /// The agent, which follows the project.
    Agent,
    /// A caller, whose right depends on the answer. There may be many of its requests.
    Caller,
}

/// The repository of a project, with the credential for it.
pub trait ProjectRepository: fmt::Debug + Send + Sync {
    /// Returns the id of the project.
    fn project(&self) -> u64;

    /// Returns the address of the server.
    fn server(&self) -> &str;

    /// Returns the same text for the same repository with the same credential, at each replica. It contains no secret.
    fn key(&self) -> &str;

    /// Opens a version of the repository.
    fn open(&self, reference: Reference) -> Arc<dyn Repository>;
}

/// A version of the repository of a project. Equal ones share one cache, also if several agents follow them.
#[derive(Clone, Debug)]
pub struct ProjectVersion {
    /// The repository.
    pub repository: Arc<dyn ProjectRepository>,
    /// The version.
    pub reference: Reference,
}

impl PartialEq for ProjectVersion {
    fn eq(&self, other: &Self) -> bool {
        self.repository.key() == other.repository.key() && self.reference == other.reference
    }
}

impl Eq for ProjectVersion {}

impl Hash for ProjectVersion {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.repository.key().hash(state);
        self.reference.hash(state);
    }
}

/// The repository and the version.
impl fmt::Display for ProjectVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.repository.key(), self.reference)
    }
}
