//! The agent in GitLab.

use proto::AgentName;
use serde::Deserialize;
use serde_json::json;

use super::{gitlab::GitLab, project::AgentProject};
use crate::CliError;

/// The agents of a page, which is the most that GitLab has.
const PAGE: usize = 100;
/// The most pages that are read.
const MAX_PAGES: usize = 50;

/// An agent of a project.
#[derive(Debug, Deserialize)]
pub(super) struct RegisteredAgent {
    /// The id.
    pub(super) id: u64,
    name: String,
}

impl RegisteredAgent {
    /// Finds the agent of the project with this name.
    pub(super) async fn find(
        gitlab: &GitLab,
        project: &AgentProject,
        name: &AgentName,
    ) -> Result<Option<Self>, CliError> {
        for page in 1..=MAX_PAGES {
            let path = format!("/projects/{}/cluster_agents?per_page={PAGE}&page={page}", project.id);
            let agents: Vec<Self> =
                gitlab.get(&path).await.map_err(|error| project.error(gitlab, error, "Maintainer"))?;
            let is_last = agents.len() < PAGE;
            let found = agents.into_iter().find(|agent| agent.name == name.as_str());
            if found.is_some() || is_last {
                return Ok(found);
            }
        }
        let most = MAX_PAGES * PAGE;
        Err(CliError::unavailable(format!(
            "{} has more than {most} agents, or GitLab's list does not end",
            project.path
        )))
    }

    /// Registers an agent.
    pub(super) async fn register(
        gitlab: &GitLab,
        project: &AgentProject,
        name: &AgentName,
    ) -> Result<Self, CliError> {
        let path = format!("/projects/{}/cluster_agents", project.id);
        let error = match gitlab.post(&path, &json!({"name": name.as_str()})).await {
            Ok(agent) => return Ok(agent),
            Err(error) => error,
        };
        // Another process has registered it since, or GitLab has done so for a request whose response was lost.
        if error.refusal().is_some_and(|refusal| refusal.is_invalid_because("already been taken"))
            && let Some(agent) = Self::find(gitlab, project, name).await?
        {
            return Ok(agent);
        }
        Err(project.error(gitlab, error, "Maintainer"))
    }
}
