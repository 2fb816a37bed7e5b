//! The repositories of agents of GitLab: GitLab says which ones an agent may read, and Gitaly serves them.

use std::{sync::Arc, time::Duration};

use access::AgentIdentity;
use futures_util::future::BoxFuture;
use git::{Reference, Repository};
use gitops_wire::{ProjectAccessError, ProjectAsker, ProjectRepository, ProjectSource, ProjectVersion};
use moka::future::Cache;
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
/// The time for which callers get the same error.
const ERROR_TTL: Duration = Duration::from_secs(5);
/// The most answers that are cached.
const CAPACITY: u64 = 10_000;

/// The projects of agents of GitLab.
#[derive(Debug)]
pub struct GitLabProjects {
    client: GitLabClient,
    agents: GitLabAgents,
    gitaly: GitalyClient,
    known: Cache<(AgentId, String), Answer>,
}

/// An answer of GitLab.
#[derive(Clone, Debug)]
struct Answer {
    /// The repository, or the reason why the agent may not read it.
    result: Result<Arc<ProjectInfo>, ProjectAccessError>,
    expires: Instant,
}

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
        let known = Cache::builder().max_capacity(CAPACITY).time_to_live(TTL).build();
        Self { client, agents, gitaly, known }
    }

    /// Returns a project that is not the one with the configuration of the agent, if GitLab lets the agent read it. Requests of callers share
    /// one question, and its error.
    async fn readable(
        &self,
        agent: &AgentIdentity,
        token: &SecretString,
        id: &str,
        asker: ProjectAsker,
    ) -> Result<Arc<ProjectInfo>, ProjectAccessError> {
        let key = (agent.id, id.to_owned());
        let known = self.known.get(&key).await.filter(|answer| !answer.is_expired());
        let (token, id) = (token.clone(), id.to_owned());
        match (known, asker) {
            // After an error, each look of an agent asks again.
            (Some(answer), ProjectAsker::Agent) if !answer.is_error() => answer.result,
            (Some(answer), ProjectAsker::Caller) => answer.result,
            (_, ProjectAsker::Agent) => {
                let client = self.client.with_share(BudgetShare::Rechecks);
                let answer = Answer::of_gitlab(client, token, id).await;
                self.known.insert(key, answer.clone()).await;
                answer.result
            }
            (None, ProjectAsker::Caller) => {
                let (known, client) = (self.known.clone(), self.client.with_share(BudgetShare::KnownCallers));
                // It goes on without the caller, so that the next request finds the answer.
                let asked = tokio::spawn(async move {
                    let answer = Answer::of_gitlab(client, token, id);
                    let entry = known.entry(key).or_insert_with_if(answer, |cached| cached.is_expired());
                    entry.await.into_value().result
                });
                asked.await.unwrap_or_else(|error| {
                    Err(ProjectAccessError::Unknown(format!("the question to GitLab has failed: {error}")))
                })
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

impl Answer {
    /// Asks GitLab whether the agent with this token may read a project.
    async fn of_gitlab(client: GitLabClient, token: SecretString, id: String) -> Self {
        let begin = Instant::now();
        let result = match client.project_info(&token, &id).await {
            Ok(Some(project)) => Ok(Arc::new(project)),
            Ok(None) => Err(ProjectAccessError::Refused(format!(
                "GitLab does not let the agent read the project {id}: it must be public, or the project of the agent's configuration"
            ))),
            Err(error) => {
                let message = format!("GitLab does not say whether the agent may read {id}: {error}");
                let result = Err(ProjectAccessError::Unknown(message));
                return Self { result, expires: Instant::now() + ERROR_TTL };
            }
        };
        Self { result, expires: begin + TTL }
    }

    fn is_expired(&self) -> bool {
        self.expires <= Instant::now()
    }

    fn is_error(&self) -> bool {
        matches!(self.result, Err(ProjectAccessError::Unknown(_)))
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
        asker: ProjectAsker,
    ) -> BoxFuture<'a, Result<ProjectVersion, ProjectAccessError>> {
        Box::pin(async move { self.version(self.readable(agent, token, project, asker).await?) })
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
