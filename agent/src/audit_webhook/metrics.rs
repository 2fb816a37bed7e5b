//! The metrics of audit events.

use std::sync::Arc;

use cluster_audit::Ring;
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family},
    registry::Registry,
};
use telemetry::CallbackMetric;

use crate::audit_health::AuditHealth;

/// The values of the label `result` of `agentk_audit_events_total`.
const EVENTS: [&str; 8] =
    ["kept", "repeated", "unanswered", "malformed", "too-large", "aborted", "queue-full", "write-failed"];
/// The values of the label `result` of `agentk_audit_requests_total`.
const REQUESTS: [&str; 5] = ["ok", "invalid", "timeout", "tls", "limit"];

/// The metrics. Cheap to clone; those of `default` are not registered.
#[derive(Clone, Debug, Default)]
pub(super) struct AuditMetrics {
    events: Family<ResultLabel, Counter>,
    requests: Family<ResultLabel, Counter>,
    /// Events that left the ring for newer ones.
    pub(super) overwritten: Counter,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ResultLabel {
    result: &'static str,
}

impl AuditMetrics {
    /// Returns registered metrics.
    pub(super) fn register(registry: &mut Registry, ring: &Ring, health: &Arc<AuditHealth>) -> Self {
        let metrics = Self::default();
        // All exist from the start: the rate of a series misses the event with which it begins.
        for result in EVENTS {
            drop(metrics.events.get_or_create(&ResultLabel { result }));
        }
        for result in REQUESTS {
            drop(metrics.requests.get_or_create(&ResultLabel { result }));
        }
        registry.register(
            "agentk_audit_events",
            "Audit events of the API server, by result",
            metrics.events.clone(),
        );
        let help = "Requests of the API server with audit events, by result";
        registry.register("agentk_audit_requests", help, metrics.requests.clone());
        let help = "Audit events that were removed, because newer ones needed their place";
        registry.register("agentk_audit_overwritten", help, metrics.overwritten.clone());
        let (view, help) = (ring.view(), "Size of the kept audit events in bytes");
        registry.register_collector(CallbackMetric::gauge("agentk_audit_bytes", help, move || view.bytes()));
        let help = "Whether the disk is too small for the kept audit events, or cannot be written";
        let health = Arc::clone(health);
        let is_degraded = move || u64::from(health.is_degraded());
        registry.register_collector(CallbackMetric::gauge("agentk_audit_degraded", help, is_degraded));
        metrics
    }

    /// Counts events, by result.
    pub(super) fn count_events(&self, result: &'static str, events: u64) {
        debug_assert!(EVENTS.contains(&result), "{result} has no series from the start");
        self.events.get_or_create(&ResultLabel { result }).inc_by(events);
    }

    /// Counts a request, by result.
    pub(super) fn count_request(&self, result: &'static str) {
        self.requests(result).inc();
    }

    /// Returns the counter of requests with this result.
    pub(super) fn requests(&self, result: &'static str) -> Counter {
        debug_assert!(REQUESTS.contains(&result), "{result} has no series from the start");
        self.requests.get_or_create_owned(&ResultLabel { result })
    }

    /// Returns the number of events with this result.
    #[cfg(test)]
    pub(super) fn events(&self, result: &'static str) -> u64 {
        self.events.get_or_create(&ResultLabel { result }).get()
    }
}
