//! The projects of GitLab in which the manifests of agents are.

use std::fmt::Debug;

use futures_util::future::BoxFuture;
use proto::AgentId;

/// Finds the projects of GitLab in which the manifests of agents are.
///
/// Neither a caller nor an agent has a part in the answer: kas reads the configuration of the agent, and the server of the repository
/// gives the id of the project, which stays the same when the project gets another path.
pub trait ManifestOrigins: Debug + Send + Sync {
    /// Returns the id of the project with the manifests that an agent syncs under this name. Returns `None` if the agent syncs nothing under
    /// it, or the manifests are in no project of GitLab that the agent may read.
    ///
    /// # Errors
    ///
    /// See [`ManifestOriginError`].
    fn project_with_manifests<'a>(
        &'a self,
        agent: AgentId,
        name: &'a str,
    ) -> BoxFuture<'a, Result<Option<u64>, ManifestOriginError>>;
}

/// The reason why kas has no answer about the manifests of an agent.
#[derive(Debug, PartialEq, Eq)]
pub enum ManifestOriginError {
    /// kas does not know it now. The text is a sentence.
    Unknown(String),
    /// The agent is connected, and no process of it serves GitOps.
    WithoutGitops,
}
