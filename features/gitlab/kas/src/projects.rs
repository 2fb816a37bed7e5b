//! The repositories of agents of GitLab: GitLab says which ones an agent may read, and Gitaly serves them.

use std::{collections::HashMap, sync::Arc, time::Duration};

use access::AgentIdentity;
use futures_util::future::BoxFuture;
use git::{Reference, Repository};
use gitops_wire::{ProjectAccessError, ProjectRepository, ProjectSource, ProjectVersion};
use parking_lot::Mutex;
use proto::AgentId;
use secrecy::{ExposeSecret as _, SecretString};
use sha2::{Digest as _, Sha256};
use tokio::time::Instant;

use super::{
    BudgetShare, GitLabAgents, GitLabClient, ProjectInfo,
    gitaly::{GitalyClient, GitalyRepository},
};

/// The time for which an answer of GitLab counts: whoever loses the right to a project loses its commits after it.
const TTL: Duration = Duration::from_secs(60);

/// The projects of agents of GitLab.
#[derive(Debug)]
pub struct GitLabProjects {
    client: GitLabClient,
    agents: GitLabAgents,
    gitaly: GitalyClient,
    known: Mutex<HashMap<(AgentId, String), Answer>>,
}

/// The time of the request to GitLab, and the repository, or the reason why the agent may not read it.
type Answer = (Instant, Result<Arc<ProjectInfo>, ProjectAccessError>);

/// A repository of Gitaly.
#[derive(Debug)]
struct GitalyProject {
    client: GitalyClient,
    project: Arc<ProjectInfo>,
    /// The server, the digest of the credential, which GitLab may replace, and the repository.
    key: String,
}

impl GitLabProjects {
    /// Returns the projects of the agents of a GitLab, whose repositories `gitaly` reads.
    pub fn new(client: GitLabClient, agents: GitLabAgents, gitaly: GitalyClient) -> Self {
        Self { client, agents, gitaly, known: Mutex::default() }
    }

    /// Returns a project that is not the one with the configuration of the agent, if GitLab lets the agent read it.
    async fn readable(
        &self,
        agent: &AgentIdentity,
        token: &SecretString,
        id: &str,
    ) -> Result<Arc<ProjectInfo>, ProjectAccessError> {
        let key = (agent.id, id.to_owned());
        let now = Instant::now();
        let known = self.known.lock().get(&key).filter(|(at, _)| now - *at < TTL).cloned();
        match known {
            Some((_, answer)) => answer,
            None => {
                let client = self.client.with_share(BudgetShare::Rechecks);
                let answer = match client.project_info(token, id).await {
                    Ok(Some(project)) => Ok(Arc::new(project)),
                    Ok(None) => Err(ProjectAccessError::Refused(format!(
                        "GitLab does not let the agent read the project {id}: it must be public, or the project of the agent's \
                         configuration"
                    ))),
                    // It is asked again at the next look.
                    Err(error) => {
                        let message = format!("GitLab does not say whether the agent may read {id}: {error}");
                        return Err(ProjectAccessError::Unknown(message));
                    }
                };
                let mut all = self.known.lock();
                all.retain(|_, (at, _)| now - *at < TTL);
                all.insert(key, (now, answer.clone()));
                answer
            }
        }
    }

    fn version(&self, project: Arc<ProjectInfo>) -> Result<ProjectVersion, ProjectAccessError> {
        let ProjectInfo { gitaly, repository, default_branch, .. } = &*project;
        if gitaly.address.is_empty() {
            let message = "GitLab does not say which Gitaly has the project";
            return Err(ProjectAccessError::Unknown(message.to_owned()));
        }
        let credential: [u8; 32] = Sha256::digest(gitaly.token.expose_secret()).into();
        let key = format!("gitaly {} {credential:?} {repository:?}", gitaly.address);
        let reference = Reference::of_branch(Some(default_branch));
        let repository = Arc::new(GitalyProject { client: self.gitaly.clone(), project, key });
        Ok(ProjectVersion { repository, reference })
    }
}

impl ProjectSource for GitLabProjects {
    fn configuration_project<'a>(
        &'a self,
        agent: &'a AgentIdentity,
    ) -> BoxFuture<'a, Result<ProjectVersion, ProjectAccessError>> {
        Box::pin(async move {
            let info = self.agents.info(agent.id).await.ok_or_else(|| {
                let message = "GitLab has not said yet which project is that of the agent";
                ProjectAccessError::Unknown(message.to_owned())
            })?;
            self.version(Arc::new(ProjectInfo::from(&*info)))
        })
    }

    fn readable_project<'a>(
        &'a self,
        agent: &'a AgentIdentity,
        token: &'a SecretString,
        project: &'a str,
    ) -> BoxFuture<'a, Result<ProjectVersion, ProjectAccessError>> {
        Box::pin(async move { self.version(self.readable(agent, token, project).await?) })
    }
}

impl ProjectRepository for GitalyProject {
    fn project(&self) -> u64 {
        self.project.id
    }

    fn server(&self) -> &str {
        &self.project.gitaly.address
    }

    fn key(&self) -> &str {
        &self.key
    }

    fn open(&self, reference: Reference) -> Arc<dyn Repository> {
        let ProjectInfo { gitaly, repository, .. } = &*self.project;
        let (server, location) = ((**gitaly).clone(), repository.clone());
        Arc::new(GitalyRepository::new(self.client.clone(), server, location, reference, None))
    }
}
