//! Counts the agents at each scrape of the metrics.
//!
//! The tunnels to this replica are counted as they are. The agents of other replicas are read from the route store at most once a
//! minute; while Redis is not available, the last known ones count, so that a failure of Redis does not look like one of agents.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use access::Identities;
use parking_lot::Mutex;
use proto::{AgentId, AgentName, InstanceId, ReplicaId};
use router::LocalTunnels;
use store::Store;
use tokio::time::Instant;

use crate::{
    agent_locations::{AgentLocations, AgentLookup, KnownAgent},
    agents::AgentServer,
    metrics::agent::{AgentConnection, AgentCounts, AgentGauges, AgentSample},
    tunnel_entry::TunnelEntry,
};

/// The time for which the agents of other replicas are not read again.
const READ_PERIOD: Duration = Duration::from_secs(60);

/// The time for which an agent of GitLab counts after it was connected. No file lists these agents.
const GITLAB_AGENT_TTL: Duration = Duration::from_secs(24 * 3600);

/// Counts the agents of all replicas.
#[derive(Debug)]
pub struct AgentMonitor {
    lookup: AgentLookup,
    identities: Identities,
    tunnels: Arc<LocalTunnels<TunnelEntry>>,
    store: Arc<dyn Store>,
    replica: ReplicaId,
    max_agents: usize,
    gauges: AgentGauges,
    known: Mutex<KnownConnections>,
}

/// The connections of agents at the last reading of the route store, and those to this replica since then.
#[derive(Debug, Default)]
struct KnownConnections {
    read: Option<Instant>,
    /// False until the route store had an answer about all replicas.
    is_complete: bool,
    /// The processes with tunnels to other replicas, with their versions.
    elsewhere: HashMap<AgentId, Vec<(InstanceId, String)>>,
    /// The agents that are or were connected to a replica.
    seen: HashSet<AgentId>,
    /// The agents of GitLab, with the time at which they were connected last.
    gitlab: HashMap<AgentId, (AgentName, Option<u64>, Instant)>,
}

impl AgentMonitor {
    /// Creates the monitor of a replica. At most `max_agents` agents have a series of their own.
    pub fn new(agents: &AgentServer, max_agents: usize, gauges: AgentGauges) -> Self {
        Self {
            lookup: AgentLookup::new(agents),
            identities: agents.identities.clone(),
            tunnels: Arc::clone(&agents.tunnels),
            store: Arc::clone(&agents.store),
            replica: agents.replica,
            max_agents,
            gauges,
            known: Mutex::default(),
        }
    }

    /// Counts the agents for the scrape that follows.
    pub async fn refresh(&self) {
        let now = Instant::now();
        let read = self.known.lock().read;
        if read.is_none_or(|read| now - read >= READ_PERIOD) {
            self.read_directory(now).await;
        }
        let mut known = self.known.lock();
        let views = self.tunnels.views();
        let mut here: HashMap<AgentId, Vec<(InstanceId, String)>> = HashMap::new();
        for view in &views {
            let hello = view.handle().hello();
            let TunnelEntry { agent, .. } = view.handle();
            here.entry(view.agent).or_default().push((hello.instance, hello.version.clone()));
            known.connected(&self.identities, view.agent, &agent.name, agent.project, now);
        }
        self.gauges.set(known.count(&self.identities, &here, self.max_agents));
    }

    async fn read_directory(&self, now: Instant) {
        let agents = self.lookup.list(None).await.agents;
        let ids: Vec<AgentId> = agents.iter().map(|agent| agent.id).collect();
        let locations = AgentLocations::lookup(&*self.store, &ids).await;
        let mut known = self.known.lock();
        known.update(&self.identities, agents, locations, self.replica, now);
        known.read = Some(now);
    }
}

impl KnownConnections {
    /// Adds an answer of the route store. If it lacks the other replicas, their last known agents stay.
    fn update(
        &mut self,
        identities: &Identities,
        agents: Vec<KnownAgent>,
        mut locations: AgentLocations,
        replica: ReplicaId,
        now: Instant,
    ) {
        if locations.missing.is_none() {
            self.is_complete = true;
            self.elsewhere.clear();
        }
        self.seen.extend(locations.disconnected.keys());
        for KnownAgent { id, name, project, .. } in agents {
            let mut owners = locations.take_owners(id);
            owners.retain(|owner| owner.replica != replica);
            if !owners.is_empty() {
                let instances = owners.into_iter().flat_map(|owner| owner.instances);
                let instances = instances.map(|instance| (instance.id, instance.reported.version)).collect();
                self.elsewhere.insert(id, instances);
                self.connected(identities, id, &name, project, now);
            }
        }
        self.gitlab.retain(|_, (_, _, connected)| now - *connected < GITLAB_AGENT_TTL);
    }

    /// Records that an agent is connected.
    fn connected(
        &mut self,
        identities: &Identities,
        agent: AgentId,
        name: &AgentName,
        project: Option<u64>,
        now: Instant,
    ) {
        self.seen.insert(agent);
        if identities.load().name(agent).is_none() {
            self.gitlab.insert(agent, (name.clone(), project, now));
        }
    }

