//! The metrics of events.

use prometheus_client::metrics::{counter::Counter, gauge::Gauge};
use proto::events::EventKind;
use strum::{IntoStaticStr, VariantNames};
use telemetry::CounterByLabel;

telemetry::metrics! {
    /// The counters of events. Clones share them.
    pub(crate) struct EventMetrics {
        events: CounterByLabel = counters(
            "kas_events",
            "Events that this replica has offered to the log, with duplicates and states that have not changed",
            "kind",
            EventKind::ALL.map(EventKind::as_str),
        ),
        pub(super) dropped: Counter =
            create("kas_events_dropped", "Events of kas that were dropped, because too many wait for Redis"),
        pub(super) queued: Gauge = create("kas_events_queued", "Events of kas that wait for Redis"),
        pub(super) watchers: Gauge = create("kas_event_watchers", "Readers that follow the events"),
        agent_events: CounterByLabel = counters(
            "kas_agent_events",
            "Events that agents have sent, by result",
            "result",
            AgentEventResult::VARIANTS.iter().copied(),
        ),
    }
}

/// The result for an event that an agent has sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, IntoStaticStr, VariantNames)]
#[strum(serialize_all = "kebab-case")]
pub(crate) enum AgentEventResult {
    /// It was passed on to the log.
    Accepted,
    /// It waited, because the agent sends too many.
    Delayed,
    /// It was refused: its id is not one of the agent's process, or it is out of order.
    Invalid,
    /// agentk has forgotten it before kas has read it.
    Missed,
}

impl EventMetrics {
    pub(super) fn count(&self, kind: EventKind) {
        self.events.get(kind.as_str()).inc();
    }

    /// Counts events of an agent.
    pub(crate) fn count_of_agent(&self, result: AgentEventResult, by: u64) {
        self.agent_events.get(result.into()).inc_by(by);
    }
}
