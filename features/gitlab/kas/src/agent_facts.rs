//! The facts about an agent of GitLab on which rights depend: its name, its project, and `user_access` of its configuration, of which GitLab
//! does not give the list `services` with its answer about a user.
//!
//! None of them comes from a record in Redis: a replica asks one that holds the agent.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use access::{ConnectedProjectAgents, ProjectAgentName, ProjectAgents, RequestError};
use futures_util::{StreamExt as _, future::BoxFuture, stream::FuturesUnordered};
use kas_core::{
    configuration::{ConfigurationService, ConfigurationState},
    peers::{PeerClient, PeerHooks},
};
use moka::future::Cache;
use proto::{
    AgentId, AgentName, Reason,
    agent_configuration::{MAX_SERVICES, UserAccess, UserAccessAs, UserAuthorization, UserServiceRight},
};
use serde::{Deserialize, Serialize};
use store::{AgentRoutes, Store, StoreHealth};
use tokio::time::{Instant, sleep, timeout};

use crate::GitLabAgents;

/// The most agents in the cache.
const CAPACITY: u64 = 10_000;
/// The time for which facts are used.
const KEEP: Duration = Duration::from_secs(30);
/// The same for facts that are incomplete or unknown.
const KEEP_INCOMPLETE: Duration = Duration::from_secs(2);
/// The time for which a list of all agents is used.
const KEEP_LIST: Duration = Duration::from_secs(10);
/// The entries of a list of `user_access` that GitLab reads.
const MAX_ENTRIES: usize = 500;
/// The longest path of a project or a group, in bytes, and the most groups in it.
const MAX_PATH: usize = 1_024;
const MAX_SEGMENTS: usize = 22;
/// The longest wait for the configuration of an agent that has just connected.
const TIMEOUT: Duration = Duration::from_secs(3);
/// The pause until other replicas are asked again.
const PAUSE: Duration = Duration::from_millis(250);

/// The facts about an agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct AgentFacts {
    name: AgentName,
    project_path: Option<String>,
    user_services: UserServices,
    /// Missing in the answer of a replica of an older version, as the next field.
    #[serde(default)]
    project_id: u64,
    #[serde(default)]
    admission: Admission,
}

/// The users whom the configuration of an agent admits.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Admission {
    /// The configuration, or the project of the agent, is not known.
    #[default]
    Unknown,
    /// It has no `user_access`, or one without `access_as`, as GitLab reads it.
    Nobody,
    /// The members of projects and groups.
    Members(AdmittedUsers),
}

/// The users whom `user_access` of the configuration of an agent admits, as GitLab reads it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct AdmittedUsers {
    /// The identity of users in the cluster.
    pub(crate) access_as: UserAccessMode,
    /// The paths of the projects whose developers may use the agent.
    pub(crate) projects: Vec<String>,
    /// The same of groups.
    pub(crate) groups: Vec<String>,
}

/// The identity of users in the cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum UserAccessMode {
    /// That of agentk.
    Agent,
    /// That of the user.
    User,
}

/// The facts about all agents that are connected.
#[derive(Debug, Default)]
pub(crate) struct AgentFactsList {
    /// The facts, in order of the ids of the agents.
    pub(crate) agents: BTreeMap<AgentId, AgentFacts>,
    /// The reason for which some may be missing.
    pub(crate) missing: Option<String>,
}

/// The list `user_access.services` of the configuration of an agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum UserServices {
    /// The list, which may be empty.
    Known(Vec<UserServiceRight>),
    /// The configuration cannot be read, or is invalid.
    Unreadable,
    /// The agent is connected to no replica, or its configuration is not read yet.
    Unknown,
}

/// The result of a search.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    /// The facts.
    Facts(Arc<AgentFacts>),
    /// No replica holds the agent.
    NotConnected,
    /// The replicas that hold the agent, or the routes, do not answer.
    Unavailable,
}

/// Finds the facts about agents. Clones are cheap.
#[derive(Clone, Debug)]
pub struct AgentFactsLookup {
    held: HeldAgents,
    peers: PeerClient,
    store: Arc<dyn Store>,
    results: Cache<AgentId, CachedResult>,
    /// The last list, which all readers share.
    list: Cache<(), CachedList>,
}

