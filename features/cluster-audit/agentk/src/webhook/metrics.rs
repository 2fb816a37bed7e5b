//! The metrics of audit events.

use std::sync::Arc;

use cluster_audit::Ring;
use prometheus_client::{metrics::counter::Counter, registry::Registry};
use telemetry::{CallbackMetric, CounterByLabel};

use crate::health::AuditHealth;

telemetry::metrics! {
    /// The metrics. Cheap to clone.
    pub(super) struct AuditMetrics {
        events: CounterByLabel = counters(
            "agentk_audit_events",
            "Audit events of the API server, by result",
            "result",
            ["kept", "repeated", "unanswered", "malformed", "too-large", "aborted", "queue-full", "write-failed"],
        ),
        requests: CounterByLabel = counters(
            "agentk_audit_requests",
            "Requests of the API server with audit events, by result",
            "result",
            ["ok", "invalid", "timeout", "tls", "limit"],
        ),
        pub(super) overwritten: Counter = create(
            "agentk_audit_overwritten",
            "Audit events that were removed, because newer ones needed their place",
        ),
    }
}

impl AuditMetrics {
    /// Registers the state of the ring.
    pub(super) fn register_state(registry: &mut Registry, ring: &Ring, health: &Arc<AuditHealth>) {
        let (view, help) = (ring.view(), "Size of the kept audit events in bytes");
        registry.register_collector(CallbackMetric::gauge("agentk_audit_bytes", help, move || view.bytes()));
        let help = "Whether the disk is too small for the kept audit events, or cannot be written";
        let health = Arc::clone(health);
        let is_degraded = move || u64::from(health.is_degraded());
        registry.register_collector(CallbackMetric::gauge("agentk_audit_degraded", help, is_degraded));
    }

    /// Counts events, by result.
    pub(super) fn count_events(&self, result: &'static str, events: u64) {
        self.events.get(result).inc_by(events);
    }

    /// Counts a request, by result.
    pub(super) fn count_request(&self, result: &'static str) {
        self.requests(result).inc();
    }

    /// Returns the counter of requests with this result.
    pub(super) fn requests(&self, result: &'static str) -> Counter {
        self.requests.get(result)
    }

    /// Returns the number of events with this result.
    #[cfg(test)]
    pub(super) fn events(&self, result: &'static str) -> u64 {
        self.events.get(result).get()
    }
}
