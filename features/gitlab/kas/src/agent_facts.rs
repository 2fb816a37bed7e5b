//! The facts about an agent of GitLab on which rights depend: its name, its project, and the list `user_access.services` of its
//! configuration, which GitLab does not give with its answer about a user.
//!
//! None of them comes from a record in Redis: a replica asks one that holds the agent.

use std::{sync::Arc, time::Duration};

use access::{ProjectAgentName, ProjectAgents, RequestError};
use futures_util::{StreamExt as _, future::BoxFuture, stream::FuturesUnordered};
use kas_core::{
    configuration::{ConfigurationService, ConfigurationState},
    peers::{PeerClient, PeerHooks},
};
use moka::future::Cache;
use proto::{
    AgentId, AgentName, Reason,
    agent_configuration::{MAX_SERVICES, UserServiceRight},
};
use serde::{Deserialize, Serialize};
use store::{AgentRoutes, Store};
use tokio::time::{Instant, sleep, timeout};

use crate::GitLabAgents;

/// The most agents in the cache.
const CAPACITY: u64 = 10_000;
/// The time for which facts are used.
const KEEP: Duration = Duration::from_secs(30);
/// The same for facts that are incomplete or unknown.
const KEEP_INCOMPLETE: Duration = Duration::from_secs(2);
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
enum Found {
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
#[serde(deny_unknown_fields)]
struct Question {
    facts_about: AgentId,
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
        Self { held, peers, store, results }
    }

    /// Returns the list of the configuration of an agent.
    pub(crate) async fn user_services(&self, agent: AgentId) -> UserServices {
        match self.find(agent).await {
            Found::Facts(facts) => facts.user_services.clone(),
            Found::NotConnected | Found::Unavailable => UserServices::Unknown,
        }
    }

    /// Returns the facts, which concurrent requests share.
    async fn find(&self, agent: AgentId) -> Found {
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
        let question = Question { facts_about: agent };
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
                Found::Facts(facts) => Ok(Some(ProjectAgentName {
                    name: facts.name.clone(),
                    project_path: facts.project_path.as_deref().map(Into::into),
                })),
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
}

impl HeldAgents {
    /// Returns the facts about an agent with a tunnel to this replica.
    async fn facts(&self, agent: AgentId) -> Option<AgentFacts> {
        let state = self.configuration.state(agent)?;
        let info = self.agents.info(agent).await?;
        let user_services = user_services(&state.borrow());
        let project_path = info.project_path().map(|path| path.to_string());
        Some(AgentFacts { name: info.name.clone(), project_path, user_services })
    }
}

impl PeerHooks for AgentFactsAnswers {
    fn answer(&self, question: &str) -> Option<BoxFuture<'_, Result<String, &'static str>>> {
        let Question { facts_about: agent } = serde_json::from_str(question).ok()?;
        Some(Box::pin(async move {
            let facts = match &self.0 {
                Some(held) => held.facts(agent).await,
                None => None,
            };
            Ok(serde_json::to_string(&facts).expect("it has keys that are text"))
        }))
    }
}

/// Returns the list of a configuration.
fn user_services(state: &ConfigurationState) -> UserServices {
    let Some(configuration) = state.configuration() else {
        let failed = state.status().error.is_some();
        return if failed { UserServices::Unreadable } else { UserServices::Unknown };
    };
    let section = configuration.get("user_access").and_then(|section| section.get("services"));
    let Some(section) = section else { return UserServices::Known(Vec::new()) };
    let services = serde_json::from_value::<Vec<UserServiceRight>>(section.clone());
    match services {
        Ok(services) if services.len() <= MAX_SERVICES => UserServices::Known(services),
        Ok(_) | Err(_) => UserServices::Unreadable,
    }
}
