//! The metrics of configurations. Labels have few values: agents are not among them.

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge},
    registry::Registry,
};

/// The metrics. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub(crate) struct ConfigurationMetrics {
    reads: Family<ResultLabel, Counter>,
    pushes: Family<ResultLabel, Counter>,
    /// Agents whose newest configuration cannot be used.
    pub(super) errors: Gauge,
}

/// The values of the label `result` of `kas_agent_configuration_reads_total`.
const READ_RESULTS: [&str; 6] = ["ok", "unchanged", "none", "invalid", "refused", "unavailable"];

/// The values of the label `result` of `kas_agent_configuration_pushes_total`.
const PUSH_RESULTS: [&str; 4] = ["ok", "ignored", "refused", "failed"];

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ResultLabel {
    result: &'static str,
}

impl ConfigurationMetrics {
    /// Returns registered metrics.
    pub(crate) fn register(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        // All exist from the start: the rate of a series misses the event with which it begins.
        for result in READ_RESULTS {
            drop(metrics.reads.get_or_create(&ResultLabel { result }));
        }
        for result in PUSH_RESULTS {
            drop(metrics.pushes.get_or_create(&ResultLabel { result }));
        }
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
        debug_assert!(READ_RESULTS.contains(&result), "{result} has no series from the start");
        self.reads.get_or_create(&ResultLabel { result }).inc();
    }

    /// Counts an attempt to send a configuration.
    pub(super) fn count_push(&self, result: &'static str) {
        debug_assert!(PUSH_RESULTS.contains(&result), "{result} has no series from the start");
        self.pushes.get_or_create(&ResultLabel { result }).inc();
    }
}
