//! The metrics of events of projects. Projects and agents are no labels: their number has no limit.

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family},
    registry::Registry,
};
use router::{RecordedEvent, StoreError};

use super::EventOrigin;

/// The values of the label `result` of `kas_project_events_total`.
const EVENT_RESULTS: [&str; 4] = ["new", "known", "unknown-project", "failed"];
/// The values of the label `result` of `kas_project_event_deliveries_total`.
const DELIVERY_RESULTS: [&str; 2] = ["delivered", "failed"];

/// The metrics. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub(super) struct NotifyMetrics {
    events: Family<EventLabels, Counter>,
    deliveries: Family<ResultLabel, Counter>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct EventLabels {
    origin: &'static str,
    result: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ResultLabel {
    result: &'static str,
}

impl NotifyMetrics {
    /// Returns registered metrics.
    pub(super) fn register(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        // All exist from the start: the rate of a series misses the event with which it begins.
        for origin in EventOrigin::ALL.map(EventOrigin::as_str) {
            for result in EVENT_RESULTS {
                drop(metrics.events.get_or_create(&EventLabels { origin, result }));
            }
        }
        for result in DELIVERY_RESULTS {
            drop(metrics.deliveries.get_or_create(&ResultLabel { result }));
        }
        let help = "Events of projects, by origin and result";
        registry.register("kas_project_events", help, metrics.events.clone());
        let help = "Events of projects that were sent to agents, by result";
        registry.register("kas_project_event_deliveries", help, metrics.deliveries.clone());
        metrics
    }

    /// Counts an event.
    pub(super) fn count_event(&self, origin: EventOrigin, recorded: &Result<RecordedEvent, StoreError>) {
        let result = match recorded {
            Ok(RecordedEvent::New(_)) => "new",
            Ok(RecordedEvent::Known) => "known",
            Ok(RecordedEvent::UnknownProject) => "unknown-project",
            Err(_) => "failed",
        };
        self.events.get_or_create(&EventLabels { origin: origin.as_str(), result }).inc();
    }

    /// Counts an attempt to send an event to an agent.
    pub(super) fn count_delivery(&self, delivered: bool) {
        let result = if delivered { "delivered" } else { "failed" };
        self.deliveries.get_or_create(&ResultLabel { result }).inc();
    }
}
