//! The repositories of projects, and their newest commits.

use std::{collections::HashMap, fmt, sync::Arc, time::Duration};

use access::{AgentIdentity, AgentSelector, ConfigurationLocation, Identities};
use git::{Reference, Repository, RepositorySettings};
use gitops_wire::{ProjectAccessError, ProjectAsker, ProjectSource, ProjectVersion};
use kas_core::throttle::Throttle;
use oci::{OciRepository, OciSettings};
use outbound::AddressPolicy;
use parking_lot::Mutex;
use proto::agent_configuration::gitops::{GitRef, ManifestProject};
use secrecy::SecretString;
use store::redis::RedisStore;
use tokio::time::Instant;

use super::{
    looks::{FollowedReference, SharedLooks},
    metrics::GitopsMetrics,
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
    /// The projects of agents of GitLab.
    projects: Option<Arc<dyn ProjectSource>>,
    followed: Mutex<HashMap<SourceSettings, Entry>>,
    context: LookContext,
}

/// A repository with the agents that may read it.
#[derive(Clone, Debug)]
pub(super) struct GitopsSource {
    pub(super) id: String,
    pub(super) agents: Vec<AgentSelector>,
    pub(super) settings: SourceSettings,
}

/// A repository or an artifact, with its version and its credentials. Equal settings share one cache.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum SourceSettings {
    Git(RepositorySettings),
    Project(ProjectVersion),
    Artifact(OciSettings),
}

#[derive(Debug)]
struct Entry {
    followed: Arc<FollowedReference>,
    used: Instant,
}

/// The state and the settings that all sources of a replica share.
#[derive(Debug)]
pub(super) struct LookContext {
    /// The looks of all replicas, if there are several.
    pub(super) redis: Option<RedisStore>,
    pub(super) metrics: GitopsMetrics,
    /// The most looks per second at one server.
    pub(super) polls_per_second: u32,
    /// The rules for servers that a registry names.
    pub(super) addresses: AddressPolicy,
    pub(super) throttles: Mutex<HashMap<String, Arc<Throttle>>>,
}

impl LookContext {
    fn throttle(&self, server: String) -> Arc<Throttle> {
        let new = || Arc::new(Throttle::new(self.polls_per_second));
        Arc::clone(self.throttles.lock().entry(server).or_insert_with(new))
    }
}

impl SourceSettings {
    /// Returns the same source in another version.
    fn at(self, version: Reference) -> Result<Self, ProjectAccessError> {
        Ok(match self {
            Self::Git(settings) => Self::Git(RepositorySettings { reference: version, ..settings }),
            Self::Project(project) => Self::Project(ProjectVersion { reference: version, ..project }),
            Self::Artifact(settings) => {
                Self::Artifact(settings.at(&version).map_err(|error| refused(error.to_string()))?)
            }
        })
    }

    /// Opens the source. Its looks are shared with other replicas if `is_shared`.
    fn open(&self, context: &LookContext, is_shared: bool) -> Arc<FollowedReference> {
        let (repository, kind, gitlab_project): (Arc<dyn Repository>, _, _) = match self {
            Self::Git(settings) => (git::open(settings), "branch", None),
            Self::Project(ProjectVersion { repository, reference }) => {
                (repository.open(reference.clone()), "branch", Some(repository.project()))
            }
            Self::Artifact(settings) => {
                (Arc::new(OciRepository::new(settings.clone(), context.addresses.clone())), "artifact", None)
            }
        };
        let source = self.to_string();
        let throttle = self.server().map(|server| context.throttle(server));
        let redis = context.redis.clone().filter(|_| is_shared && throttle.is_some());
        Arc::new(FollowedReference {
            shared: redis.map(|redis| SharedLooks::new(redis, &source)),
            source,
            repository,
            gitlab_project,
            kind,
            throttle,
            metrics: context.metrics.clone(),
            last: Default::default(),
        })
    }

    /// Returns the server, or `None` for a repository of this machine.
    fn server(&self) -> Option<String> {
        match self {
            Self::Git(settings) => settings.server().map(str::to_owned),
            Self::Project(project) => Some(project.repository.server().to_owned()),
            Self::Artifact(settings) => Some(settings.server().to_owned()),
        }
    }
}

