//! The applications and the components of all clusters, cluster by cluster.

use std::time::SystemTime;

use proto::ReplicaId;
use serde::{Deserialize, Serialize};
use settings::rfc3339;

use crate::{
    cluster_answer::ClusterAnswer,
    facts::AgentFacts,
    inquiry::{AskedCluster, FleetAnswer},
    summary::AgentCounts,
};

/// The lists of all clusters that a caller or a program may read.
#[derive(Debug, Serialize, Deserialize)]
pub struct FleetList<T> {
    replica: ReplicaId,
    #[serde(with = "rfc3339")]
    time: SystemTime,
    /// The reason for which agents, or their tunnels to other replicas, may be missing.
    missing: Option<String>,
    agents: AgentCounts,
    /// The clusters, in order of the ids of their agents.
    clusters: Vec<ListedCluster<T>>,
}

/// The cluster of an agent, with its list.
#[derive(Debug, Serialize, Deserialize)]
struct ListedCluster<T> {
    #[serde(flatten)]
    facts: AgentFacts,
    /// The reason why the cluster has not answered.
    missing: Option<String>,
    /// The answer of the cluster.
    #[serde(flatten)]
    list: Option<T>,
}

impl<T: ClusterAnswer> FleetAnswer for FleetList<T> {
    type Cluster = T;

    fn summarize(replica: ReplicaId, mut clusters: Vec<AskedCluster<T>>, missing: Option<String>) -> Self {
        clusters.sort_by_key(|cluster| cluster.facts.id);
        let agents = AgentCounts::of(&clusters);
        let listed = clusters.into_iter().map(|AskedCluster { facts, answer }| {
            let (list, missing) = match answer {
                Ok(list) => (Some(list), None),
                Err(reason) => (None, Some(reason)),
            };
            ListedCluster { facts, missing, list }
        });
        Self { replica, time: SystemTime::now(), missing, agents, clusters: listed.collect() }
    }
}
