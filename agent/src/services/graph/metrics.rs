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

use super::{GraphService, MAX_VIEWERS};

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
        let (objects, bytes) = match service.current() {
            Some(cache) => cache.read(|graph| (graph.len(), graph.bytes())),
            None => (0, 0),
        };
        let viewers = MAX_VIEWERS - service.viewers.available_permits();
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
        Ok(())
    }
}

impl fmt::Debug for GraphMetrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("GraphMetrics")
    }
}
