//! The replicas that hold tunnels of an agent, for the internal API and for `GET /agents`.

use std::{collections::HashMap, time::SystemTime};

use proto::{AgentId, InstanceId, ReplicaId};
use router::{InstanceList, ReplicaInstances, RouteStore};
use serde::{Deserialize, Serialize};

/// The locations of some agents, as the directory and this replica know them.
#[derive(Debug)]
pub(crate) struct AgentLocations {
    held: HashMap<AgentId, Vec<AgentOwner>>,
    disconnected: HashMap<AgentId, SystemTime>,
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

/// One agentk process. It reports all fields but `since` and `tunnels` itself, and is not trusted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InstanceInfo {
    /// The id of the process.
    pub id: InstanceId,
    /// The version of agentk.
    pub version: String,
    /// The namespace of the pod.
    pub pod_namespace: Option<String>,
    /// The name of the pod.
    pub pod_name: Option<String>,
    /// The version of the cluster.
    pub kubernetes_version: Option<String>,
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

impl AgentLocations {
    /// Looks the agents up in the directory, with one request for all of them.
    pub(crate) async fn lookup(store: &dyn RouteStore, agents: &[AgentId]) -> Self {
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
    pub(crate) fn take_owners(&mut self, agent: AgentId) -> Vec<AgentOwner> {
        self.held.remove(&agent).unwrap_or_default()
    }

    /// Returns the state of an agent without a known owner.
    pub(crate) fn state_without_owner(&self, agent: AgentId) -> AgentState {
        match self.disconnected.get(&agent) {
            _ if self.missing.is_some() => AgentState::Unknown,
            Some(since) => AgentState::Away { since: *since },
            None => AgentState::Never,
        }
    }
}

impl From<router::Instance> for InstanceInfo {
    fn from(instance: router::Instance) -> Self {
        let router::Instance { id, version, pod_namespace, pod_name, kubernetes_version, since, tunnels } =
            instance;
        Self { id, version, pod_namespace, pod_name, kubernetes_version, since, tunnels }
    }
}

/// Serializes times as RFC 3339, to the second.
pub(crate) mod rfc3339 {
    use std::time::SystemTime;

    use serde::{Deserialize, Deserializer, Serializer, de::Error as _};

    pub(crate) fn serialize<S: Serializer>(time: &SystemTime, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&humantime::format_rfc3339_seconds(*time))
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<SystemTime, D::Error> {
        humantime::parse_rfc3339(&String::deserialize(deserializer)?).map_err(D::Error::custom)
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
