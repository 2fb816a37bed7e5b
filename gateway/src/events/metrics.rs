//! The metrics of events.

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge},
    registry::Registry,
};
use proto::events::EventKind;

/// The counters of events. Clones share them.
#[derive(Clone, Debug)]
pub(crate) struct EventMetrics {
    events: Family<KindLabel, Counter>,
    /// Events of kas itself that were dropped, because too many wait for Redis.
    pub(super) dropped: Counter,
    /// Events of kas itself that wait for the store.
    pub(super) queued: Gauge,
    /// Readers that follow.
    pub(super) watchers: Gauge,
    agent_events: Family<ResultLabel, Counter>,
}

/// The result for an event that an agent has sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct KindLabel {
    kind: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ResultLabel {
    result: &'static str,
}

impl AgentEventResult {
    const ALL: [Self; 4] = [Self::Accepted, Self::Delayed, Self::Invalid, Self::Missed];

    fn as_str(self) -> &'static str {
        match self {
            Self::Accepted => "accepted",
            Self::Delayed => "delayed",
            Self::Invalid => "invalid",
            Self::Missed => "missed",
        }
    }
}

impl EventMetrics {
    pub(super) fn register(registry: &mut Registry) -> Self {
        let metrics = Self {
            events: Family::default(),
            dropped: Counter::default(),
            queued: Gauge::default(),
            watchers: Gauge::default(),
            agent_events: Family::default(),
        };
        for kind in EventKind::ALL {
            drop(metrics.events.get_or_create(&KindLabel { kind: kind.as_str() }));
        }
        for result in AgentEventResult::ALL {
            drop(metrics.agent_events.get_or_create(&ResultLabel { result: result.as_str() }));
        }
        let help = "Events that this replica has offered to the log, with duplicates and states that have not changed";
        registry.register("kas_events", help, metrics.events.clone());
        let help = "Events of kas that were dropped, because too many wait for Redis";
        registry.register("kas_events_dropped", help, metrics.dropped.clone());
        registry.register("kas_events_queued", "Events of kas that wait for Redis", metrics.queued.clone());
        registry.register("kas_event_watchers", "Readers that follow the events", metrics.watchers.clone());
        let help = "Events that agents have sent, by result";
        registry.register("kas_agent_events", help, metrics.agent_events.clone());
        metrics
    }

    pub(super) fn count(&self, kind: EventKind) {
        self.events.get_or_create(&KindLabel { kind: kind.as_str() }).inc();
    }

    /// Counts events of an agent.
    pub(crate) fn count_of_agent(&self, result: AgentEventResult, by: u64) {
        self.agent_events.get_or_create(&ResultLabel { result: result.as_str() }).inc_by(by);
    }
}