/// The source with its version and the names of its credentials: the same text at each replica with the same settings.
impl fmt::Display for SourceSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Git(RepositorySettings { location, reference, .. }) => {
                write!(f, "git {location:?} {reference}")
            }
            Self::Project(project) => write!(f, "{project}"),
            Self::Artifact(settings) => write!(f, "oci {settings:?}"),
        }
    }
}

impl Sources {
    pub(super) fn new(
        identities: Identities,
        default: Option<Arc<RepositorySettings>>,
        configured: Arc<Vec<GitopsSource>>,
        projects: Option<Arc<dyn ProjectSource>>,
        context: LookContext,
    ) -> Self {
        Self { identities, default, configured, projects, followed: Mutex::default(), context }
    }

    /// Returns what a project follows, if the agent with this token may read it now. `own` is the id of the project with the agent's
    /// configuration.
    ///
    /// # Errors
    ///
    /// The agent may not read the project, or nobody knows its repository.
    pub(super) async fn follow(
        &self,
        agent: (&AgentIdentity, &SecretString),
        project: &ManifestProject,
        own: &str,
    ) -> Result<Arc<FollowedReference>, ProjectAccessError> {
        self.settings(agent, project, own, ProjectAsker::Agent).await.map(|settings| self.followed(settings))
    }

    /// Returns the same as [`Self::follow`] for one look, of which nothing is kept.
    pub(super) async fn look_once(
        &self,
        agent: (&AgentIdentity, &SecretString),
        project: &ManifestProject,
        own: &str,
    ) -> Result<Arc<FollowedReference>, ProjectAccessError> {
        self.settings(agent, project, own, ProjectAsker::Agent)
            .await
            .map(|settings| settings.open(&self.context, false))
    }

    /// Returns the id of the project of GitLab whose repository a project follows, or `None` if it is no repository of GitLab. The answer
    /// is for a caller.
    ///
    /// # Errors
    ///
    /// As [`Self::follow`].
    pub(super) async fn gitlab_project(
        &self,
        agent: (&AgentIdentity, &SecretString),
        project: &ManifestProject,
        own: &str,
    ) -> Result<Option<u64>, ProjectAccessError> {
        Ok(match self.settings(agent, project, own, ProjectAsker::Caller).await? {
            SourceSettings::Project(version) => Some(version.repository.project()),
            SourceSettings::Git(_) | SourceSettings::Artifact(_) => None,
        })
    }

