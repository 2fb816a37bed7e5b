//! The metrics of configurations. Labels have few values: agents are not among them.

use prometheus_client::metrics::gauge::Gauge;
use telemetry::CounterByLabel;

telemetry::metrics! {
    /// The metrics. Cheap to clone.
    pub(crate) struct ConfigurationMetrics {
        reads: CounterByLabel = counters(
            "kas_agent_configuration_reads",
            "Attempts to read the configuration of an agent, by result",
            "result",
            ["ok", "unchanged", "none", "invalid", "refused", "unavailable"],
        ),
        pushes: CounterByLabel = counters(
            "kas_agent_configuration_pushes",
            "Configurations sent to agents, by result",
            "result",
            ["ok", "ignored", "refused", "failed"],
        ),
        pub(super) errors: Gauge = create(
            "kas_agent_configuration_errors",
            "Agents with tunnels to this replica whose newest configuration cannot be used",
        ),
    }
}

impl ConfigurationMetrics {
    /// Counts an attempt to read a configuration.
    pub(super) fn count_read(&self, result: &'static str) {
        self.reads.get(result).inc();
    }

    /// Counts an attempt to send a configuration.
    pub(super) fn count_push(&self, result: &'static str) {
        self.pushes.get(result).inc();
    }
}
