//! Every agent and its tunnels to this replica, and which other replicas hold it: what `GET /agents` of the observability listener answers and
//! `kas agents` shows.
//!
//! For operators only: it names every agent, and where each connects from. The shape is documented in
//! `docs/operations.md`.

use std::{collections::HashMap, sync::Arc, time::SystemTime};

use proto::{AgentId, AgentName, InstanceId, ReplicaId, ServiceName, TunnelId};
use router::{InFlight, LocalTunnels, RouteStore, View};
use serde::{Deserialize, Serialize};

use crate::{
    agents::Agents,
    connected::Connected,
    identity::Identities,
    whereabouts::{Holder, Presence, Whereabouts, rfc3339},
};

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
    /// Why what other replicas hold is missing, if it is.
    pub missing: Option<String>,
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
    /// Which other replicas hold it.
    pub elsewhere: Vec<Holder>,
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
        let names = identity.agents();
        let ids: Vec<AgentId> = names.iter().map(|(_, id)| *id).collect();
        let mut whereabouts = Whereabouts::of(&*self.store, &ids).await;
        let mut agents = Vec::new();
        for (name, id) in names {
            let mut tunnels = held.remove(&id).unwrap_or_default();
            tunnels.sort_by_key(|tunnel| (tunnel.instance, tunnel.index, tunnel.since));
            let mut elsewhere = whereabouts.take(id);
            elsewhere.retain(|holder| holder.replica != self.replica);
            let presence = match (tunnels.is_empty(), elsewhere.is_empty()) {
                (false, _) => Presence::Connected,
                (true, false) => Presence::Elsewhere,
                (true, true) => whereabouts.absent(id),
            };
            agents.push(Agent { id, name: name.clone(), presence, tunnels, elsewhere });
        }
        let version = env!("CARGO_PKG_VERSION").to_owned();
        let missing = whereabouts.missing;
        Listing { replica: self.replica, version, time: SystemTime::now(), missing, agents }
    }
}

impl Tunnel {
    fn seen(view: &View<Connected>) -> Self {
        let Connected { tunnel, hello, peer, since, .. } = view.handle();
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
}
