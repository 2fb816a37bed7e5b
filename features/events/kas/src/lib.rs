//! Events: what has happened to agents and in their clusters, for people and programs.
//!
//! ```text
//!   `sources`: agents come and go, kill switch ─┐                                  ┌─► GET /api/v1/events (`api`)
//!   `agents`: agentk, configurations ───────────┴─► Events ─► log of the store ─┬──┼─► /agents/<agent>/events/… (`requests`)
//!                                 other replicas, the same order ───────────────┘  └─► `webhooks`
//! ```
//!
//! A reader is a position in the log. It holds no events, so that one that is slow costs nothing.
#![warn(missing_docs)]

mod admin;
mod agents;
mod answer;
mod api;
mod config;
mod digest;
mod feature;
mod filter;
mod list;
mod metrics;
mod query;
mod requests;
mod sources;
mod stream;
mod watchers;
pub mod webhooks;

use std::{collections::VecDeque, sync::Arc, time::Duration};

use access::Identities;
use parking_lot::Mutex;
use prometheus_client::registry::Registry;
use proto::events::Event;
use store::{EventPage, EventPosition, NewEvent, Store, StoreError, StoreHealth};
use tokio::{
    sync::{Notify, watch},
    time::sleep,
};

use self::watchers::Watchers;
pub(crate) use self::{
    answer::{EventAnswer, EventRequest, EventRequestError},
    filter::EventFilter,
    list::{EventList, ListedEvent},
    metrics::{AgentEventResult, EventMetrics},
    stream::{EVENT_STREAM, EventStream, stream_response},
    watchers::TooManyWatchers,
};
pub use self::{
    config::{EventsConfig, WebhookConfig, WebhookFormat, WebhookSeverity},
    feature::EventsFeature,
    query::{EventQuery, EventQueryError},
};

/// The most events of kas itself that wait for the store.
const MAX_QUEUED: usize = 10_000;
/// The most events that are appended at once.
const BATCH: usize = 50;
/// The first and the longest wait after a failure of the store.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(10));

/// The events of all replicas. Clones are cheap, and share their state.
#[derive(Clone, Debug)]
pub struct Events(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    store: Arc<dyn Store>,
    /// The agents that filters name.
    identities: Identities,
    queue: Mutex<VecDeque<NewEvent>>,
    queued: Notify,
    watchers: Watchers,
    metrics: EventMetrics,
}

impl Events {
    /// Returns the events in this store. Filters name agents of `identities`.
    pub fn new(store: Arc<dyn Store>, identities: Identities, registry: &mut Registry) -> Self {
        Self(Arc::new(Shared {
            store,
            identities,
            queue: Mutex::default(),
            queued: Notify::new(),
            watchers: Watchers::default(),
            metrics: EventMetrics::register(registry),
        }))
    }

    /// Reports an event of kas itself. It waits in memory while Redis is down; if too many wait, it is dropped.
    pub fn emit(&self, event: NewEvent) {
        let Shared { queue, queued, metrics, .. } = &*self.0;
        let mut queue = queue.lock();
        if queue.len() >= MAX_QUEUED {
            metrics.dropped.inc();
            return;
        }
        queue.push_back(bounded(event));
        metrics.queued.set(i64::try_from(queue.len()).unwrap_or(i64::MAX));
        queued.notify_one();
    }

    /// Appends the events that wait. The future never completes.
    pub(crate) async fn run(&self) {
        let Shared { queue, queued, metrics, .. } = &*self.0;
        let mut backoff = BACKOFF.0;
        loop {
            let batch: Vec<NewEvent> = queue.lock().iter().take(BATCH).cloned().collect();
            if batch.is_empty() {
                queued.notified().await;
                continue;
            }
            let count = batch.len();
            // An event that was appended although the store has reported an error is not appended again: its key is known.
            match self.append(batch).await {
                Ok(()) => {
                    backoff = BACKOFF.0;
                    let mut queue = queue.lock();
                    queue.drain(..count);
                    metrics.queued.set(i64::try_from(queue.len()).unwrap_or(i64::MAX));
                }
                Err(error) => {
                    tracing::debug!(%error, "events wait until the store responds");
                    sleep(backoff).await;
                    backoff = (backoff * 2).min(BACKOFF.1);
                }
            }
        }
    }

