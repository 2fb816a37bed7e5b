//! The repositories that an agent of GitLab may read.

use std::sync::Arc;

use http::StatusCode;
use secrecy::SecretString;
use serde::Deserialize;

use super::{AgentInfo, Credential, Endpoint, GitLabClient, GitLabError};
use crate::gitaly::{GitalyServer, messages::RepositoryLocation};

/// The repository of a project.
#[derive(Clone, Debug)]
pub struct ProjectInfo {
    /// The id of the project.
    pub id: u64,
    /// The Gitaly that holds the repository.
    pub gitaly: Arc<GitalyServer>,
    /// The repository.
    pub repository: RepositoryLocation,
    /// The default branch of the repository.
    pub default_branch: String,
}

#[derive(Deserialize)]
struct Body {
    project_id: u64,
    #[serde(default)]
    gitaly_info: serde_json::Value,
    gitaly_repository: Option<RepositoryLocation>,
    default_branch: Option<String>,
}

impl GitLabClient {
    /// Returns the repository of a project by its path or id, or `None` if the agent with this token may not read it.
    ///
    /// # Errors
    ///
    /// GitLab gives no usable answer, or does not know the token.
    pub async fn project_info(
        &self,
        token: &SecretString,
        project: &str,
    ) -> Result<Option<ProjectInfo>, GitLabError> {
        let found =
            self.try_get::<Body>(Endpoint::ProjectInfo, &[("id", project)], Credential::Agent(token)).await;
        let Body { project_id, gitaly_info, gitaly_repository, default_branch } = match found {
            Ok(body) => body,
            Err(error) if error.is_status(StatusCode::NOT_FOUND) => return Ok(None),
            Err(error) => return Err(error),
        };
        Ok(Some(ProjectInfo {
            id: project_id,
            gitaly: self.gitaly_servers().get(gitaly_info)?,
            repository: gitaly_repository.unwrap_or_default(),
            default_branch: default_branch.unwrap_or_default(),
        }))
    }
}

impl GitLabClient {
    /// Returns whether the agent with this token may read a project.
    ///
    /// # Errors
    ///
    /// GitLab gives no usable answer, or does not know the token.
    pub async fn may_read_project(&self, token: &SecretString, project: &str) -> Result<bool, GitLabError> {
        let credential = Credential::Agent(token);
        match self.try_get::<()>(Endpoint::VerifyProjectAccess, &[("id", project)], credential).await {
            Ok(()) => Ok(true),
            Err(error)
                if error.is_status(StatusCode::NOT_FOUND) || error.is_status(StatusCode::FORBIDDEN) =>
            {
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }
}

impl From<&AgentInfo> for ProjectInfo {
    fn from(agent: &AgentInfo) -> Self {
        Self {
            id: agent.project,
            gitaly: Arc::clone(&agent.gitaly),
            repository: agent.repository.clone(),
            default_branch: agent.default_branch.clone(),
        }
    }
}
