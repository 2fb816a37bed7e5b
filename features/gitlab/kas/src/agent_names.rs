//! The names of GitLab's agents, for the kill switch, paths, messages and logs.
#![expect(clippy::disallowed_types, reason = "concurrent requests wait for one list, at most 1 s")]

use std::{sync::Arc, time::Duration};

use access::{Identities, ProjectAgentName};
use moka::sync::Cache;
use proto::AgentId;
use store::{ProjectAgent, RouteStore};
use tokio::{
    sync::Mutex,
    time::{Instant, timeout},
};

use crate::GitLabAgents;

/// The most names in the cache.
const CAPACITY: u64 = 200_000;
/// The time for which a name is kept. GitLab cannot rename an agent.
const KEEP: Duration = Duration::from_secs(3600);
/// The longest time of one list.
const LIST_TIMEOUT: Duration = Duration::from_secs(1);
/// The shortest time between two lists. The names of agents that connect in between are unknown until then.
const LIST_PERIOD: Duration = Duration::from_secs(2);
/// The same after a list without the agents of other replicas, so that requests do not wait for a Redis that is away.
const RETRY_PERIOD: Duration = Duration::from_secs(10);

/// Finds the names of GitLab's agents, also of those that are connected to other replicas only. Clones are cheap.
#[derive(Clone, Debug)]
pub struct AgentNames(Arc<AgentNamesState>);

#[derive(Debug)]
struct AgentNamesState {
    /// The agents of the file.
    identities: Identities,
    /// The agents of GitLab that have connected to this replica.
    agents: GitLabAgents,
    /// The directory with the agents of all replicas.
    store: Arc<dyn RouteStore>,
    /// The names of the last lists.
    listed: Cache<AgentId, ProjectAgentName>,
    /// The time from which the agents may be listed again.
    next_list: Mutex<Instant>,
}

impl AgentNames {
    /// Creates a source of the names of these agents.
    pub fn new(identities: Identities, agents: GitLabAgents, store: Arc<dyn RouteStore>) -> Self {
        let listed = Cache::builder().max_capacity(CAPACITY).time_to_live(KEEP).build();
        Self(Arc::new(AgentNamesState {
            identities,
            agents,
            store,
            listed,
            next_list: Mutex::new(Instant::now()),
        }))
    }

    /// Returns whether the identity file has an agent with this id. The file and GitLab number their agents independently.
    pub(super) fn is_in_file(&self, agent: AgentId) -> bool {
        self.0.identities.load().name(agent).is_some()
    }

    /// Returns the name of an agent of GitLab, or `None` if it is connected to no replica, or the directory does not answer.
    pub(super) async fn of_gitlab(&self, agent: AgentId) -> Option<ProjectAgentName> {
        let inner = &*self.0;
        if let Some(info) = inner.agents.info(agent).await {
            return Some(ProjectAgentName { name: info.name.clone(), project_path: info.project_path() });
        }
        if let Some(name) = inner.listed.get(&agent) {
            return Some(name);
        }
        // Concurrent requests share one list.
        let mut next_list = inner.next_list.lock().await;
        let name = inner.listed.get(&agent);
        if name.is_some() || Instant::now() < *next_list {
            return name;
        }
        *next_list = Instant::now() + RETRY_PERIOD;
        let list = timeout(LIST_TIMEOUT, inner.store.list_project_agents(None)).await.ok()?;
        if list.error.is_none() {
            *next_list = Instant::now() + LIST_PERIOD;
        }
        for found in list.agents {
            let ProjectAgent { agent, name, project: _, project_path } = found;
            inner.listed.insert(agent, ProjectAgentName { name, project_path });
        }
        inner.listed.get(&agent)
    }
}
