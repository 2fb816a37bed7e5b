//! The list of all agents, for `GET /agents` of the observability listener and for `kas agents`.
//!
//! It is for operators only, because it has the name and the address of every agent. Its shape is documented in
//! `docs/agents.md`.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
    time::SystemTime,
};

use proto::{AgentId, AgentName, InstanceId, ReplicaId, ServiceName, TunnelId};
use router::{LocalTunnels, RequestsInFlight, TunnelView};
use serde::{Deserialize, Serialize};
use settings::rfc3339;
use store::{ReportedInfo, Store};

use crate::{
    agent_locations::{AgentLocations, AgentLookup, AgentOwner, AgentState, KnownAgent},
    agents::{AgentConflicts, AgentServer, DialErrors, RefusedTunnel},
    configuration::{ConfigurationService, ConfigurationStatus},
    tunnel_entry::TunnelEntry,
};
use access::kill_switch::KillSwitch;

/// Lists the agents of a replica.
#[derive(Clone, Debug)]
pub struct AgentLister {
    lookup: AgentLookup,
    tunnels: Arc<LocalTunnels<TunnelEntry>>,
    store: Arc<dyn Store>,
    kill_switch: Arc<KillSwitch>,
    replica: ReplicaId,
    configuration: ConfigurationService,
    conflicts: Arc<AgentConflicts>,
    dial_errors: Arc<DialErrors>,
}

/// All agents of the identity file, and the connected agents of GitLab.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct AgentList {
    /// The replica that created the list.
    pub replica: ReplicaId,
    /// The version of that kas.
    pub version: String,
    /// The time at which the list was created.
    #[serde(with = "rfc3339")]
    pub time: SystemTime,
    /// The error because of which the tunnels to other replicas are missing.
    pub missing: Option<String>,
    /// The rules by which requests are disabled.
    #[serde(default)]
    pub disabled: Vec<String>,
    /// The agents, in order of their names.
    pub agents: Vec<AgentStatus>,
}

/// One agent.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct AgentStatus {
    /// The id of the agent.
    pub id: AgentId,
    /// Its name.
    pub name: AgentName,
    /// The connection of the agent.
    #[serde(flatten)]
    pub state: AgentState,
    /// The rule by which all requests to the agent are disabled.
    #[serde(default)]
    pub disabled: Option<String>,
    /// The UIDs of the clusters in which the token of the agent is used, if there are several.
    #[serde(default)]
    pub clusters: Vec<String>,
    /// The last tunnel that this replica has refused in the last five minutes although its token is valid.
    #[serde(default)]
    pub refused: Option<RefusedTunnel>,
    /// The reason for which this replica cannot dial the agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dial_error: Option<String>,
    /// Its tunnels to this replica.
    pub tunnels: Vec<TunnelStatus>,
    /// The other replicas that hold tunnels of the agent.
    pub elsewhere: Vec<AgentOwner>,
    /// The configuration of the agent, if it has a tunnel to this replica.
    pub configuration: Option<ConfigurationStatus>,
}

/// One tunnel.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct TunnelStatus {
    /// The id of the tunnel in the logs of kas and agentk.
    pub id: TunnelId,
    /// The address of the agent.
    pub peer: String,
    /// The first digits of the hash of the token with which it was opened, or nothing in a list of an older kas.
    #[serde(default)]
    pub token: String,
    /// The time at which it was opened.
    #[serde(with = "rfc3339")]
    pub since: SystemTime,
    /// True if the tunnel drains.
    pub draining: bool,
    /// The agentk process, which reports this id and the next fields itself.
    pub instance: InstanceId,
    /// The index of the tunnel in the process, from 0.
    pub index: u16,
    /// The version, the pod and the cluster of the process.
    #[serde(flatten)]
    pub reported: ReportedInfo,
    /// The last measured round trip, in milliseconds.
    pub round_trip_ms: Option<f64>,
    /// The services of the tunnel.
    pub services: Vec<ServiceLoad>,
}

/// A service of a tunnel, with its requests in flight.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ServiceLoad {
    /// Its name.
    pub name: ServiceName,
    /// Short requests in flight.
    pub short: u32,
    /// Long requests in flight: watches, `logs -f`, exec, port-forward.
    pub long: u32,
}

