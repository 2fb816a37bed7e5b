//! The limits of a graph.

use proto::{agent_configuration::graph, graph::ResourceState};

use super::Graph;

/// The limits of a graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GraphLimits {
    /// Objects of all resources.
    pub objects: usize,
    /// Objects of one resource.
    pub objects_per_resource: usize,
    /// The estimated memory, in bytes.
    pub bytes: usize,
}

/// A limit of [`GraphLimits`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Limit {
    /// Objects of all resources.
    Objects,
    /// Objects of one resource.
    ObjectsPerResource,
    /// The memory.
    Bytes,
}

impl Limit {
    /// All limits.
    pub const ALL: [Self; 3] = [Self::Objects, Self::ObjectsPerResource, Self::Bytes];

    /// Returns the value of the label `limit` of metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Objects => "objects",
            Self::ObjectsPerResource => "objects_per_resource",
            Self::Bytes => "bytes",
        }
    }
}

impl From<graph::GraphLimits> for GraphLimits {
    fn from(configured: graph::GraphLimits) -> Self {
        let graph::GraphLimits { objects, objects_per_resource, memory_mib } = configured;
        Self {
            objects: objects as usize,
            objects_per_resource: objects_per_resource as usize,
            bytes: (memory_mib as usize) << 20,
        }
    }
}

impl Default for GraphLimits {
    fn default() -> Self {
        graph::GraphLimits::default().into()
    }
}

/// The limit that an object would exceed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LimitExceeded {
    pub(crate) limit: Limit,
    /// The limit in words.
    pub(crate) message: String,
}

impl Graph {
    /// Returns the number of resources that are only counted because of a limit.
    pub fn over_limit(&self, limit: Limit) -> usize {
        let counted_only =
            self.resources.iter().filter(|resource| resource.state == ResourceState::CountedOnly);
        counted_only.filter(|resource| resource.exceeded == Some(limit)).count()
    }

    /// Returns how much the graph may hold.
    pub fn limits(&self) -> GraphLimits {
        self.limits
    }

    pub(super) fn check_limits(&self, resource: usize, size: usize) -> Result<(), LimitExceeded> {
        let GraphLimits { objects, objects_per_resource, bytes } = self.limits;
        let known = &self.resources[resource];
        let (limit, message) = if known.objects >= objects_per_resource {
            (Limit::ObjectsPerResource, format!("it has more than {objects_per_resource} objects"))
        } else if self.len() >= objects {
            (Limit::Objects, format!("all resources together have more than {objects} objects"))
        } else if self.bytes + size > bytes {
            (Limit::Bytes, format!("all objects together take more than {} MiB", bytes >> 20))
        } else {
            return Ok(());
        };
        Err(LimitExceeded { limit, message })
    }
}