    /// Counts the agents of the identity file, and those of GitLab.
    fn count(
        &self,
        identities: &Identities,
        here: &HashMap<AgentId, Vec<(InstanceId, String)>>,
        max_agents: usize,
    ) -> AgentCounts {
        let identity = identities.load_full();
        let of_file = identity.agents().into_iter().map(|(name, id)| AgentSample {
            label: name.to_string(),
            connection: self.connection(id, here.contains_key(&id)),
        });
        let of_gitlab = self.gitlab.iter().filter(|(id, _)| identity.name(**id).is_none());
        let of_gitlab = of_gitlab.map(|(id, (name, project, _))| AgentSample {
            // The names of agents are unique in their project only.
            label: project.map_or_else(|| name.to_string(), |project| format!("{project}/{name}")),
            connection: self.connection(*id, here.contains_key(id)),
        });
        let agents = of_file.chain(of_gitlab).collect();
        let elsewhere = self.elsewhere.values().flatten().map(|(id, version)| (*id, &**version));
        let instances: HashMap<InstanceId, &str> =
            elsewhere.chain(here.values().flatten().map(|(id, version)| (*id, &**version))).collect();
        AgentCounts::new(agents, instances.into_values(), max_agents)
    }

    fn connection(&self, agent: AgentId, is_here: bool) -> AgentConnection {
        if is_here || self.elsewhere.contains_key(&agent) {
            AgentConnection::Connected
        } else if self.seen.contains(&agent) {
            AgentConnection::Away
        } else if self.is_complete {
            AgentConnection::Never
        } else {
            AgentConnection::Unknown
        }
    }
}

#[cfg(test)]
mod tests {
    use access::Identity;
    use std::{path::Path, time::SystemTime};

    use super::*;
    use crate::agent_locations::AgentOwner;

    const FILE: &str = "agents: [{id: 1, name: prod, tokens: []}, {id: 2, name: staging, tokens: []}]";

    fn identities() -> Identities {
        Identities::new(Identity::parse(Path::new("identity.yaml"), FILE).unwrap())
    }

    fn agent(id: u64, name: &str, project: Option<u64>) -> KnownAgent {
        KnownAgent { id: AgentId(id), name: name.parse().unwrap(), project, project_path: None }
    }

    fn held(agents: &[u64]) -> AgentLocations {
        let owner = || vec![AgentOwner { replica: ReplicaId::random(), instances: Vec::new() }];
        let held = agents.iter().map(|id| (AgentId(*id), owner())).collect();
        AgentLocations { held, disconnected: HashMap::new(), missing: None }
    }

    fn unavailable() -> AgentLocations {
        AgentLocations { missing: Some("Redis is down".to_owned()), ..held(&[]) }
    }

    fn states(known: &KnownConnections) -> [AgentConnection; 2] {
        [1, 2].map(|id| known.connection(AgentId(id), false))
    }

    #[test]
    fn last_known_agents_count_while_the_directory_is_unavailable() {
        let (identities, now, me) = (identities(), Instant::now(), ReplicaId::random());
        let mut known = KnownConnections::default();
        let both = || vec![agent(1, "prod", None), agent(2, "staging", None)];
        known.update(&identities, both(), unavailable(), me, now);
        assert_eq!(states(&known), [AgentConnection::Unknown; 2]);
        known.update(&identities, both(), held(&[1]), me, now);
        assert_eq!(states(&known), [AgentConnection::Connected, AgentConnection::Never]);
        known.update(&identities, both(), unavailable(), me, now);
        assert_eq!(states(&known), [AgentConnection::Connected, AgentConnection::Never]);
        known.update(&identities, both(), held(&[]), me, now);
        assert_eq!(states(&known), [AgentConnection::Away, AgentConnection::Never]);
    }

    #[test]
    fn agent_that_disconnected_before_the_start_is_away() {
        let mut known = KnownConnections::default();
        let disconnected = HashMap::from([(AgentId(2), SystemTime::UNIX_EPOCH)]);
        let locations = AgentLocations { disconnected, ..held(&[]) };
        known.update(&identities(), Vec::new(), locations, ReplicaId::random(), Instant::now());
        assert_eq!(states(&known), [AgentConnection::Never, AgentConnection::Away]);
    }

    /// No file lists the agents of GitLab, and their names are unique in a project only.
    #[test]
    fn agents_of_gitlab_count_for_a_day_after_their_last_tunnel() {
        let (identities, start, me) = (identities(), Instant::now(), ReplicaId::random());
        let mut known = KnownConnections::default();
        let agents = vec![agent(7, "prod", Some(42)), agent(8, "prod", Some(43))];
        known.update(&identities, agents, held(&[7, 8]), me, start);
        let count = |known: &KnownConnections| known.count(&identities, &HashMap::new(), 500);
        let expected = |connection: AgentConnection, labels: &[&str]| {
            let file = ["prod", "staging"].map(|label| (label, AgentConnection::Never));
            let all = file.into_iter().chain(labels.iter().map(|label| (*label, connection)));
            let samples = all.map(|(label, connection)| AgentSample { label: label.to_owned(), connection });
            AgentCounts::new(samples.collect(), [], 500)
        };
        assert_eq!(count(&known), expected(AgentConnection::Connected, &["42/prod", "43/prod"]));
        let last = start + GITLAB_AGENT_TTL - Duration::from_secs(1);
        known.update(&identities, Vec::new(), held(&[]), me, last);
        assert_eq!(count(&known), expected(AgentConnection::Away, &["42/prod", "43/prod"]));
        known.update(&identities, Vec::new(), held(&[]), me, start + GITLAB_AGENT_TTL);
        assert_eq!(count(&known), expected(AgentConnection::Away, &[]));
    }
}
