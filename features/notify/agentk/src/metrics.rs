//! The metrics of events. Projects and URLs are no labels: their number is that of the configuration.

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge},
};
use telemetry::DurationHistogram;

/// The upper bounds of the buckets of the time from the arrival of an event to its effect, in seconds.
const BOUNDS: &[f64] = &[0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 15.0, 60.0, 600.0];
const TARGETS: [&str; 4] = ["webhook", "repository", "argocd", "flux"];
const RESULTS: [&str; 5] = ["done", "known", "failed", "refused", "abandoned"];

telemetry::metrics! {
    /// The metrics. Cheap to clone.
    pub(crate) struct NotifyMetrics {
        events: Family<EventLabels, Counter> = series(
            "agentk_project_events",
            "Attempts at effects of events in the cluster, by target and result",
            TARGETS.into_iter().flat_map(|target| RESULTS.map(|result| EventLabels { target, result })),
        ),
        pub(super) times: DurationHistogram = histogram(
            "agentk_project_event_effect",
            "Time from the arrival of an event to its effect in the cluster",
            BOUNDS,
        ),
        pub(super) pending: Gauge =
            create("agentk_project_events_pending", "Effects of events that are not done yet"),
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct EventLabels {
    target: &'static str,
    result: &'static str,
}

impl NotifyMetrics {
    /// Counts an attempt.
    pub(super) fn count(&self, target: &'static str, result: &'static str) {
        debug_assert!(RESULTS.contains(&result), "{result} has no series from the start");
        self.events.get_or_create(&EventLabels { target, result }).inc();
    }

    /// Returns the number of attempts with a result.
    #[cfg(test)]
    pub(super) fn attempts(&self, target: &'static str, result: &'static str) -> u64 {
        self.events.get_or_create(&EventLabels { target, result }).get()
    }
}
