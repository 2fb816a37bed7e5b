//! The replicas that hold tunnels of an agent, for the internal API and for `GET /agents`.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::{Duration, SystemTime},
};

use access::{AgentAttributes, Identities, RequestError};
use proto::{AgentId, AgentName, InstanceId, Reason, ReplicaId};
use serde::{Deserialize, Serialize};
use settings::rfc3339;
use store::{
    Instance, InstanceList, ProjectAgent, ProjectAgentList, ReplicaInstances, ReportedInfo, RouteStore, Store,
};

use crate::agents::AgentServer;

/// `Retry-After` while records of agents cannot be read.
const RETRY_AFTER: Duration = Duration::from_secs(2);

/// Lists the agents of the identity file and the connected ones of GitLab. Clones are cheap.
#[derive(Clone, Debug)]
pub struct AgentLookup {
    identities: Identities,
    store: Arc<dyn Store>,
    has_gitlab: bool,
}

/// The agents of a [`AgentLookup`].
#[derive(Debug)]
pub struct KnownAgents {
    /// The agents, in no order.
    pub agents: Vec<KnownAgent>,
    /// The error because of which agents of GitLab at other replicas are missing.
    pub missing: Option<String>,
}

/// An agent of the identity file or of GitLab.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KnownAgent {
    /// The id.
    pub id: AgentId,
    /// The name.
    pub name: AgentName,
    /// The id of its project, if it is an agent of GitLab.
    pub project: Option<u64>,
    /// The path of the project of an agent of GitLab, if it is known.
    pub project_path: Option<Arc<str>>,
}

impl KnownAgent {
    /// Returns the attributes by which settings select the agent.
    pub fn attributes(&self) -> AgentAttributes<'_> {
        AgentAttributes { id: self.id, name: Some(&self.name), project_path: self.project_path.as_deref() }
    }
}

/// The error of a search that finds no agent while some may be missing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "kas cannot read the records of all connected agents: {0}; kas or its Redis is at fault, and not this request: try again, and if \
     that does not help, the operator of kas finds the cause at its /readiness and in its log"
)]
pub struct UnreadableRecords(String);

/// The locations of some agents, as the route store and this replica know them.
#[derive(Debug)]
pub struct AgentLocations {
    /// The replicas that hold each agent.
    pub held: HashMap<AgentId, Vec<AgentOwner>>,
    /// The times when agents last disconnected, where known.
    pub disconnected: HashMap<AgentId, SystemTime>,
    /// The error because of which the tunnels to other replicas are missing.
    pub missing: Option<String>,
}

/// A replica that holds tunnels of an agent, with the agentk processes of these tunnels.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentOwner {
    /// The replica.
    pub replica: ReplicaId,
    /// The processes, in order of their ids.
    pub instances: Vec<InstanceInfo>,
}

/// One agentk process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InstanceInfo {
    /// The id of the process, which it reports itself.
    pub id: InstanceId,
    /// Its version, its pod and its cluster.
    #[serde(flatten)]
    pub reported: ReportedInfo,
    /// The time at which the oldest of its tunnels to the replica was opened.
    #[serde(with = "rfc3339")]
    pub since: SystemTime,
    /// The number of its tunnels to the replica.
    pub tunnels: u16,
}

/// The connection of an agent, seen from a replica.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum AgentState {
    /// The agent has tunnels. In `GET /agents`: tunnels to this replica.
    Connected,
    /// The agent has tunnels to other replicas only.
    Elsewhere,
    /// The agent was connected.
    Away {
        /// The time at which the last tunnel ended.
        #[serde(with = "rfc3339")]
        since: SystemTime,
    },
    /// The agent has not connected since kas started; with Redis, for a week.
    Never,
    /// The agent has no tunnel to this replica, and its tunnels to other replicas are unknown.
    Unknown,
}

impl AgentLookup {
    /// Creates the lookup of a replica.
    pub(crate) fn new(agents: &AgentServer) -> Self {
        let (identities, store) = (agents.identities.clone(), Arc::clone(&agents.store));
        Self { identities, store, has_gitlab: agents.has_gitlab }
    }

    /// Lists the agents, or those of one project.
    pub async fn list(&self, project: Option<u64>) -> KnownAgents {
        let found = if self.has_gitlab {
            self.store.list_project_agents(project).await
        } else {
            ProjectAgentList::default()
        };
        let identity = self.identities.load_full();
        let file = identity.agents().into_iter().map(|(name, id)| KnownAgent {
            id,
            name: name.clone(),
            project: identity.project(id),
            project_path: None,
        });
        let mut agents: Vec<KnownAgent> =
            file.filter(|agent| project.is_none() || agent.project == project).collect();
        // An agent of GitLab that is connected at another replica may be in the file since then.
        let connected = found.agents.into_iter().filter(|agent| identity.name(agent.agent).is_none());
        agents.extend(connected.map(KnownAgent::from));
        KnownAgents { agents, missing: found.error.map(|error| error.to_string()) }
    }

    /// Returns whether an agent is one of the identity file.
    pub fn is_in_file(&self, agent: AgentId) -> bool {
        self.identities.load().name(agent).is_some()
    }

    /// Returns the projects of these agents. An agent without a project has no entry.
    pub async fn projects(&self, agents: &[AgentId]) -> HashMap<AgentId, u64> {
        let identity = self.identities.load_full();
        let of_file = agents.iter().filter_map(|agent| Some((*agent, identity.project(*agent)?)));
        let mut projects: HashMap<AgentId, u64> = of_file.collect();
        if self.has_gitlab && agents.iter().any(|agent| identity.name(*agent).is_none()) {
            let known = self.list(None).await.agents.into_iter();
            projects.extend(known.filter_map(|agent| Some((agent.id, agent.project?))));
        }
        projects
    }

