//! The agent of a token, and the repository of its configuration.

use std::sync::Arc;

use http::StatusCode;
use proto::{AgentId, AgentName};
use secrecy::SecretString;
use serde::Deserialize;

use super::{Credential, Endpoint, GitLabClient, GitLabError};
use crate::gitaly::{GitalyServer, messages::RepositoryLocation};

/// The answer of GitLab to `agent_info`.
#[derive(Clone, Debug)]
pub struct AgentInfo {
    /// The id of the agent.
    pub agent: AgentId,
    /// The name of the agent, or `agent-<id>` if kas cannot use it as a name, because it has only digits.
    pub name: AgentName,
    /// The id of the configuration project.
    pub project: u64,
    /// The Gitaly that holds the repository. Agents with the same server share it.
    pub gitaly: Arc<GitalyServer>,
    /// The repository of the configuration project.
    pub repository: RepositoryLocation,
    /// The default branch of the repository.
    pub default_branch: String,
}

impl AgentInfo {
    /// Returns the path of the configuration project, if GitLab has said it.
    pub(crate) fn project_path(&self) -> Option<Arc<str>> {
        let path = &*self.repository.gl_project_path;
        (!path.is_empty()).then(|| path.into())
    }
}

#[derive(Deserialize)]
struct Body {
    project_id: u64,
    agent_id: AgentId,
    agent_name: String,
    #[serde(default)]
    gitaly_info: serde_json::Value,
    gitaly_repository: Option<RepositoryLocation>,
    default_branch: Option<String>,
}

impl GitLabClient {
    /// Returns the agent that holds a token, or `None` if GitLab does not know the token.
    ///
    /// GitLab counts this as a use of the token, and shows the agent as connected for some minutes.
    ///
    /// # Errors
    ///
    /// GitLab gives no usable answer about the token.
    pub async fn agent_info(&self, token: &SecretString) -> Result<Option<AgentInfo>, GitLabError> {
        let first = self.agent_info_endpoint();
        let mut result = self.try_get::<Body>(first, &[], Credential::Agent(token)).await;
        if is_not_found(&result) {
            // An old GitLab does not have the new path, and a future one may not have the old one.
            let other = match first {
                Endpoint::AgentInfo => Endpoint::LegacyAgentInfo,
                _ => Endpoint::AgentInfo,
            };
            result = self.try_get(other, &[], Credential::Agent(token)).await;
            if is_not_found(&result) {
                self.switch().suspect();
                let what =
                    "it answers 404: it has switched kas off, or gitlab.address is not the URL of a GitLab";
                return Err(GitLabError::unavailable(what));
            }
            self.set_agent_info_endpoint(other);
        }
        match result {
            Ok(body) => self.parse(body).map(Some),
            Err(error) if error.is_status(StatusCode::UNAUTHORIZED) => Ok(None),
            // Any other refusal is not about the token: a proxy or an allowlist refuses kas.
            Err(GitLabError::Status { status, message }) => {
                Err(GitLabError::unavailable(format!("it responded with {status}: {message}")))
            }
            Err(error) => Err(error),
        }
    }

    fn parse(&self, body: Body) -> Result<AgentInfo, GitLabError> {
        let Body { agent_id: agent, agent_name, .. } = body;
        let name = agent_name.parse().or_else(|_| format!("agent-{agent}").parse());
        Ok(AgentInfo {
            agent,
            name: name.map_err(|_| GitLabError::unavailable("its agent has no name"))?,
            project: body.project_id,
            gitaly: self.gitaly_servers().get(body.gitaly_info)?,
            repository: body.gitaly_repository.unwrap_or_default(),
            default_branch: body.default_branch.unwrap_or_default(),
        })
    }
}

fn is_not_found<T>(result: &Result<T, GitLabError>) -> bool {
    matches!(result, Err(error) if error.is_status(StatusCode::NOT_FOUND))
}
