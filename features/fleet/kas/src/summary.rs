//! The fleet: the versions, the nodes and the capacity of all clusters, as counts and sums.

use std::{
    collections::{BTreeMap, HashSet},
    time::SystemTime,
};

use proto::{
    ReplicaId,
    graph::{Amounts, Capacity, NodeCounts},
};
use serde::{Deserialize, Serialize};
use settings::rfc3339;

use crate::{
    facts::AgentFacts,
    inquiry::{AskedCluster, FleetAnswer},
};

/// The most versions of a count. Those of the fewest agents are left out.
const MAX_VERSIONS: usize = 50;

/// The clusters of all agents that a caller or a program may read.
#[derive(Debug, Serialize, Deserialize)]
pub struct Fleet {
    replica: ReplicaId,
    #[serde(with = "rfc3339")]
    time: SystemTime,
    /// The reason for which agents, or their tunnels to other replicas, may be missing.
    missing: Option<String>,
    agents: AgentCounts,
    /// The agents by the version of agentk, that of most agents first. An agent whose processes have several versions counts for each.
    agentk_versions: Vec<VersionCount>,
    /// The connected agents by the version of Kubernetes.
    kubernetes_versions: Vec<VersionCount>,
    total: FleetTotal,
    /// The clusters, in order of the ids of their agents.
    clusters: Vec<ClusterSummary>,
}

/// Numbers of agents.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct AgentCounts {
    all: u64,
    connected: u64,
    /// The agents whose cluster has answered.
    answered: u64,
}

/// The agents with a version.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct VersionCount {
    /// Null if agents do not report it.
    version: Option<String>,
    agents: u64,
}

/// The sums of all clusters. A cluster with several agents counts once.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct FleetTotal {
    /// The clusters whose nodes are in the sums.
    clusters: u64,
    nodes: NodeCounts,
    allocatable: Amounts,
    /// The clusters whose requests are in the sum.
    clusters_with_requests: u64,
    requested: Amounts,
}

/// The cluster of an agent.
#[derive(Debug, Serialize, Deserialize)]
struct ClusterSummary {
    #[serde(flatten)]
    facts: AgentFacts,
    /// The reason why the cluster has not answered.
    missing: Option<String>,
    /// The answer of the cluster.
    capacity: Option<Capacity>,
}

impl AgentCounts {
    /// Counts the agents of clusters.
    pub(crate) fn of<T>(clusters: &[AskedCluster<T>]) -> Self {
        let number = |count: usize| u64::try_from(count).unwrap_or(u64::MAX);
        Self {
            all: number(clusters.len()),
            connected: number(clusters.iter().filter(|cluster| cluster.facts.is_connected()).count()),
            answered: number(clusters.iter().filter(|cluster| cluster.answer.is_ok()).count()),
        }
    }
}

impl FleetAnswer for Fleet {
    type Cluster = Capacity;

    fn summarize(
        replica: ReplicaId,
        mut clusters: Vec<AskedCluster<Capacity>>,
        missing: Option<String>,
    ) -> Self {
        clusters.sort_by_key(|cluster| cluster.facts.id);
        let agents = AgentCounts::of(&clusters);
        let clusters: Vec<_> = clusters.into_iter().map(ClusterSummary::from).collect();
        let connected = || clusters.iter().map(|cluster| &cluster.facts).filter(|facts| facts.is_connected());
        let agentk = connected().flat_map(|facts| versions_of(&facts.agentk_versions));
        let kubernetes = connected().map(|facts| facts.kubernetes_version.as_deref());
        Self {
            replica,
            time: SystemTime::now(),
            missing,
            agents,
            agentk_versions: counted(agentk),
            kubernetes_versions: counted(kubernetes),
            total: total(&clusters),
            clusters,
        }
    }
}

impl From<AskedCluster<Capacity>> for ClusterSummary {
    fn from(AskedCluster { facts, answer }: AskedCluster<Capacity>) -> Self {
        let (capacity, missing) = match answer {
            Ok(capacity) => (Some(capacity), None),
            Err(reason) => (None, Some(reason)),
        };
        Self { facts, missing, capacity }
    }
}

fn versions_of(known: &[String]) -> Vec<Option<&str>> {
    if known.is_empty() { vec![None] } else { known.iter().map(|version| Some(&**version)).collect() }
}

fn counted<'a>(versions: impl Iterator<Item = Option<&'a str>>) -> Vec<VersionCount> {
    let mut counts = BTreeMap::<Option<&str>, u64>::new();
    for version in versions {
        *counts.entry(version).or_default() += 1;
    }
    let count =
        |(version, agents): (Option<&str>, u64)| VersionCount { version: version.map(str::to_owned), agents };
    let mut counts: Vec<_> = counts.into_iter().map(count).collect();
    counts.sort_by_key(|count| std::cmp::Reverse(count.agents));
    counts.truncate(MAX_VERSIONS);
    counts
}

