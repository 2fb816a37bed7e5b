//! Metrics of the audit logs of clusters, with the callers of requests.

use prometheus_client::metrics::counter::Counter;
use proto::audit::Through;
use telemetry::CounterByLabel;

telemetry::metrics! {
    /// The metrics. Cheap to clone.
    pub(crate) struct ClusterAuditMetrics {
        events: CounterByLabel = counters(
            "kas_cluster_audit_events",
            "Events of audit logs of clusters that readers were shown, by the way of the request",
            "through",
            [Through::Kas, Through::Agentk, Through::Direct, Through::Unknown].map(label),
        ),
        mismatches: Counter = create(
            "kas_cluster_audit_mismatches",
            "Events with the audit id of a request of kas that was another request",
        ),
    }
}

impl ClusterAuditMetrics {
    /// Counts an event that a reader was shown.
    pub(crate) fn count(&self, through: Through) {
        self.events.get(label(through)).inc();
    }

    /// Counts an event with the id of a request that is another one.
    pub(crate) fn count_mismatch(&self) {
        self.mismatches.inc();
    }
}

fn label(through: Through) -> &'static str {
    match through {
        Through::Kas => "kas",
        Through::Agentk => "agentk",
        Through::Direct => "direct",
        Through::Unknown => "unknown",
    }
}