/// The agents with tunnels to this replica. Clones are cheap.
#[derive(Clone, Debug)]
pub struct HeldAgents {
    /// Their configurations.
    pub configuration: ConfigurationService,
    /// The answers of GitLab about them.
    pub agents: GitLabAgents,
}

/// Answers other replicas.
#[derive(Debug)]
pub(crate) struct AgentFactsAnswers(pub(crate) Option<HeldAgents>);

/// The question of another replica.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Question {
    FactsAbout(AgentId),
    /// About all agents with tunnels to the replica that is asked.
    FactsAboutAll,
}

/// A result in the cache.
#[derive(Clone, Debug)]
struct CachedResult {
    found: Found,
    expires: Instant,
}

impl CachedResult {
    /// Keeps what may be better soon for a short time.
    fn new(found: Found) -> Self {
        let keep = if found.is_complete() { KEEP } else { KEEP_INCOMPLETE };
        Self { found, expires: Instant::now() + keep }
    }

    fn is_expired(&self) -> bool {
        self.expires <= Instant::now()
    }
}

/// A list in the cache.
#[derive(Clone, Debug)]
struct CachedList {
    list: Arc<AgentFactsList>,
    expires: Instant,
}

impl AgentFacts {
    /// Returns the name of the agent, and the path of its project.
    pub(crate) fn name(&self) -> ProjectAgentName {
        ProjectAgentName {
            name: self.name.clone(),
            project_path: self.project_path.as_deref().map(Into::into),
        }
    }

    /// Returns the id of the project with the configuration.
    pub(crate) fn project_id(&self) -> u64 {
        self.project_id
    }

    /// Returns the list `user_access.services`.
    pub(crate) fn user_services(&self) -> &UserServices {
        &self.user_services
    }

    /// Returns the users whom the configuration admits.
    pub(crate) fn admission(&self) -> &Admission {
        &self.admission
    }
}

impl Found {
    fn is_complete(&self) -> bool {
        matches!(self, Self::Facts(facts) if matches!(facts.user_services, UserServices::Known(_)))
    }

    /// Returns whether another search at once may find more.
    fn is_pending(&self) -> bool {
        match self {
            Self::Facts(facts) => facts.user_services == UserServices::Unknown,
            Self::NotConnected => false,
            Self::Unavailable => true,
        }
    }
}

impl AgentFactsLookup {
    /// Knows the agents with tunnels to this replica, and asks the other replicas by `peers`.
    pub fn new(held: HeldAgents, peers: PeerClient, store: Arc<dyn Store>) -> Self {
        let results = Cache::builder().max_capacity(CAPACITY).time_to_idle(2 * KEEP).build();
        let list = Cache::builder().max_capacity(1).build();
        Self { held, peers, store, results, list }
    }

    /// Returns the facts about all agents that are connected, at most some seconds old.
    pub(crate) async fn list(&self) -> Arc<AgentFactsList> {
        let read = async {
            let list = Arc::new(self.read_list().await);
            let keep = if list.missing.is_some() { KEEP_INCOMPLETE } else { KEEP_LIST };
            CachedList { list, expires: Instant::now() + keep }
        };
        let entry = self.list.entry(()).or_insert_with_if(read, |cached| cached.expires <= Instant::now());
        entry.await.into_value().list
    }

    async fn read_list(&self) -> AgentFactsList {
        let question = Question::FactsAboutAll;
        let others = self.peers.ask_all::<BTreeMap<AgentId, AgentFacts>>(&*self.store, &question);
        let (mut agents, others) = tokio::join!(self.held.all_facts(), others);
        let mut missing = match self.store.health() {
            StoreHealth::Healthy => None,
            StoreHealth::Degraded { reason, .. } => {
                Some(format!("this replica does not know all others: {reason}"))
            }
        };
        for (replica, answer) in others {
            match answer {
                Ok(of_replica) => {
                    for (agent, facts) in of_replica {
                        // A replica that has just started has not read the configuration yet.
                        let known = agents.entry(agent).or_insert_with(|| facts.clone());
                        if known.admission == Admission::Unknown {
                            *known = facts;
                        }
                    }
                }
                Err(error) => {
                    missing = Some(format!("the agents of replica {} are not known: {error}", replica.id));
                }
            }
        }
        AgentFactsList { agents, missing }
    }

    /// Returns the list of the configuration of an agent.
    pub(crate) async fn user_services(&self, agent: AgentId) -> UserServices {
        match self.find(agent).await {
            Found::Facts(facts) => facts.user_services.clone(),
            Found::NotConnected | Found::Unavailable => UserServices::Unknown,
        }
    }

