//! Every agent and its tunnels, as this replica sees them: what `GET /agents` of the observability listener answers and
//! `kas agents` shows.
//!
//! For operators only: it names every agent, and where each connects from. The shape is documented in
//! `docs/operations.md`.

use std::{collections::HashMap, sync::Arc, time::SystemTime};

use proto::{AgentId, AgentName, InstanceId, ReplicaId, ServiceName, TunnelId};
use router::{InFlight, LocalTunnels, RouteStore, View};
use serde::{Deserialize, Serialize};

use crate::{agents::Agents, connected::Connected, identity::Identities};

/// Where the list comes from.
#[derive(Clone, Debug)]
pub struct Roster {
    identities: Identities,
    tunnels: Arc<LocalTunnels<Connected>>,
    store: Arc<dyn RouteStore>,
    replica: ReplicaId,
}

/// The agents of the identity file.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Listing {
    /// Who says so.
    pub replica: ReplicaId,
    /// Its version.
    pub version: String,
    /// When, by its clock.
    #[serde(with = "rfc3339")]
    pub time: SystemTime,
    /// In order of their names.
    pub agents: Vec<Agent>,
}

/// One agent.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Agent {
    /// Its number.
    pub id: AgentId,
    /// Its name.
    pub name: AgentName,
    /// Where it is.
    #[serde(flatten)]
    pub presence: Presence,
    /// Its tunnels to this replica.
    pub tunnels: Vec<Tunnel>,
}

/// Where an agent is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum Presence {
    /// It has tunnels to this replica.
    Connected,
    /// It has tunnels, but to these replicas only.
    Elsewhere {
        /// Which.
        replicas: Vec<ReplicaId>,
    },
    /// It was connected.
    Away {
        /// Until then.
        #[serde(with = "rfc3339")]
        since: SystemTime,
    },
    /// It has not connected since kas started.
    Never,
    /// It has no tunnel to this replica, and the route store does not answer.
    Unknown,
}

/// One tunnel. What the agent said of itself is its word.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Tunnel {
    /// Its name in the logs of both ends.
    pub id: TunnelId,
    /// Where it comes from.
    pub peer: String,
    /// When it was opened.
    #[serde(with = "rfc3339")]
    pub since: SystemTime,
    /// Whether it is about to be replaced.
    pub draining: bool,
    /// The agentk process.
    pub instance: InstanceId,
    /// Which of its tunnels, from 0.
    pub index: u16,
    /// agentk's version.
    pub version: String,
    /// The pod's namespace.
    pub pod_namespace: Option<String>,
    /// The pod's name.
    pub pod_name: Option<String>,
    /// The version of its cluster.
    pub kubernetes_version: Option<String>,
    /// The round trip that was measured last.
    pub round_trip_ms: Option<f64>,
    /// What it serves.
    pub services: Vec<Service>,
}

/// A request type that a tunnel serves, and its requests in flight.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Service {
    /// Its name.
    pub name: ServiceName,
    /// Ordinary requests.
    pub short: u32,
    /// Watches, `logs -f`, exec, port-forward.
    pub long: u32,
}

impl Roster {
    /// The list of what these serve.
    pub fn of(agents: &Agents) -> Self {
        Self {
            identities: agents.identities.clone(),
            tunnels: Arc::clone(&agents.tunnels),
            store: Arc::clone(&agents.store),
            replica: agents.replica,
        }
    }

    /// The agents now.
    pub async fn list(&self) -> Listing {
        let mut held: HashMap<AgentId, Vec<Tunnel>> = HashMap::new();
        for view in self.tunnels.views() {
            held.entry(view.agent).or_default().push(Tunnel::seen(&view));
        }

        let identity = self.identities.load_full();
        let mut agents = Vec::new();
        for (name, id) in identity.agents() {
            let mut tunnels = held.remove(&id).unwrap_or_default();
            tunnels.sort_by_key(|tunnel| (tunnel.instance, tunnel.index, tunnel.since));
            let presence = if tunnels.is_empty() { self.absent(id).await } else { Presence::Connected };
            agents.push(Agent { id, name: name.clone(), presence, tunnels });
        }
        let version = env!("CARGO_PKG_VERSION").to_owned();
        Listing { replica: self.replica, version, time: SystemTime::now(), agents }
    }

    async fn absent(&self, agent: AgentId) -> Presence {
        let Ok(record) = self.store.lookup(agent).await else {
            return Presence::Unknown;
        };
        let others = record.routes.iter().map(|route| route.replica).filter(|other| *other != self.replica);
        let replicas: Vec<ReplicaId> = others.collect();
        match record.gone_since {
            _ if !replicas.is_empty() => Presence::Elsewhere { replicas },
            Some(since) => Presence::Away { since },
            None if record.routes.is_empty() => Presence::Never,
            // Its last tunnel here has just ended, and the store is about to be told.
            None => Presence::Away { since: SystemTime::now() },
        }
    }
}

impl Tunnel {
    fn seen(view: &View<Connected>) -> Self {
        let Connected { tunnel, hello, peer, since } = view.handle();
        let service = |(name, now): (&ServiceName, InFlight)| Service {
            name: name.clone(),
            short: now.short,
            long: now.long,
        };
        Self {
            id: view.tunnel(),
            peer: peer.clone(),
            since: *since,
            draining: view.is_draining(),
            instance: hello.instance,
            index: hello.tunnel_index,
            version: hello.version.clone(),
            pod_namespace: hello.pod_namespace.clone(),
            pod_name: hello.pod_name.clone(),
            kubernetes_version: hello.kubernetes_version.clone(),
            round_trip_ms: tunnel.round_trip().map(|took| took.as_micros() as f64 / 1000.0),
            services: view.services().map(service).collect(),
        }
    }
}

/// Times as people and `jq` read them.
mod rfc3339 {
    use std::time::SystemTime;

    use serde::{Deserialize, Deserializer, Serializer, de::Error as _};

    pub(super) fn serialize<S: Serializer>(time: &SystemTime, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&humantime::format_rfc3339_seconds(*time))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<SystemTime, D::Error> {
        humantime::parse_rfc3339(&String::deserialize(deserializer)?).map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_documented_shape_is_this_one() {
        let text = include_str!("../../docs/operations.md");
        let example = text.split("```json\n").nth(1).unwrap().split("```").next().unwrap();
        let documented: serde_json::Value = serde_json::from_str(example).unwrap();
        let listing: Listing = serde_json::from_str(example).unwrap();
        assert_eq!(serde_json::to_value(&listing).unwrap(), documented);
    }

    #[test]
    fn every_state_reads_back_what_it_writes() {
        let replicas = vec![ReplicaId::random()];
        let since = SystemTime::UNIX_EPOCH;
        for (presence, expected) in [
            (Presence::Connected, r#"{"state":"connected"}"#.to_owned()),
            (
                Presence::Elsewhere { replicas: replicas.clone() },
                format!(r#"{{"state":"elsewhere","replicas":["{}"]}}"#, replicas[0]),
            ),
            (Presence::Away { since }, r#"{"state":"away","since":"1970-01-01T00:00:00Z"}"#.to_owned()),
            (Presence::Never, r#"{"state":"never"}"#.to_owned()),
            (Presence::Unknown, r#"{"state":"unknown"}"#.to_owned()),
        ] {
            assert_eq!(serde_json::to_string(&presence).unwrap(), expected);
            assert_eq!(serde_json::from_str::<Presence>(&expected).unwrap(), presence);
        }
    }
}
