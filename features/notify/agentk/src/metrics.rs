//! The metrics of events. Projects and URLs are no labels: their number is that of the configuration.

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge},
    registry::Registry,
};
use telemetry::{DurationHistogram, RegistryExt as _};

/// The upper bounds of the buckets of the time from the arrival of an event to its effect, in seconds.
const BOUNDS: &[f64] = &[0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 15.0, 60.0, 600.0];
const TARGETS: [&str; 4] = ["webhook", "repository", "argocd", "flux"];
const RESULTS: [&str; 5] = ["done", "known", "failed", "refused", "abandoned"];

/// The metrics. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct NotifyMetrics {
    events: Family<EventLabels, Counter>,
    pub(super) times: DurationHistogram,
    pub(super) pending: Gauge,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct EventLabels {
    target: &'static str,
    result: &'static str,
}

impl NotifyMetrics {
    /// Returns registered metrics.
    pub(crate) fn register(registry: &mut Registry) -> Self {
        let metrics = Self {
            events: registry.create(
                "agentk_project_events",
                "Attempts at effects of events in the cluster, by target and result",
            ),
            times: registry.histogram(
                "agentk_project_event_effect",
                "Time from the arrival of an event to its effect in the cluster",
                BOUNDS,
            ),
            pending: registry
                .create("agentk_project_events_pending", "Effects of events that are not done yet"),
        };
        // All exist from the start: the rate of a series misses the event with which it begins.
        for target in TARGETS {
            for result in RESULTS {
                drop(metrics.events.get_or_create(&EventLabels { target, result }));
            }
        }
        metrics
    }

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