/// Returns the sums. Of agents in the same cluster, the first one that knows the nodes counts. Each agent reports its cluster itself, so that
/// the list of clusters shows each answer.
fn total(clusters: &[ClusterSummary]) -> FleetTotal {
    let (mut total, mut with_nodes, mut with_requests) =
        (FleetTotal::default(), HashSet::new(), HashSet::new());
    for ClusterSummary { facts, capacity, .. } in clusters {
        let Some(capacity) = capacity else { continue };
        let is_new = |known: &mut HashSet<String>| facts.cluster.clone().is_none_or(|uid| known.insert(uid));
        if let (Some(nodes), Some(allocatable)) = (capacity.nodes, capacity.allocatable)
            && is_new(&mut with_nodes)
        {
            total.clusters += 1;
            total.nodes = NodeCounts {
                all: total.nodes.all.saturating_add(nodes.all),
                ready: total.nodes.ready.saturating_add(nodes.ready),
                unschedulable: total.nodes.unschedulable.saturating_add(nodes.unschedulable),
            };
            total.allocatable = total.allocatable.plus(allocatable);
        }
        if let Some(requested) = capacity.requested
            && is_new(&mut with_requests)
        {
            total.clusters_with_requests += 1;
            total.requested = total.requested.plus(requested);
        }
    }
    total
}

#[cfg(test)]
mod tests {
    use kas_core::agent_locations::AgentState;
    use proto::AgentId;

    use super::*;

    fn cluster(
        id: u64,
        uid: Option<&str>,
        versions: &[&str],
        capacity: Option<Capacity>,
    ) -> AskedCluster<Capacity> {
        let state = if versions.is_empty() { AgentState::Never } else { AgentState::Connected };
        let facts = AgentFacts {
            id: AgentId(id),
            name: id.to_string(),
            title: None,
            project: None,
            state,
            tunnels: 2,
            agentk_versions: versions
                .iter()
                .map(|version| (*version).to_owned())
                .filter(|it| !it.is_empty())
                .collect(),
            kubernetes_version: uid.map(|_| "v1.34.1".to_owned()),
            cluster: uid.map(str::to_owned),
        };
        AskedCluster { facts, answer: capacity.ok_or_else(|| "it is away".to_owned()) }
    }

    fn capacity(nodes: Option<u64>, requested: Option<u64>) -> Option<Capacity> {
        let amounts = |cpu| Amounts { cpu_millicores: cpu * 1000, memory_bytes: cpu };
        Some(Capacity {
            nodes: nodes.map(|all| NodeCounts { all, ready: all, unschedulable: 0 }),
            allocatable: nodes.map(amounts),
            requested: requested.map(amounts),
            ..Capacity::default()
        })
    }

    #[test]
    fn cluster_with_several_agents_counts_once() {
        let clusters = [
            cluster(1, Some("a"), &["0.1.0"], capacity(None, Some(1))),
            cluster(2, Some("a"), &["0.1.0"], capacity(Some(3), Some(2))),
            cluster(3, Some("b"), &["0.1.0"], capacity(Some(4), None)),
            cluster(4, None, &["0.1.0"], capacity(Some(10), Some(u64::MAX / 2000))),
            cluster(5, None, &["0.1.0"], None),
        ];
        let total = total(&clusters.map(ClusterSummary::from));
        assert_eq!((total.clusters, total.nodes.all, total.allocatable.cpu_millicores), (3, 17, 17_000));
        assert_eq!((total.clusters_with_requests, total.requested.memory_bytes), (2, 1 + u64::MAX / 2000));
    }

    #[test]
    fn versions_are_those_of_connected_agents() {
        let clusters = vec![
            cluster(3, Some("c"), &["0.2.0"], capacity(Some(1), None)),
            cluster(2, Some("b"), &["0.1.0", "0.2.0"], None),
            cluster(1, None, &[""], None),
            cluster(4, None, &[], None),
        ];
        let fleet = Fleet::summarize(ReplicaId::random(), clusters, None);
        let counts = |counts: &[VersionCount]| -> Vec<(Option<String>, u64)> {
            counts.iter().map(|count| (count.version.clone(), count.agents)).collect()
        };
        let text = |text: &str| Some(text.to_owned());
        assert_eq!(counts(&fleet.agentk_versions), [(text("0.2.0"), 2), (None, 1), (text("0.1.0"), 1)]);
        assert_eq!(counts(&fleet.kubernetes_versions), [(text("v1.34.1"), 2), (None, 1)]);
        assert_eq!(fleet.agents, AgentCounts { all: 4, connected: 3, answered: 1 });
        assert_eq!(fleet.clusters.iter().map(|it| it.facts.id.0).collect::<Vec<_>>(), [1, 2, 3, 4]);
    }
}
