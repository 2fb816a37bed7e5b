//! The events of this agentk: what its parts notice in the cluster, until kas has read it.
//!
//! ```text
//!   GitOps, health of environments, alerts ──► EventLog::emit ──► ring ──► service `agent-events` ──► each kas with a tunnel
//! ```

use std::{collections::VecDeque, sync::Arc, time::SystemTime};

use parking_lot::Mutex;
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family},
    registry::Registry,
};
use proto::{
    InstanceId,
    events::{AgentEvent, AgentEventId, EventKind, NewAgentEvent, OpenAlerts},
};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// The most events that are kept. An event has at most some 3 KiB.
const CAPACITY: usize = 1000;

/// Keeps the newest events of this process. Clones share them.
#[derive(Clone, Debug)]
pub struct EventLog(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    instance: InstanceId,
    ring: Mutex<Ring>,
    /// The number of the newest event.
    newest: watch::Sender<u64>,
    emitted: Family<KindLabel, Counter>,
    missed: Counter,
    closed: CancellationToken,
}

#[derive(Debug, Default)]
struct Ring {
    events: VecDeque<Arc<AgentEvent>>,
    /// The number of events so far.
    count: u64,
    /// The last list of the open alerts.
    open_alerts: Option<Arc<OpenAlerts>>,
}

/// Events that follow a position.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventBatch {
    /// The events that were forgotten in between.
    pub missed: u64,
    /// The events, the oldest one first.
    pub events: Vec<Arc<AgentEvent>>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct KindLabel {
    kind: &'static str,
}

impl EventLog {
    /// Returns an empty log of this process.
    pub fn new(instance: InstanceId) -> Self {
        let emitted = Family::default();
        for kind in EventKind::ALL.map(EventKind::of_agent) {
            drop(emitted.get_or_create(&KindLabel { kind: kind.as_str() }));
        }
        Self(Arc::new(Shared {
            instance,
            ring: Mutex::default(),
            newest: watch::Sender::default(),
            emitted,
            missed: Counter::default(),
            closed: CancellationToken::new(),
        }))
    }

    /// Returns the id of this process, which its hello has, too.
    pub fn instance(&self) -> InstanceId {
        self.0.instance
    }

    /// Registers the metrics of the log.
    pub fn register(&self, registry: &mut Registry) {
        let help = "Events that agentk has noticed, by kind";
        registry.register("agentk_events", help, self.0.emitted.clone());
        let help = "Events that were forgotten before a replica of kas has read them";
        registry.register("agentk_events_missed", help, self.0.missed.clone());
    }

    /// Adds an event, which happens now. It is cut to the limits of events, and replaces the oldest one if there are too many. It never
    /// waits.
    pub fn emit(&self, event: impl Into<NewAgentEvent>) {
        let event = event.into().bounded();
        self.0.emitted.get_or_create(&KindLabel { kind: event.content.kind.as_str() }).inc();
        let mut ring = self.0.ring.lock();
        ring.count += 1;
        let id = AgentEventId { instance: self.0.instance, sequence: ring.count };
        ring.events.push_back(Arc::new(AgentEvent { id, time: SystemTime::now(), event }));
        if ring.events.len() > CAPACITY {
            ring.events.pop_front();
        }
        self.0.newest.send_replace(ring.count);
    }

    /// Sets the list of the open alerts, which replaces the one before.
    pub fn set_open_alerts(&self, alerts: OpenAlerts) {
        let mut ring = self.0.ring.lock();
        ring.open_alerts = Some(Arc::new(alerts));
        self.0.newest.send_replace(ring.count);
    }

    /// Returns the last list of the open alerts.
    pub fn open_alerts(&self) -> Option<Arc<OpenAlerts>> {
        self.0.ring.lock().open_alerts.clone()
    }

    /// Returns at most `limit` events after the one with this id. Without an id, and after an id of another process, that are the oldest
    /// ones.
    pub fn read(&self, after: Option<AgentEventId>, limit: usize) -> EventBatch {
        let own = after.filter(|after| after.instance == self.0.instance);
        let after = own.map_or(0, |after| after.sequence);
        let ring = self.0.ring.lock();
        let forgotten = ring.count - ring.events.len() as u64;
        let missed = if own.is_some() { forgotten.saturating_sub(after) } else { 0 };
        self.0.missed.inc_by(missed);
        let skipped = usize::try_from(after.saturating_sub(forgotten)).unwrap_or(usize::MAX);
        EventBatch { missed, events: ring.events.iter().skip(skipped).take(limit).cloned().collect() }
    }

    /// Ends the streams of kas once they have all events: a stream that goes on would be a request in flight, for which agentk waits when
    /// it stops.
    pub fn close(&self) {
        self.0.closed.cancel();
    }

    /// Waits until the log is closed.
    pub(crate) async fn closed(&self) {
        self.0.closed.cancelled().await;
    }

    /// Returns a receiver that notices each new event and each list of open alerts.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.0.newest.subscribe()
    }
}

#[cfg(test)]
mod tests {
    use proto::events::{EventContent, Severity};

    use super::*;

    fn log(events: usize) -> EventLog {
        let log = EventLog::new(InstanceId::random());
        for number in 1..=events {
            log.emit(EventContent::new(EventKind::Alert, Severity::Info, number.to_string()));
        }
        log
    }

    fn after(log: &EventLog, sequence: u64) -> Option<AgentEventId> {
        Some(AgentEventId { instance: log.0.instance, sequence })
    }

    fn read(log: &EventLog, after: Option<AgentEventId>, limit: usize) -> (u64, Vec<u64>) {
        let EventBatch { missed, events } = log.read(after, limit);
        for event in &events {
            assert_eq!(event.event.content.message, event.id.sequence.to_string());
        }
        (missed, events.iter().map(|event| event.id.sequence).collect())
    }

    #[test]
    fn events_are_read_in_order_after_a_position() {
        let log = log(5);
        assert_eq!(read(&log, None, 10), (0, vec![1, 2, 3, 4, 5]));
        assert_eq!(read(&log, after(&log, 2), 2), (0, vec![3, 4]));
        assert_eq!(read(&log, after(&log, 5), 2), (0, vec![]));
        assert_eq!(read(&log, after(&log, u64::MAX), 2), (0, vec![]));
        let other = Some(AgentEventId { instance: InstanceId::random(), sequence: 4 });
        assert_eq!(read(&log, other, 1), (0, vec![1]), "an agentk that was restarted has none of these");
    }

    #[test]
    fn oldest_events_are_forgotten_and_counted() {
        let log = log(CAPACITY + 30);
        assert_eq!(read(&log, after(&log, 10), 1), (20, vec![31]));
        assert_eq!(read(&log, None, 1), (0, vec![31]), "whoever begins now has missed nothing");
        assert_eq!(log.0.missed.get(), 20);
        assert_eq!(log.0.emitted.get_or_create(&KindLabel { kind: "alert" }).get(), CAPACITY as u64 + 30);
    }

    #[tokio::test]
    async fn reader_is_woken_by_an_event() {
        let log = log(0);
        let mut changes = log.changes();
        assert!(!changes.has_changed().unwrap());
        log.emit(EventContent::new(EventKind::Sync, Severity::Info, "1"));
        changes.changed().await.unwrap();
        assert_eq!(read(&log, None, 10), (0, vec![1]));
    }
}
