//! The metrics of configurations. Labels have few values: agents are not among them.

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge},
    registry::Registry,
};

/// The metrics. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct ConfigurationMetrics {
    reads: Family<ResultLabel, Counter>,
    pushes: Family<ResultLabel, Counter>,
    /// Agents whose newest configuration cannot be used.
    pub(super) errors: Gauge,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ResultLabel {
    result: &'static str,
}

impl ConfigurationMetrics {
    /// Returns registered metrics.
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        registry.register(
            "kas_agent_configuration_reads",
            "Attempts to read the configuration of an agent, by result",
            metrics.reads.clone(),
        );
        registry.register(
            "kas_agent_configuration_pushes",
            "Configurations sent to agents, by result",
            metrics.pushes.clone(),
        );
        registry.register(
            "kas_agent_configuration_errors",
            "Agents with tunnels to this replica whose newest configuration cannot be used",
            metrics.errors.clone(),
        );
        metrics
    }

    /// Counts an attempt to read a configuration.
    pub(super) fn count_read(&self, result: &'static str) {
        self.reads.get_or_create(&ResultLabel { result }).inc();
    }

    /// Counts an attempt to send a configuration.
    pub(super) fn count_push(&self, result: &'static str) {
        self.pushes.get_or_create(&ResultLabel { result }).inc();
    }
}