    /// Returns the agent with this id, or the agent of the identity file with this name.
    ///
    /// # Errors
    ///
    /// It is not found, and agents of other replicas are not known.
    pub async fn find(&self, id_or_name: &str) -> Result<Option<KnownAgent>, UnreadableRecords> {
        if let Some(known) = self.find_in_file(id_or_name) {
            return Ok(Some(known));
        }
        let Ok(id) = id_or_name.parse::<AgentId>() else { return Ok(None) };
        let KnownAgents { agents, missing } = self.list(None).await;
        let found = agents.into_iter().find(|agent| agent.id == id);
        UnreadableRecords::check(found.is_none(), missing.as_deref())?;
        Ok(found)
    }

    /// Returns what [`Self::find`] does for each of these, with at most one list of the agents of GitLab. The error is the reason why
    /// agents of other replicas may be missing.
    pub async fn find_all<'a>(
        &self,
        ids_or_names: impl IntoIterator<Item = &'a str>,
    ) -> (HashMap<String, KnownAgent>, Option<String>) {
        let (mut found, mut others) = (HashMap::new(), HashSet::new());
        for name in ids_or_names {
            match self.find_in_file(name) {
                Some(known) => drop(found.insert(name.to_owned(), known)),
                None => others.extend(name.parse::<AgentId>()),
            }
        }
        if others.is_empty() || !self.has_gitlab {
            return (found, None);
        }
        let KnownAgents { agents, missing } = self.list(None).await;
        let others = agents.into_iter().filter(|agent| others.contains(&agent.id));
        found.extend(others.map(|agent| (agent.id.to_string(), agent)));
        (found, missing)
    }

    fn find_in_file(&self, id_or_name: &str) -> Option<KnownAgent> {
        let identity = self.identities.load_full();
        let id = identity.find(id_or_name)?;
        let name = identity.name(id)?.clone();
        Some(KnownAgent { id, name, project: identity.project(id), project_path: None })
    }
}

impl From<ProjectAgent> for KnownAgent {
    fn from(agent: ProjectAgent) -> Self {
        let ProjectAgent { agent: id, name, project, project_path } = agent;
        Self { id, name, project: Some(project), project_path }
    }
}

impl UnreadableRecords {
    /// Refuses an answer that is empty for this reason, because it would mean that there is no agent. `missing` is the error of Redis or
    /// of another replica: a list at its limit is no error.
    ///
    /// # Errors
    ///
    /// The answer is empty, and agents may be missing.
    pub fn check(is_empty: bool, missing: Option<&str>) -> Result<(), Self> {
        match missing {
            Some(missing) if is_empty => Err(Self(missing.to_owned())),
            Some(_) | None => Ok(()),
        }
    }
}

impl From<UnreadableRecords> for RequestError {
    fn from(error: UnreadableRecords) -> Self {
        Self::new(Reason::IdentityUnavailable, error.to_string()).with_retry_after(RETRY_AFTER)
    }
}

impl AgentLocations {
    /// Looks the agents up in the route store, with one request for all of them.
    pub async fn lookup(store: &dyn RouteStore, agents: &[AgentId]) -> Self {
        let InstanceList { connected, disconnected, error } = store.list_instances(agents).await;
        let mut held: HashMap<AgentId, Vec<AgentOwner>> = HashMap::new();
        for ReplicaInstances { agent, replica, instances } in connected {
            let mut instances: Vec<InstanceInfo> = instances.into_iter().map(InstanceInfo::from).collect();
            instances.sort_by_key(|instance| instance.id);
            held.entry(agent).or_default().push(AgentOwner { replica, instances });
        }
        for owners in held.values_mut() {
            owners.sort_by_key(|holder| holder.replica);
        }
        Self { held, disconnected, missing: error.map(|error| error.to_string()) }
    }

    /// Removes and returns the owners of an agent, in order of their ids.
    pub fn take_owners(&mut self, agent: AgentId) -> Vec<AgentOwner> {
        self.held.remove(&agent).unwrap_or_default()
    }

    /// Returns the state of an agent without a known owner.
    pub fn state_without_owner(&self, agent: AgentId) -> AgentState {
        match self.disconnected.get(&agent) {
            _ if self.missing.is_some() => AgentState::Unknown,
            Some(since) => AgentState::Away { since: *since },
            None => AgentState::Never,
        }
    }
}

impl From<Instance> for InstanceInfo {
    fn from(Instance { id, reported, since, tunnels }: Instance) -> Self {
        Self { id, reported, since, tunnels }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn state_is_read_back() {
        let since = SystemTime::UNIX_EPOCH;
        for (state, expected) in [
            (AgentState::Connected, r#"{"state":"connected"}"#),
            (AgentState::Elsewhere, r#"{"state":"elsewhere"}"#),
            (AgentState::Away { since }, r#"{"state":"away","since":"1970-01-01T00:00:00Z"}"#),
            (AgentState::Never, r#"{"state":"never"}"#),
            (AgentState::Unknown, r#"{"state":"unknown"}"#),
        ] {
            assert_eq!(serde_json::to_string(&state).unwrap(), expected);
            assert_eq!(serde_json::from_str::<AgentState>(expected).unwrap(), state);
        }
    }
}
