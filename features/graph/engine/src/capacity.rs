//! The capacity of a cluster: its nodes, what they offer to Pods, and what Pods have requested.

use std::collections::BTreeMap;

use crate::{access::Access, entry::Entry, graph::Graph, query::Query, text::cut};
use proto::graph::{Amounts, Capacity, KubeletVersion, NodeCounts};

/// The most versions of kubelets that are reported.
const MAX_VERSIONS: usize = 20;
/// The longest version, in bytes.
const MAX_VERSION: usize = 64;
const NODE: &str = "Node";
const POD: &str = "Pod";

impl Graph {
    /// Returns the capacity of the cluster, as far as the caller may list the nodes, and the Pods of all namespaces. A sum of a part would
    /// look like that of the cluster.
    pub fn capacity(&self, query: &Query, access: &Access) -> Capacity {
        let nodes = self.all_of(NODE, access);
        let pods = self.all_of(POD, access);
        let mut partial = self.partial(query, access);
        if partial.is_empty() && (nodes.is_none() || pods.is_none()) {
            partial.push("agentk does not load the nodes, or the Pods of all namespaces".to_owned());
        }
        Capacity {
            nodes: nodes.as_deref().map(count),
            kubelet_versions: nodes.as_deref().map(versions).unwrap_or_default(),
            allocatable: nodes.as_deref().map(sum),
            requested: pods.as_deref().map(sum),
            partial,
        }
    }

    /// Returns all objects of a kind of the core group, or `None` if some are not known or hidden.
    fn all_of(&self, kind: &str, access: &Access) -> Option<Vec<&Entry>> {
        let number = self.whole_resource("", kind, access)?;
        let of_resource = |entry: &&Entry| entry.resource == number;
        Some(self.entries().map(|(_, entry)| entry).filter(of_resource).collect())
    }
}

impl Query {
    /// Returns the query of the objects from which the capacity is computed.
    pub fn of_capacity() -> Self {
        let mut query = Self::default();
        query.set("kind", "Node,Pod").expect("a constant that is valid");
        query
    }
}

fn sum(entries: &[&Entry]) -> Amounts {
    entries.iter().map(|entry| entry.facts.amounts).fold(Amounts::default(), Amounts::plus)
}

fn count(nodes: &[&Entry]) -> NodeCounts {
    let with = |status: &str| {
        let has_status = |node: &&&Entry| node.facts.status.split(',').any(|word| word == status);
        nodes.iter().filter(has_status).count() as u64
    };
    NodeCounts { all: nodes.len() as u64, ready: with("Ready"), unschedulable: with("SchedulingDisabled") }
}

/// Returns the versions of kubelets, that of most nodes first.
fn versions(nodes: &[&Entry]) -> Vec<KubeletVersion> {
    let mut counts = BTreeMap::<&str, u64>::new();
    for node in nodes {
        let version = node.facts.details.iter().find(|(key, _)| *key == "version");
        *counts.entry(version.map_or("", |(_, version)| cut(version, MAX_VERSION))).or_default() += 1;
    }
    let version = |(version, nodes): (&str, u64)| KubeletVersion { version: version.to_owned(), nodes };
    let mut versions: Vec<_> = counts.into_iter().map(version).collect();
    versions.sort_by_key(|version| std::cmp::Reverse(version.nodes));
    versions.truncate(MAX_VERSIONS);
    versions
}
