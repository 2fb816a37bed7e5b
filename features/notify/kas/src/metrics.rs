//! The metrics of events of projects. Projects and agents are no labels: their number has no limit.

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family},
};
use store::{RecordedEvent, StoreError};
use telemetry::CounterByLabel;

use super::EventOrigin;

/// The values of the label `result` of `kas_project_events_total`.
const EVENT_RESULTS: [&str; 4] = ["new", "known", "unknown-project", "failed"];

telemetry::metrics! {
    /// The metrics. Cheap to clone.
    pub(super) struct NotifyMetrics {
        events: Family<EventLabels, Counter> =
            series("kas_project_events", "Events of projects, by origin and result", EventLabels::all()),
        deliveries: CounterByLabel = counters(
            "kas_project_event_deliveries",
            "Events of projects that were sent to agents, by result",
            "result",
            ["delivered", "failed"],
        ),
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct EventLabels {
    origin: &'static str,
    result: &'static str,
}

impl EventLabels {
    fn all() -> impl Iterator<Item = Self> {
        let origins = EventOrigin::ALL.map(EventOrigin::as_str).into_iter();
        origins.flat_map(|origin| EVENT_RESULTS.map(|result| Self { origin, result }))
    }
}

impl NotifyMetrics {
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
