//! The repositories of agents of GitLab: GitLab says which ones an agent may read, and Gitaly serves them.

use std::{
    collections::HashMap,
    fmt,
    hash::{Hash, Hasher},
    sync::Arc,
    time::Duration,
};

use access::AgentIdentity;
use git::{Reference, Repository};
use kas_gitlab::{
    BudgetShare, GitLabAgents, GitLabClient, ProjectInfo,
    gitaly::{GitalyClient, GitalyRepository},
};
use parking_lot::Mutex;
use proto::AgentId;
use secrecy::{ExposeSecret as _, SecretString};
use sha2::{Digest as _, Sha256};
use tokio::time::Instant;

/// The beginning of the error while GitLab does not respond.
pub(in crate::features) const NO_ANSWER: &str = "GitLab does not say";
/// The time for which an answer of GitLab counts: whoever loses the right to a project loses its commits after it.
const TTL: Duration = Duration::from_secs(60);

/// The GitLab of a replica.
pub(in crate::features) struct GitLabParts {
    pub(in crate::features) client: GitLabClient,
    pub(in crate::features) agents: GitLabAgents,
    pub(in crate::features) gitaly: GitalyClient,
}

/// The projects of agents of GitLab.
#[derive(Debug)]
pub(super) struct GitLabProjects {
    client: GitLabClient,
    agents: GitLabAgents,
    gitaly: GitalyClient,
    known: Mutex<HashMap<(AgentId, String), Answer>>,
}

/// The time of the request to GitLab, and the repository, or the reason why the agent may not read it.
type Answer = (Instant, Result<Arc<ProjectInfo>, String>);

/// A version of a repository of Gitaly. Equal ones share one cache, also if several agents follow them.
#[derive(Clone, Debug)]
pub(super) struct GitalySource {
    client: GitalyClient,
    project: Arc<ProjectInfo>,
    reference: Reference,
    /// The digest of the credential, which GitLab may replace.
    credential: [u8; 32],
}

impl GitLabProjects {
    pub(super) fn new(GitLabParts { client, agents, gitaly }: GitLabParts) -> Self {
        Self { client, agents, gitaly, known: Mutex::default() }
    }

    /// Returns the repository with the configuration of an agent.
    pub(super) async fn own(&self, agent: &AgentIdentity) -> Result<GitalySource, String> {
        let info = self.agents.info(agent.id).await;
        let info = info.ok_or("GitLab has not said yet which project is that of the agent")?;
        self.source(Arc::new(ProjectInfo::from(&*info)))
    }

    /// Returns the repository of another project, if GitLab lets the agent read it.
    pub(super) async fn other(
        &self,
        agent: &AgentIdentity,
        token: &SecretString,
        id: &str,
    ) -> Result<GitalySource, String> {
        let key = (agent.id, id.to_owned());
        let now = Instant::now();
        let known = self.known.lock().get(&key).filter(|(at, _)| now - *at < TTL).cloned();
        let answer = match known {
            Some((_, answer)) => answer,
            None => {
                let client = self.client.with_share(BudgetShare::Rechecks);
                let answer = match client.project_info(token, id).await {
                    Ok(Some(project)) => Ok(Arc::new(project)),
                    Ok(None) => Err(format!(
                        "GitLab does not let the agent read the project {id}: it must be public, or the project of the agent's \
                         configuration"
                    )),
                    // It is asked again at the next look.
                    Err(error) => {
                        return Err(format!("{NO_ANSWER} whether the agent may read {id}: {error}"));
                    }
                };
                let mut all = self.known.lock();
                all.retain(|_, (at, _)| now - *at < TTL);
                all.insert(key, (now, answer.clone()));
                answer
            }
        };
        self.source(answer?)
    }

    fn source(&self, project: Arc<ProjectInfo>) -> Result<GitalySource, String> {
        if project.gitaly.address.is_empty() {
            return Err("GitLab does not say which Gitaly has the project".to_owned());
        }
        let credential = Sha256::digest(project.gitaly.token.expose_secret()).into();
        let reference = Reference::of_branch(Some(&project.default_branch));
        Ok(GitalySource { client: self.gitaly.clone(), project, reference, credential })
    }
}

impl GitalySource {
    /// Returns the same repository in another version.
    pub(super) fn at(self, reference: Reference) -> Self {
        Self { reference, ..self }
    }

    /// Returns the id of the project in GitLab.
    pub(super) fn project(&self) -> u64 {
        self.project.id
    }

    /// Returns the address of the server.
    pub(super) fn server(&self) -> &str {
        &self.project.gitaly.address
    }

    pub(super) fn open(&self) -> Arc<dyn Repository> {
        let ProjectInfo { gitaly, repository, .. } = &*self.project;
        let (server, location) = ((**gitaly).clone(), repository.clone());
        Arc::new(GitalyRepository::new(self.client.clone(), server, location, self.reference.clone(), None))
    }

    fn key(&self) -> impl Hash + Eq {
        let ProjectInfo { gitaly, repository, .. } = &*self.project;
        (&gitaly.address, self.credential, repository, &self.reference)
    }
}

/// The repository, the version and the digest of the credential.
impl fmt::Display for GitalySource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ProjectInfo { gitaly, repository, .. } = &*self.project;
        let Self { credential, reference, .. } = self;
        write!(f, "gitaly {} {credential:?} {repository:?} {reference}", gitaly.address)
    }
}

impl PartialEq for GitalySource {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl Eq for GitalySource {}

impl Hash for GitalySource {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.key().hash(state);
    }
}
