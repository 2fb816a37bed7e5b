//! The metrics of the graph, read at each scrape.

use std::{fmt, sync::Arc};

use prometheus_client::{encoding::DescriptorEncoder, registry::Registry};
use resource_graph::{GraphLimits, Limit};
use telemetry::{RegistryExt as _, encode_gauge, encode_gauges};

use super::GraphService;

/// Reads the cache at each scrape.
pub(crate) struct GraphMetrics;

impl GraphMetrics {
    /// Registers the metrics of a service.
    pub(crate) fn register(registry: &mut Registry, service: &Arc<GraphService>) {
        let service = Arc::downgrade(service);
        registry.collect(move |encoder| match service.upgrade() {
            Some(service) => encode(encoder, &service),
            None => Ok(()),
        });
    }
}

fn encode(encoder: &mut DescriptorEncoder<'_>, service: &GraphService) -> fmt::Result {
    let current = service.current();
    let (objects, bytes) =
        current.as_ref().map_or((0, 0), |cache| cache.read(|graph| (graph.len(), graph.bytes())));
    let help = "Objects of the cluster in memory; 0 while nobody looks at the graph";
    encode_gauge(encoder, "agentk_graph_objects", help, objects as u64)?;
    let help = "Estimated memory of these objects in bytes";
    encode_gauge(encoder, "agentk_graph_bytes", help, bytes as u64)?;
    let help = "Callers that follow the graph";
    encode_gauge(encoder, "agentk_graph_viewers", help, service.viewers.used() as u64)?;
    let limits = GraphLimits::from(service.section.borrow().limits);
    let of_limit = Limit::ALL.map(|limit| match limit {
        Limit::Objects => (limit, limits.objects),
        Limit::ObjectsPerResource => (limit, limits.objects_per_resource),
        Limit::Bytes => (limit, limits.bytes),
    });
    let over = Limit::ALL.map(|limit| {
        (limit, current.as_ref().map_or(0, |cache| cache.read(|graph| graph.over_limit(limit))))
    });
    let series = |values: [(Limit, usize); 3]| {
        values.map(|(limit, value)| ([("limit", limit.as_str())], value as u64))
    };
    let help = "How much the graph may hold: graph.limits of the agent's configuration";
    encode_gauges(encoder, "agentk_graph_limit", help, series(of_limit))?;
    let help = "Resources of the API server whose objects are only counted because of a limit";
    encode_gauges(encoder, "agentk_graph_resources_over_limit", help, series(over))
}
