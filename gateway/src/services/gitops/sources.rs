//! Which repository a project is, and the newest commits of repositories.

use std::{collections::HashMap, sync::Arc, time::Duration};

use access::{AgentIdentity, ConfigurationLocation, Identities};
use git::{Commit, Reference, Repository, RepositoryError, RepositorySettings};
use oci::{OciRepository, OciSettings};
use parking_lot::Mutex;
use proto::agent_configuration::gitops::{GitRef, ManifestProject};
use secrecy::SecretString;
use tokio::time::Instant;

use super::{
    config::GitopsSource,
    gitlab::{GitLabProjects, GitalySource},
};

/// The time after which what nobody follows any more is forgotten, with its cache.
const IDLE: Duration = Duration::from_secs(3600);

/// The repositories of all projects at this replica.
#[derive(Debug)]
pub(super) struct Sources {
    identities: Identities,
    /// The repository of agents whose entry in the identity file has no configuration.
    default: Option<Arc<RepositorySettings>>,
    configured: Arc<Vec<GitopsSource>>,
    gitlab: Option<GitLabProjects>,
    followed: Mutex<HashMap<SourceSettings, Entry>>,
}

/// A repository or an artifact, with its version and its credentials. Equal settings share one cache.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum SourceSettings {
    Git(RepositorySettings),
    Gitaly(GitalySource),
    Artifact(OciSettings),
}

#[derive(Debug)]
struct Entry {
    followed: Arc<FollowedReference>,
    used: Instant,
}

/// The last look at a reference, and when it ended.
type Lookup = (Instant, Result<Option<Commit>, RepositoryError>);

/// A reference of a repository, which all agents look up together.
#[derive(Debug)]
pub(super) struct FollowedReference {
    pub(super) repository: Arc<dyn Repository>,
    /// The id of the project in GitLab, if that is where the repository is.
    pub(super) gitlab_project: Option<u64>,
    /// What the text of a commit without a configured version is: `branch`, or `artifact`.
    kind: &'static str,
    #[expect(
        clippy::disallowed_types,
        reason = "agents that look at the same time wait for one exchange, which has a time limit"
    )]
    last: tokio::sync::Mutex<Option<Lookup>>,
}

impl SourceSettings {
    /// Returns the same source in another version.
    fn at(self, version: Reference) -> Result<Self, String> {
        Ok(match self {
            Self::Git(settings) => Self::Git(RepositorySettings { reference: version, ..settings }),
            Self::Gitaly(source) => Self::Gitaly(source.at(version)),
            Self::Artifact(settings) => Self::Artifact(settings.at(&version)?),
        })
    }

    fn open(&self) -> Arc<FollowedReference> {
        let (repository, kind, gitlab_project): (Arc<dyn Repository>, _, _) = match self {
            Self::Git(settings) => (git::open(settings), "branch", None),
            Self::Gitaly(source) => (source.open(), "branch", Some(source.project())),
            Self::Artifact(settings) => (Arc::new(OciRepository::new(settings.clone())), "artifact", None),
        };
        Arc::new(FollowedReference { repository, gitlab_project, kind, last: Default::default() })
    }
}

impl Sources {
    pub(super) fn new(
        identities: Identities,
        default: Option<Arc<RepositorySettings>>,
        configured: Arc<Vec<GitopsSource>>,
        gitlab: Option<GitLabProjects>,
    ) -> Self {
        Self { identities, default, configured, gitlab, followed: Mutex::default() }
    }

    /// Returns what a project follows, if the agent with this token may read it now. `own` is the id of the project with the agent's
    /// configuration.
    ///
    /// # Errors
    ///
    /// The agent may not read the project, or nobody knows its repository. The error is a sentence.
    pub(super) async fn follow(
        &self,
        agent: (&AgentIdentity, &SecretString),
        project: &ManifestProject,
        own: &str,
    ) -> Result<Arc<FollowedReference>, String> {
        self.settings(agent, project, own).await.map(|settings| self.followed(settings))
    }

    /// Returns the same as [`Self::follow`] for one look, of which nothing is kept.
    pub(super) async fn look_once(
        &self,
        agent: (&AgentIdentity, &SecretString),
        project: &ManifestProject,
        own: &str,
    ) -> Result<Arc<FollowedReference>, String> {
        self.settings(agent, project, own).await.map(|settings| settings.open())
    }