    /// Returns the facts, which concurrent requests share.
    pub(crate) async fn find(&self, agent: AgentId) -> Found {
        let search = async { CachedResult::new(self.search(agent).await) };
        let entry = self.results.entry(agent).or_insert_with_if(search, CachedResult::is_expired).await;
        entry.into_value().found
    }

    /// Waits for a short time if the agent has just connected, and its configuration is not read yet.
    async fn search(&self, agent: AgentId) -> Found {
        let deadline = Instant::now() + TIMEOUT;
        let mut found = Found::NotConnected;
        while Instant::now() < deadline {
            let asked = timeout(deadline - Instant::now(), self.ask(agent)).await;
            found = asked.unwrap_or(found);
            if !found.is_pending() {
                break;
            }
            sleep(PAUSE).await;
        }
        found
    }

    /// Asks this replica, and else those that hold the agent. Complete facts win.
    async fn ask(&self, agent: AgentId) -> Found {
        if let Some(facts) = self.held.facts(agent).await {
            return Found::Facts(Arc::new(facts));
        }
        let Ok(AgentRoutes { routes, .. }) = self.store.lookup(agent).await else {
            return Found::Unavailable;
        };
        let owners = routes.into_iter().filter(|route| route.replica != self.peers.replica());
        let owners: Vec<_> = owners.filter_map(|route| self.store.replica(route.replica)).collect();
        if owners.is_empty() {
            return Found::NotConnected;
        }
        let question = Question::FactsAbout(agent);
        let answers = owners.iter().map(|owner| self.peers.ask_one::<Option<AgentFacts>>(owner, &question));
        let mut answers = answers.collect::<FuturesUnordered<_>>();
        let mut best = Found::Unavailable;
        while let Some(answer) = answers.next().await {
            match answer {
                Ok(Some(facts)) => best = Found::Facts(Arc::new(facts)),
                Ok(None) => {}
                Err(error) => tracing::debug!(agent.id = %agent, %error, "replica not asked about an agent"),
            }
            if best.is_complete() {
                break;
            }
        }
        best
    }
}

impl ProjectAgents for AgentFactsLookup {
    fn find(&self, agent: AgentId) -> BoxFuture<'_, Result<Option<ProjectAgentName>, RequestError>> {
        Box::pin(async move {
            match self.find(agent).await {
                Found::Facts(facts) => Ok(Some(facts.name())),
                Found::NotConnected => Ok(None),
                Found::Unavailable => {
                    let what =
                        "the replicas of kas that hold this agent do not say to which project it belongs";
                    let error = RequestError::new(Reason::IdentityUnavailable, what);
                    Err(error.with_retry_after(KEEP_INCOMPLETE))
                }
            }
        })
    }

    fn list(&self) -> BoxFuture<'_, ConnectedProjectAgents> {
        Box::pin(async move {
            let list = self.list().await;
            let agents = list.agents.iter().map(|(id, facts)| (*id, facts.name())).collect();
            ConnectedProjectAgents { agents, missing: list.missing.clone() }
        })
    }
}

impl HeldAgents {
    /// Returns the facts about an agent with a tunnel to this replica.
    async fn facts(&self, agent: AgentId) -> Option<AgentFacts> {
        let state = self.configuration.state(agent)?;
        let info = self.agents.info(agent).await?;
        let project_path = info.project_path().map(|path| path.to_string());
        let (user_services, admission) = user_access(&state.borrow(), project_path.as_deref());
        Some(AgentFacts {
            name: info.name.clone(),
            project_path,
            user_services,
            project_id: info.project,
            admission,
        })
    }

    /// Returns the facts about all agents of GitLab with a tunnel to this replica.
    async fn all_facts(&self) -> BTreeMap<AgentId, AgentFacts> {
        let mut all = BTreeMap::new();
        for agent in self.configuration.agents() {
            if let Some(facts) = self.facts(agent).await {
                all.insert(agent, facts);
            }
        }
        all
    }
}

