//! The metrics of events of projects. Projects and agents are no labels: their number has no limit.

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family},
    registry::Registry,
};
use store::{RecordedEvent, StoreError};
use telemetry::{CounterByLabel, RegistryExt as _};

use super::EventOrigin;

/// The values of the label `result` of `kas_project_events_total`.
const EVENT_RESULTS: [&str; 4] = ["new", "known", "unknown-project", "failed"];

/// The metrics. Cheap to clone.
#[derive(Clone, Debug)]
pub(super) struct NotifyMetrics {
    events: Family<EventLabels, Counter>,
    deliveries: CounterByLabel,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct EventLabels {
    origin: &'static str,
    result: &'static str,
}

impl NotifyMetrics {
    /// Returns registered metrics.
    pub(super) fn register(registry: &mut Registry) -> Self {
        let metrics = Self {
            events: registry.create("kas_project_events", "Events of projects, by origin and result"),
            deliveries: registry.counters(
                "kas_project_event_deliveries",
                "Events of projects that were sent to agents, by result",
                "result",
                ["delivered", "failed"],
            ),
        };
        // All exist from the start: the rate of a series misses the event with which it begins.
        for origin in EventOrigin::ALL.map(EventOrigin::as_str) {
            for result in EVENT_RESULTS {
                drop(metrics.events.get_or_create(&EventLabels { origin, result }));
            }
        }
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
        self.deliveries.get(result).inc();
    }
}
