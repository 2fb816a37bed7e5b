//! The metrics of configurations. Labels have few values: agents are not among them.

use prometheus_client::{metrics::gauge::Gauge, registry::Registry};
use telemetry::{CounterByLabel, RegistryExt as _};

/// The metrics. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct ConfigurationMetrics {
    reads: CounterByLabel,
    pushes: CounterByLabel,
    /// Agents whose newest configuration cannot be used.
    pub(super) errors: Gauge,
}

impl ConfigurationMetrics {
    /// Returns registered metrics.
    pub(crate) fn register(registry: &mut Registry) -> Self {
        Self {
            reads: registry.counters(
                "kas_agent_configuration_reads",
                "Attempts to read the configuration of an agent, by result",
                "result",
                ["ok", "unchanged", "none", "invalid", "refused", "unavailable"],
            ),
            pushes: registry.counters(
                "kas_agent_configuration_pushes",
                "Configurations sent to agents, by result",
                "result",
                ["ok", "ignored", "refused", "failed"],
            ),
            errors: registry.create(
                "kas_agent_configuration_errors",
                "Agents with tunnels to this replica whose newest configuration cannot be used",
            ),
        }
    }

    /// Counts an attempt to read a configuration.
    pub(super) fn count_read(&self, result: &'static str) {
        self.reads.get(result).inc();
    }

    /// Counts an attempt to send a configuration.
    pub(super) fn count_push(&self, result: &'static str) {
        self.pushes.get(result).inc();
    }
}
