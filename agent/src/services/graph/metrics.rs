//! The metrics of the graph, read at each scrape.

use std::{
    fmt,
    sync::{Arc, Weak},
};

use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeMetric},
    metrics::{MetricType, gauge::ConstGauge},
    registry::Registry,
};

use resource_graph::{GraphLimits, Limit};

use super::GraphService;

/// Reads the cache at each scrape.
pub(crate) struct GraphMetrics(Weak<GraphService>);

impl GraphMetrics {
    /// Registers the metrics of a service.
    pub(crate) fn register(registry: &mut Registry, service: &Arc<GraphService>) {
        registry.register_collector(Box::new(Self(Arc::downgrade(service))));
    }
}

impl Collector for GraphMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let Some(service) = self.0.upgrade() else { return Ok(()) };
        let current = service.current();
        let (objects, bytes) =
            current.as_ref().map_or((0, 0), |cache| cache.read(|graph| (graph.len(), graph.bytes())));
        let viewers = service.viewers.used();
        for (name, help, value) in [
            (
                "agentk_graph_objects",
                "Objects of the cluster in memory; 0 while nobody looks at the graph",
                objects,
            ),
            ("agentk_graph_bytes", "Estimated memory of these objects in bytes", bytes),
            ("agentk_graph_viewers", "Callers that follow the graph", viewers),
        ] {
            let gauge = ConstGauge::new(i64::try_from(value).unwrap_or(i64::MAX));
            gauge.encode(encoder.encode_descriptor(name, help, None, MetricType::Gauge)?)?;
        }
        let limits = GraphLimits::from(service.section.borrow().limits);
        let over = |limit| current.as_ref().map_or(0, |cache| cache.read(|graph| graph.over_limit(limit)));
        let limit_of = |limit| match limit {
            Limit::Objects => limits.objects,
            Limit::ObjectsPerResource => limits.objects_per_resource,
            Limit::Bytes => limits.bytes,
        };
        for (name, help, value) in [
            (
                "agentk_graph_limit",
                "How much the graph may hold: graph.limits of the agent's configuration",
                &limit_of as &dyn Fn(Limit) -> usize,
            ),
            (
                "agentk_graph_resources_over_limit",
                "Resources of the API server whose objects are only counted because of a limit",
                &over,
            ),
        ] {
            let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            for limit in Limit::ALL {
                let gauge = ConstGauge::new(i64::try_from(value(limit)).unwrap_or(i64::MAX));
                gauge.encode(family.encode_family(&[("limit", limit.as_str())])?)?;
            }
        }
        Ok(())
    }
}

impl fmt::Debug for GraphMetrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("GraphMetrics")
    }
}