impl AgentLister {
    /// Creates the lister of a replica.
    pub fn new(agents: &AgentServer) -> Self {
        Self {
            lookup: AgentLookup::new(agents),
            tunnels: Arc::clone(&agents.tunnels),
            store: Arc::clone(&agents.store),
            kill_switch: Arc::clone(&agents.kill_switch),
            replica: agents.replica,
            configuration: agents.configuration.clone(),
            conflicts: Arc::clone(&agents.conflicts),
            dial_errors: Arc::clone(&agents.dial_errors),
        }
    }

    /// Lists the agents.
    pub async fn list(&self) -> AgentList {
        let mut held: HashMap<AgentId, Vec<TunnelStatus>> = HashMap::new();
        for view in self.tunnels.views() {
            held.entry(view.agent).or_default().push(TunnelStatus::new(&view));
        }

        let mut known = self.lookup.list(None).await;
        known.agents.sort_by(|one, other| (&one.name, one.id).cmp(&(&other.name, other.id)));
        let ids: Vec<AgentId> = known.agents.iter().map(|agent| agent.id).collect();
        let mut locations = AgentLocations::lookup(&*self.store, &ids).await;
        let (mut agents, now) = (Vec::new(), SystemTime::now());
        for agent in known.agents {
            let disabled = self.kill_switch.rule_of_agent(agent.attributes());
            let KnownAgent { id, name, .. } = agent;
            let mut tunnels = held.remove(&id).unwrap_or_default();
            tunnels.sort_by_key(|tunnel| (tunnel.instance, tunnel.index, tunnel.since));
            let mut elsewhere = locations.take_owners(id);
            elsewhere.retain(|owner| owner.replica != self.replica);
            let state = match (tunnels.is_empty(), elsewhere.is_empty()) {
                (false, _) => AgentState::Connected,
                (true, false) => AgentState::Elsewhere,
                (true, true) => locations.state_without_owner(id),
            };
            let configuration = self.configuration.status(id);
            let clusters = several_clusters(&tunnels, &elsewhere);
            let refused = self.conflicts.refused(id, now);
            agents.push(AgentStatus {
                id,
                name,
                state,
                disabled,
                clusters,
                refused,
                dial_error: self.dial_errors.get(id),
                tunnels,
                elsewhere,
                configuration,
            });
        }
        let version = env!("CARGO_PKG_VERSION").to_owned();
        let missing = locations.missing.or(known.missing);
        let disabled = self.kill_switch.lines();
        AgentList { replica: self.replica, version, time: now, missing, disabled, agents }
    }
}

/// Returns the clusters of an agent, if there are several.
fn several_clusters(tunnels: &[TunnelStatus], elsewhere: &[AgentOwner]) -> Vec<String> {
    let here = tunnels.iter().filter_map(|tunnel| tunnel.reported.cluster.clone());
    let instances = elsewhere.iter().flat_map(|owner| &owner.instances);
    let clusters: BTreeSet<String> =
        here.chain(instances.filter_map(|instance| instance.reported.cluster.clone())).collect();
    if clusters.len() < 2 { Vec::new() } else { clusters.into_iter().collect() }
}

impl TunnelStatus {
    fn new(view: &TunnelView<TunnelEntry>) -> Self {
        let entry = view.handle();
        let TunnelEntry { tunnel, peer, token, since, .. } = entry;
        let hello = entry.hello();
        let service = |(name, now): (&ServiceName, RequestsInFlight)| ServiceLoad {
            name: name.clone(),
            short: now.short,
            long: now.long,
        };
        Self {
            id: view.tunnel(),
            peer: peer.clone(),
            token: token.short(),
            since: *since,
            draining: view.is_draining(),
            instance: hello.instance,
            index: hello.tunnel_index,
            reported: (&*hello).into(),
            round_trip_ms: tunnel.round_trip().map(|took| took.as_micros() as f64 / 1000.0),
            services: view.services().filter(|(name, _)| !name.is_internal()).map(service).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn list_has_the_documented_shape() {
        let text = include_str!("../../../docs/agents.md");
        let example = text.split("```json\n").nth(1).unwrap().split("```").next().unwrap();
        let documented: serde_json::Value = serde_json::from_str(example).unwrap();
        let listing: AgentList = serde_json::from_str(example).unwrap();
        assert_eq!(serde_json::to_value(&listing).unwrap(), documented);
    }
}
