//! Where agents are, over all replicas: what the internal API and the operators' listing tell.

use std::{collections::HashMap, time::SystemTime};

use proto::{AgentId, InstanceId, ReplicaId};
use router::{Holding, Holdings, RouteStore};
use serde::{Deserialize, Serialize};

/// What is known of some agents.
#[derive(Debug)]
pub struct Whereabouts {
    held: HashMap<AgentId, Vec<Holder>>,
    gone: HashMap<AgentId, SystemTime>,
    /// Why what other replicas hold is missing, if it is.
    pub missing: Option<String>,
}

/// A replica, and the agent's processes that have tunnels to it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holder {
    /// Which.
    pub replica: ReplicaId,
    /// In order of their ids.
    pub instances: Vec<Instance>,
}

/// One agentk process. What it says of itself is its word.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Instance {
    /// Names the process.
    pub id: InstanceId,
    /// agentk's version.
    pub version: String,
    /// The pod's namespace.
    pub pod_namespace: Option<String>,
    /// The pod's name.
    pub pod_name: Option<String>,
    /// The version of its cluster.
    pub kubernetes_version: Option<String>,
    /// When the oldest of its tunnels to the replica was opened.
    #[serde(with = "rfc3339")]
    pub since: SystemTime,
    /// How many tunnels it has to the replica.
    pub tunnels: u16,
}

/// Where an agent is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum Presence {
    /// It has tunnels: to the replica that says so, where that speaks for itself.
    Connected,
    /// It has tunnels, but to other replicas only.
    Elsewhere,
    /// It was connected.
    Away {
        /// Until then.
        #[serde(with = "rfc3339")]
        since: SystemTime,
    },
    /// It has not connected since kas started; with Redis, for a week.
    Never,
    /// It has no tunnel to this replica, and the others' are not known.
    Unknown,
}

impl Whereabouts {
    /// Asks the directory once for all of them.
    pub async fn of(store: &dyn RouteStore, agents: &[AgentId]) -> Self {
        let Holdings { held: all, gone, missing } = store.holdings(agents).await;
        let mut held: HashMap<AgentId, Vec<Holder>> = HashMap::new();
        for Holding { agent, replica, instances } in all {
            let mut instances: Vec<Instance> = instances.into_iter().map(Instance::from).collect();
            instances.sort_by_key(|instance| instance.id);
            held.entry(agent).or_default().push(Holder { replica, instances });
        }
        for holders in held.values_mut() {
            holders.sort_by_key(|holder| holder.replica);
        }
        Self { held, gone, missing: missing.map(|error| error.to_string()) }
    }

    /// Who holds the agent, in order of their ids; once.
    pub fn take(&mut self, agent: AgentId) -> Vec<Holder> {
        self.held.remove(&agent).unwrap_or_default()
    }

    /// Where an agent is that nobody is known to hold.
    pub fn absent(&self, agent: AgentId) -> Presence {
        match self.gone.get(&agent) {
            _ if self.missing.is_some() => Presence::Unknown,
            Some(since) => Presence::Away { since: *since },
            None => Presence::Never,
        }
    }
}

impl From<router::Instance> for Instance {
    fn from(instance: router::Instance) -> Self {
        let router::Instance { id, version, pod_namespace, pod_name, kubernetes_version, since, tunnels } =
            instance;
        Self { id, version, pod_namespace, pod_name, kubernetes_version, since, tunnels }
    }
}

/// Times as people and `jq` read them.
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
    fn every_state_reads_back_what_it_writes() {
        let since = SystemTime::UNIX_EPOCH;
        for (presence, expected) in [
            (Presence::Connected, r#"{"state":"connected"}"#),
            (Presence::Elsewhere, r#"{"state":"elsewhere"}"#),
            (Presence::Away { since }, r#"{"state":"away","since":"1970-01-01T00:00:00Z"}"#),
            (Presence::Never, r#"{"state":"never"}"#),
            (Presence::Unknown, r#"{"state":"unknown"}"#),
        ] {
            assert_eq!(serde_json::to_string(&presence).unwrap(), expected);
            assert_eq!(serde_json::from_str::<Presence>(expected).unwrap(), presence);
        }
    }
}
