//! The facts about an agent that kas knows, without a request to its cluster.

use std::{collections::BTreeSet, sync::Arc};

use access::CallerAgent;
use kas_core::agent_locations::{AgentLocations, AgentState, InstanceInfo, KnownAgent};
use proto::{AgentId, AgentName};
use serde::{Deserialize, Serialize};

/// The most versions of the processes of one agent that are reported.
const MAX_VERSIONS: usize = 8;

/// An agent, and its connection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct AgentFacts {
    /// The id.
    pub(crate) id: AgentId,
    /// The agent in a path.
    pub(crate) name: String,
    /// The project and the name of an agent of GitLab, for people.
    pub(crate) title: Option<String>,
    /// The path of the project of an agent of GitLab.
    pub(crate) project: Option<String>,
    #[serde(flatten)]
    pub(crate) state: AgentState,
    /// The number of its tunnels to all replicas.
    pub(crate) tunnels: u32,
    /// The versions of its agentk processes.
    pub(crate) agentk_versions: Vec<String>,
    /// The version of Kubernetes, as the newest process reports it.
    pub(crate) kubernetes_version: Option<String>,
    /// The UID of the namespace kube-system, as the newest process reports it.
    pub(crate) cluster: Option<String>,
}

impl AgentFacts {
    /// Returns the facts about an agent of a caller.
    pub(crate) fn of_caller(agent: &CallerAgent, locations: &mut AgentLocations) -> Self {
        let project = agent.project_path.as_ref().map(ToString::to_string);
        Self::new((agent.id, agent.path_name()), agent.title(), project, locations)
    }

    /// Returns the facts about an agent that kas knows.
    pub(crate) fn of_kas(agent: &KnownAgent, is_of_file: bool, locations: &mut AgentLocations) -> Self {
        let KnownAgent { id, name, project_path, .. } = agent;
        let title = (!is_of_file).then(|| title(name, project_path.as_ref()));
        let named = if is_of_file { name.to_string() } else { id.to_string() };
        Self::new((*id, named), title, project_path.as_ref().map(ToString::to_string), locations)
    }

    fn new(
        (id, name): (AgentId, String),
        title: Option<String>,
        project: Option<String>,
        locations: &mut AgentLocations,
    ) -> Self {
        let owners = locations.take_owners(id);
        let state = if owners.is_empty() { locations.state_without_owner(id) } else { AgentState::Connected };
        let instances: Vec<&InstanceInfo> = owners.iter().flat_map(|owner| &owner.instances).collect();
        let newest = instances.iter().max_by_key(|instance| instance.since);
        let versions: BTreeSet<&str> = instances
            .iter()
            .map(|instance| &*instance.reported.version)
            .filter(|it| !it.is_empty())
            .collect();
        Self {
            id,
            name,
            title,
            project,
            state,
            tunnels: instances.iter().map(|instance| u32::from(instance.tunnels)).sum(),
            agentk_versions: versions.into_iter().take(MAX_VERSIONS).map(str::to_owned).collect(),
            kubernetes_version: newest.and_then(|newest| newest.reported.kubernetes_version.clone()),
            cluster: newest.and_then(|newest| newest.reported.cluster.clone()),
        }
    }

    /// Returns whether the agent has a tunnel.
    pub(crate) fn is_connected(&self) -> bool {
        self.state == AgentState::Connected
    }
}

fn title(name: &AgentName, project_path: Option<&Arc<str>>) -> String {
    project_path.map_or_else(|| name.to_string(), |path| format!("{path}:{name}"))
}