    /// Appends events now.
    ///
    /// # Errors
    ///
    /// The store does not respond.
    pub async fn append(&self, events: Vec<NewEvent>) -> Result<(), StoreError> {
        let events: Vec<NewEvent> = events.into_iter().map(bounded).collect();
        let kinds: Vec<_> = events.iter().map(|new| new.event.content.kind).collect();
        self.0.store.append_events(events).await?;
        kinds.into_iter().for_each(|kind| self.0.metrics.count(kind));
        Ok(())
    }

    /// Returns at most `limit` events after a position.
    pub(crate) fn read(&self, after: EventPosition, limit: usize) -> EventPage {
        self.0.store.events(after, limit)
    }

    /// Returns whether a filter selects an event, with the identity file as it is now.
    pub(crate) fn selects(&self, filter: &EventFilter, event: &Event) -> bool {
        filter.matches(event, &self.0.identities.load())
    }

    /// Returns a receiver of the position of the newest event.
    pub(crate) fn changes(&self) -> watch::Receiver<EventPosition> {
        self.0.store.event_changes()
    }

    /// Returns the position of the newest event.
    pub(crate) fn newest(&self) -> EventPosition {
        *self.changes().borrow()
    }

    /// Returns the reason why newer events may be missing, or `None` if there is none.
    pub(crate) fn missing(&self) -> Option<String> {
        match self.0.store.health() {
            StoreHealth::Healthy => None,
            StoreHealth::Degraded { reason, .. } => Some(format!("newer events may be missing: {reason}")),
        }
    }

    /// Returns the store.
    pub(crate) fn store(&self) -> &Arc<dyn Store> {
        &self.0.store
    }

    pub(crate) fn metrics(&self) -> &EventMetrics {
        &self.0.metrics
    }
}

/// Returns a key that no other event has.
pub(crate) fn unique_key(prefix: &str) -> String {
    format!("{prefix}:{:032x}", rand::random::<u128>())
}

fn bounded(mut new: NewEvent) -> NewEvent {
    new.event.content = new.event.content.bounded();
    new
}

#[cfg(test)]
mod tests {
    use access::Identity;
    use std::time::SystemTime;

    use futures_util::FutureExt as _;
    use proto::events::{Event, EventContent, EventKind, Severity};
    use store::MemoryStore;

    use super::*;

    fn event(message: &str) -> NewEvent {
        let content = EventContent::new(EventKind::KillSwitch, Severity::Info, message);
        NewEvent::new(unique_key("test"), Event { time: SystemTime::now(), agent: None, content })
    }

    #[tokio::test]
    async fn events_are_appended_in_order() {
        let events = Events::new(
            Arc::new(MemoryStore::default()),
            Identities::new(Identity::default()),
            &mut Registry::default(),
        );
        (0..120).for_each(|number| events.emit(event(&number.to_string())));
        assert!(events.run().now_or_never().is_none());
        let page = events.read(EventPosition::START, 500);
        let messages: Vec<&str> = page.events.iter().map(|event| &*event.event.content.message).collect();
        assert_eq!(messages, (0..120).map(|number| number.to_string()).collect::<Vec<_>>());
        assert_eq!((events.0.metrics.queued.get(), events.0.metrics.dropped.get()), (0, 0));
    }

    #[test]
    fn queue_is_bounded_and_drops_are_counted() {
        let events = Events::new(
            Arc::new(MemoryStore::default()),
            Identities::new(Identity::default()),
            &mut Registry::default(),
        );
        (0..MAX_QUEUED + 3).for_each(|_| events.emit(event("x")));
        assert_eq!(events.0.metrics.dropped.get(), 3);
        assert_eq!(events.0.queue.lock().len(), MAX_QUEUED);
    }
}
