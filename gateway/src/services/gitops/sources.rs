//! Which repository a project is, and the newest commits of repositories.

use std::{
    collections::HashMap,
    sync::{Arc, Weak},
    time::Duration,
};

use access::{AgentIdentity, ConfigurationLocation, Identities};
use git::{Commit, GitRepositories, Reference, Repository, RepositoryError, RepositorySettings};
use parking_lot::Mutex;
use proto::agent_configuration::gitops::{GitRef, ManifestProject};
use tokio::time::Instant;

use super::config::GitopsSource;

/// The repositories of all projects at this replica.
#[derive(Debug)]
pub(super) struct Sources {
    identities: Identities,
    /// The repository of agents whose entry in the identity file has no configuration.
    default: Option<Arc<RepositorySettings>>,
    configured: Arc<Vec<GitopsSource>>,
    repositories: GitRepositories,
    followed: Mutex<HashMap<Arc<RepositorySettings>, Weak<FollowedReference>>>,
}

/// The last look at a reference, and when it ended.
type Lookup = (Instant, Result<Option<Commit>, RepositoryError>);

/// A reference of a repository, which all agents look up together.
#[derive(Debug)]
pub(super) struct FollowedReference {
    pub(super) repository: Arc<dyn Repository>,
    #[expect(
        clippy::disallowed_types,
        reason = "agents that look at the same time wait for one exchange, which has a time limit"
    )]
    last: tokio::sync::Mutex<Option<Lookup>>,
}

impl Sources {
    pub(super) fn new(
        identities: Identities,
        default: Option<Arc<RepositorySettings>>,
        configured: Arc<Vec<GitopsSource>>,
    ) -> Self {
        let (repositories, followed) = (GitRepositories::default(), Mutex::default());
        Self { identities, default, configured, repositories, followed }
    }

    /// Returns what a project follows, if the agent may read it now. `own` is the id of the project with the agent's configuration.
    ///
    /// # Errors
    ///
    /// The agent may not read the project, or nobody knows its repository. The error is a sentence.
    pub(super) fn follow(
        &self,
        agent: &AgentIdentity,
        project: &ManifestProject,
        own: &str,
    ) -> Result<Arc<FollowedReference>, String> {
        let id = project.id.as_deref().unwrap_or(own);
        let mut settings = match id == own {
            true => self.own(agent)?,
            false => {
                let source = self
                    .configured
                    .iter()
                    .find(|source| source.id == id && source.agents.contains(&agent.name));
                let source = source.ok_or_else(|| {
                    format!(
                        "the agent may not read the project {id}: list the project in agent.gitops.repositories of kas, with this \
                         agent"
                    )
                })?;
                source.settings.clone()
            }
        };
        if let Some(reference) = &project.r#ref {
            settings.reference = match reference {
                GitRef::Branch(name) => Reference::Branch(name.clone()),
                GitRef::Tag(name) => Reference::Tag(name.clone()),
                GitRef::Commit(id) => {
                    Reference::Commit(id.parse().map_err(|_| "ref.commit is not the id of a commit")?)
                }
            };
        }
        Ok(self.followed(settings))
    }

    /// Returns the repository with the configuration of the agent.
    fn own(&self, agent: &AgentIdentity) -> Result<RepositorySettings, String> {
        let identity = self.identities.load();
        let listed = identity.name(agent.id) == Some(&agent.name);
        match identity.configuration(agent.id).filter(|_| listed) {
            Some(ConfigurationLocation::Repository(settings)) => Ok((**settings).clone()),
            Some(ConfigurationLocation::File(_)) => {
                Err("the configuration of the agent is a file and no repository: set the id of the project"
                    .to_owned())
            }
            None => {
                let default = self.default.as_ref().filter(|_| listed);
                let missing = "kas does not know the repository of the agent's configuration: set the id of the project";
                default.map(|settings| (**settings).clone()).ok_or_else(|| missing.to_owned())
            }
        }
    }

    fn followed(&self, settings: RepositorySettings) -> Arc<FollowedReference> {
        let settings = Arc::new(settings);
        let mut all = self.followed.lock();
        if let Some(followed) = all.get(&settings).and_then(Weak::upgrade) {
            return followed;
        }
        all.retain(|_, followed| followed.strong_count() > 0);
        let followed = Arc::new(FollowedReference {
            repository: self.repositories.get(&settings),
            last: Default::default(),
        });
        all.insert(settings, Arc::downgrade(&followed));
        followed
    }
}

impl FollowedReference {
    /// Returns the newest commit, as it was at most `age` ago.
    ///
    /// # Errors
    ///
    /// The repository cannot be reached, or does not have the reference.
    pub(super) async fn newest(&self, age: Duration) -> Result<Option<Commit>, RepositoryError> {
        let asked = Instant::now();
        let mut last = self.last.lock().await;
        if let Some((at, found)) = &*last
            && *at + age >= asked
        {
            return found.clone();
        }
        let found = self.repository.resolve().await;
        *last = Some((Instant::now(), found.clone()));
        found
    }
}
