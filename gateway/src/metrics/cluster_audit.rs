//! Metrics of the audit logs of clusters, with the callers of requests.

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family},
    registry::Registry,
};
use proto::audit::Through;

/// The metrics. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub(crate) struct ClusterAuditMetrics {
    events: Family<ThroughLabel, Counter>,
    /// Events with the id of a request that is another one.
    mismatches: Counter,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ThroughLabel {
    through: &'static str,
}

impl ClusterAuditMetrics {
    /// Registers the metrics.
    pub(super) fn register(&self, registry: &mut Registry) {
        for through in [Through::Kas, Through::Agentk, Through::Direct, Through::Unknown] {
            drop(self.events.get_or_create(&ThroughLabel { through: label(through) }));
        }
        let help = "Events of audit logs of clusters that readers were shown, by the way of the request";
        registry.register("kas_cluster_audit_events", help, self.events.clone());
        let help = "Events with the audit id of a request of kas that was another request";
        registry.register("kas_cluster_audit_mismatches", help, self.mismatches.clone());
    }

    /// Counts an event that a reader was shown.
    pub(crate) fn count(&self, through: Through) {
        self.events.get_or_create(&ThroughLabel { through: label(through) }).inc();
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