    async fn settings(
        &self,
        (agent, token): (&AgentIdentity, &SecretString),
        project: &ManifestProject,
        own: &str,
    ) -> Result<SourceSettings, String> {
        let id = project.id.as_deref().unwrap_or(own);
        let listed =
            self.configured.iter().find(|source| source.id == id && source.agents.contains(&agent.name));
        let gitlab = self.gitlab.as_ref().filter(|_| agent.project.is_some());
        let settings = match (id == own, listed, gitlab) {
            (true, _, Some(gitlab)) => SourceSettings::Gitaly(gitlab.own(agent).await?),
            (true, _, None) => SourceSettings::Git(self.own(agent)?),
            (false, Some(source), _) => source.settings.clone(),
            (false, None, Some(gitlab)) => SourceSettings::Gitaly(gitlab.other(agent, token, id).await?),
            (false, None, None) => {
                return Err(format!(
                    "the agent may not read the project {id}: list the project in agent.gitops.repositories of kas, with this agent"
                ));
            }
        };
        match &project.r#ref {
            None => Ok(settings),
            Some(GitRef::Branch(name)) => settings.at(Reference::Branch(name.clone())),
            Some(GitRef::Tag(name)) => settings.at(Reference::Tag(name.clone())),
            Some(GitRef::Commit(id)) => settings
                .at(Reference::Commit(id.parse().map_err(|_| "ref.commit is not the id of a commit")?)),
        }
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

    fn followed(&self, settings: SourceSettings) -> Arc<FollowedReference> {
        let (mut all, now) = (self.followed.lock(), Instant::now());
        if let Some(entry) = all.get_mut(&settings) {
            entry.used = now;
            return Arc::clone(&entry.followed);
        }
        all.retain(|_, entry| now.duration_since(entry.used) < IDLE);
        let followed = settings.open();
        all.insert(settings, Entry { followed: Arc::clone(&followed), used: now });
        followed
    }
}

impl FollowedReference {
    /// Describes the version that is followed without a configured one.
    pub(super) fn describe(&self, branch: &str) -> String {
        format!("{} {branch}", self.kind)
    }

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

#[cfg(test)]
mod tests {
    use std::path::Path;

    use access::Identity;
    use proto::AgentId;

    use super::*;
    use crate::services::gitops::GitopsConfig;

    #[tokio::test]
    async fn agents_that_follow_the_same_version_share_its_looks() {
        let file = Path::new("kas.yaml");
        let text = "repositories:\n- {id: app, agents: [one, two], repository: {url: /srv/app.git}}\n\
                    - {id: chart, agents: [one], repository: {url: 'oci://registry.example.com/chart:v1'}}\n";
        let mut config: GitopsConfig = settings::parse(file, text).unwrap();
        config.validate(file).unwrap();
        let identity = Identity::parse(Path::new("identity.yaml"), "agents: []\ncallers: []\n").unwrap();
        let sources = Sources::new(Identities::new(identity), None, Arc::clone(&config.sources), None);
        let follow = async |agent: &str, project: &str| {
            let agent = AgentIdentity { id: AgentId(1), name: agent.parse().unwrap(), project: None };
            let project = serde_saphyr::from_str(project).unwrap();
            sources.follow((&agent, &SecretString::from("token")), &project, "own").await
        };
        // The first agent does not look between two of its looks, and the second one finds what it has seen.
        let first = Arc::as_ptr(&follow("one", "{id: app}").await.unwrap());
        assert_eq!(first, Arc::as_ptr(&follow("two", "{id: app}").await.unwrap()));
        assert_ne!(first, Arc::as_ptr(&follow("one", "{id: app, ref: {branch: x}}").await.unwrap()));
        for (agent, project, expected) in [
            ("three", "{id: app}", "the agent may not read the project app"),
            ("two", "{id: chart}", "the agent may not read the project chart"),
            ("one", "{id: chart, ref: {branch: main}}", "an OCI artifact has no branches"),
            ("one", "{}", "kas does not know the repository"),
        ] {
            let error = follow(agent, project).await.unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
        assert_eq!(follow("one", "{id: chart}").await.unwrap().describe("v1"), "artifact v1");
    }
}