impl PeerHooks for AgentFactsAnswers {
    fn answer(&self, question: &str) -> Option<BoxFuture<'_, Result<String, &'static str>>> {
        let question: Question = serde_json::from_str(question).ok()?;
        Some(Box::pin(async move {
            let answer = match (&self.0, question) {
                (Some(held), Question::FactsAbout(agent)) => serde_json::to_string(&held.facts(agent).await),
                (Some(held), Question::FactsAboutAll) => serde_json::to_string(&held.all_facts().await),
                (None, Question::FactsAbout(_)) => Ok("null".to_owned()),
                (None, Question::FactsAboutAll) => Ok("{}".to_owned()),
            };
            Ok(answer.expect("it has keys that are text"))
        }))
    }
}

/// Returns the list `services` of a configuration, and the users whom it admits.
fn user_access(state: &ConfigurationState, project_path: Option<&str>) -> (UserServices, Admission) {
    let Some(configuration) = state.configuration() else {
        let failed = state.status().error.is_some();
        return (if failed { UserServices::Unreadable } else { UserServices::Unknown }, Admission::Unknown);
    };
    let Some(section) = configuration.get("user_access") else {
        return (UserServices::Known(Vec::new()), Admission::Nobody);
    };
    match serde_json::from_value::<UserAccess>(section.clone()) {
        Ok(section) if section.services.len() <= MAX_SERVICES => {
            let admission = Admission::of(&section, project_path);
            (UserServices::Known(section.services), admission)
        }
        Ok(_) | Err(_) => (UserServices::Unreadable, Admission::Unknown),
    }
}

impl Admission {
    /// Reads the section as GitLab does (`Authorizations::UserAccess::RefreshService`): it admits nobody without `access_as`, reads the first
    /// entries of a list, and ignores projects and groups outside of the top-level group of the agent's project.
    fn of(section: &UserAccess, project_path: Option<&str>) -> Self {
        let access_as = match &section.access_as {
            None => return Self::Nobody,
            Some(UserAccessAs::Agent(_)) => UserAccessMode::Agent,
            Some(UserAccessAs::User(_)) => UserAccessMode::User,
        };
        let Some((top, _)) = project_path.and_then(|path| path.split_once('/')) else { return Self::Unknown };
        let paths = |list: &[UserAuthorization]| {
            let paths = list.iter().take(MAX_ENTRIES).map(|entry| entry.id.trim_matches('/'));
            paths.filter(|path| is_path_below(path, top)).map(str::to_owned).collect()
        };
        let (projects, groups) = (paths(&section.projects), paths(&section.groups));
        Self::Members(AdmittedUsers { access_as, projects, groups })
    }
}

/// Returns whether a text is the path of a project or a group in a top-level group, or of that group.
fn is_path_below(path: &str, top: &str) -> bool {
    let is_valid = path.len() <= MAX_PATH
        && path.split('/').count() <= MAX_SEGMENTS
        && path.split('/').all(|segment| !segment.is_empty())
        && path.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"/_-.".contains(&byte));
    is_valid && path.split('/').next().is_some_and(|first| first.eq_ignore_ascii_case(top))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn admission(section: &str, project_path: Option<&str>) -> Admission {
        let section: UserAccess = serde_json::from_str(section).unwrap();
        Admission::of(&section, project_path)
    }

    #[test]
    fn section_admits_members_of_the_top_level_group_of_its_project_alone() {
        let section = r#"{"access_as": {"agent": {}},
            "projects": [{"id": "Acme/web"}, {"id": "other/web"}, {"id": "acme"}, {"id": "acme/a b"}, {"id": "acme//b"}],
            "groups": [{"id": "acme"}, {"id": "acme/eu/"}, {"id": "acmex"}, {"id": "contractors"}]}"#;
        let expected = AdmittedUsers {
            access_as: UserAccessMode::Agent,
            projects: vec!["Acme/web".to_owned(), "acme".to_owned()],
            groups: vec!["acme".to_owned(), "acme/eu".to_owned()],
        };
        assert_eq!(admission(section, Some("acme/infra/agents")), Admission::Members(expected));
        assert_eq!(admission(section, None), Admission::Unknown);
        assert_eq!(admission(r#"{"projects": [{"id": "acme/web"}]}"#, Some("acme/infra")), Admission::Nobody);
    }

    #[test]
    fn facts_of_an_older_replica_admit_nobody_yet() {
        let facts = r#"{"name": "prod", "project_path": "a/b", "user_services": {"known": []}}"#;
        let facts: AgentFacts = serde_json::from_str(facts).unwrap();
        assert_eq!(*facts.admission(), Admission::Unknown);
    }
}