    async fn settings(
        &self,
        (agent, token): (&AgentIdentity, &SecretString),
        project: &ManifestProject,
        own: &str,
        asker: ProjectAsker,
    ) -> Result<SourceSettings, ProjectAccessError> {
        let id = project.id.as_deref().unwrap_or(own);
        let listed = self.configured.iter().find(|source| source.id == id && self.may_read(source, agent));
        let projects = self.projects.as_ref().filter(|_| agent.project.is_some());
        let settings = match (id == own, listed, projects) {
            (true, _, Some(projects)) => {
                SourceSettings::Project(projects.configuration_project(agent).await?)
            }
            (true, _, None) => SourceSettings::Git(self.own(agent)?),
            (false, Some(source), _) => source.settings.clone(),
            (false, None, Some(projects)) => {
                SourceSettings::Project(projects.readable_project(agent, token, id, asker).await?)
            }
            (false, None, None) => {
                return Err(refused(format!(
                    "the agent may not read the project {id}: list the project in agent.gitops.repositories of kas, with this agent"
                )));
            }
        };
        match &project.r#ref {
            None => Ok(settings),
            Some(GitRef::Branch(name)) => settings.at(Reference::Branch(name.clone())),
            Some(GitRef::Tag(name)) => settings.at(Reference::Tag(name.clone())),
            Some(GitRef::Commit(id)) => {
                let id = id.parse().map_err(|_| refused("ref.commit is not the id of a commit"))?;
                settings.at(Reference::Commit(id))
            }
        }
    }

    /// Returns whether the operator lets the agent read a source.
    fn may_read(&self, source: &GitopsSource, agent: &AgentIdentity) -> bool {
        let identity = self.identities.load();
        let is_agent = |entry: &AgentSelector| entry.selects(agent.attributes(), &identity) == Some(true);
        source.agents.iter().any(is_agent)
    }

    pub(super) fn is_in_identity_file(&self, agent: &AgentIdentity) -> bool {
        self.identities.load().name(agent.id) == Some(&agent.name)
    }

    /// Returns the repository with the configuration of the agent.
    fn own(&self, agent: &AgentIdentity) -> Result<RepositorySettings, ProjectAccessError> {
        let identity = self.identities.load();
        let listed = self.is_in_identity_file(agent);
        match identity.configuration(agent.id).filter(|_| listed) {
            Some(ConfigurationLocation::Repository(settings)) => Ok((**settings).clone()),
            Some(ConfigurationLocation::File(_)) => Err(refused(
                "the configuration of the agent is a file and no repository: set the id of the project",
            )),
            None => {
                let default = self.default.as_ref().filter(|_| listed);
                let missing = "kas does not know the repository of the agent's configuration: set the id of the project";
                default.map(|settings| (**settings).clone()).ok_or_else(|| refused(missing))
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
        let followed = settings.open(&self.context, true);
        all.insert(settings, Entry { followed: Arc::clone(&followed), used: now });
        followed
    }
}

fn refused(message: impl Into<String>) -> ProjectAccessError {
    ProjectAccessError::Refused(message.into())
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use access::Identity;
    use proto::AgentId;

    use super::*;
    use crate::GitopsConfig;

    fn context() -> LookContext {
        LookContext {
            redis: None,
            metrics: GitopsMetrics::register(&mut prometheus_client::registry::Registry::default()),
            polls_per_second: 1,
            addresses: AddressPolicy::new("agent.gitops.allowed_networks", &[]),
            throttles: Mutex::default(),
        }
    }

    #[tokio::test]
    async fn agents_that_follow_the_same_version_share_its_looks() {
        let file = Path::new("kas.yaml");
        let text = "repositories:\n- {id: app, agents: [one, two], repository: {url: /srv/app.git}}\n\
                    - {id: chart, agents: [one], repository: {url: 'oci://registry.example.com/chart:v1'}}\n";
        let mut config: GitopsConfig = settings::parse(file, text).unwrap();
        config.validate(file).unwrap();
        let identity = Identity::parse(Path::new("identity.yaml"), "agents: [{id: 1, name: one, tokens: []}, {id: 2, name: two, tokens: []}, {id: 3, name: three, tokens: []}]\ncallers: []\n").unwrap();
        let sources =
            Sources::new(Identities::new(identity), None, Arc::clone(&config.sources), None, context());
        let follow = async |agent: &str, project: &str| {
            let id = sources.identities.load().find(agent).unwrap();
            let name = agent.parse().unwrap();
            let agent = AgentIdentity { id, name, project: None, project_path: None };
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
            assert!(
                matches!(&error, ProjectAccessError::Refused(text) if text.contains(expected)),
                "{error}"
            );
        }
        assert_eq!(follow("one", "{id: chart}").await.unwrap().describe("v1"), "artifact v1");
    }

    #[tokio::test]
    async fn agent_of_gitlab_reads_no_repository_of_the_agent_with_its_name() {
        let file = Path::new("kas.yaml");
        let text = "repositories:\n- {id: secrets, agents: [prod], repository: {url: /srv/secrets.git}}\n\
                    - {id: shop, agents: ['shop/web:prod'], repository: {url: /srv/shop.git}}\n\
                    - {id: by-id, agents: [50], repository: {url: /srv/id.git}}\n";
        let mut config: GitopsConfig = settings::parse(file, text).unwrap();
        config.validate(file).unwrap();
        let identity =
            Identity::parse(Path::new("identity.yaml"), "agents: [{id: 1, name: prod, tokens: []}]");
        let sources = Sources::new(
            Identities::new(identity.unwrap()),
            None,
            Arc::clone(&config.sources),
            None,
            context(),
        );
        let agent = |id, path: Option<&str>| AgentIdentity {
            id: AgentId(id),
            name: "prod".parse().unwrap(),
            project: path.map(|_| 42),
            project_path: path.map(Arc::from),
        };
        for (agent, readable) in [
            (agent(1, None), vec!["secrets"]),
            (agent(50, Some("shop/web")), vec!["shop", "by-id"]),
            (agent(51, Some("evil/web")), vec![]),
            (agent(52, None), vec![]),
        ] {
            for id in ["secrets", "shop", "by-id"] {
                let project = serde_saphyr::from_str(&format!("{{id: {id}}}")).unwrap();
                let found = sources.follow((&agent, &SecretString::from("token")), &project, "own").await;
                assert_eq!(found.is_ok(), readable.contains(&id), "{agent:?} and {id}");
            }
        }
    }
}
