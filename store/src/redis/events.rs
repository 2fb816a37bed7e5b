//! The log of events, a stream. This replica has a copy of it in memory, which serves readers also while Redis is down.

use std::sync::Arc;

use futures_util::future::BoxFuture;
use proto::{AgentId, InstanceId, ReplicaId, events::Event};
use tokio::sync::watch;

use super::{
    RecordPlace, RedisState, RedisStore, RedisStoreError,
    client::RedisConnection,
    keys::STATES_TTL,
    record_mac,
    sync::millis,
    wire::{self, MAX_LOGGED_EVENT, RedisEventKind, decode_logged_event, encode_logged_event},
};
use crate::{
    events::{
        EVENTS_PERIOD, EVICTED_STATES, EventPage, EventPosition, EventStore, LoggedEvent, MAX_EVENTS,
        MAX_EVENTS_PER_AGENT, MAX_STATES, NewEvent, StateScope, SubjectState,
    },
    routes::StoreError,
};

/// The most events in one script call.
const PAGE: usize = 100;

/// Returns the place of an event in the log.
fn place(key: &str) -> RecordPlace<'_> {
    RecordPlace { kind: "event", key }
}

/// Returns the word of a scope in the script.
fn word(scope: StateScope) -> &'static str {
    match scope {
        StateScope::Fleet => "fleet",
        StateScope::Agent => "agent",
        StateScope::Reported => "reported",
    }
}

impl EventStore for RedisStore {
    fn append_events(&self, events: Vec<NewEvent>) -> BoxFuture<'_, Result<(), StoreError>> {
        Box::pin(async move {
            let (shared, keys) = (&self.0, &self.0.keys);
            // No replica has this id: the event is none of a sequence.
            let (replica, kind) = (ReplicaId::random(), RedisEventKind::Logged);
            let announcement = wire::RedisEvent { replica, generation: 0, sequence: 0, kind }.encode();
            for page in events.chunks(PAGE) {
                let mut script = shared.scripts.append_events.key(keys.event_log());
                script.key(keys.event_keys()).key(keys.removed_event());
                script.arg(MAX_EVENTS).arg(MAX_EVENTS_PER_AGENT).arg(millis(EVENTS_PERIOD));
                script.arg(MAX_STATES).arg(EVICTED_STATES).arg(millis(STATES_TTL));
                script.arg(keys.event_sources()).arg(keys.event_states()).arg(keys.reported_states());
                script.arg(keys.event_origins()).arg(keys.events()).arg(&announcement);
                for new in page.iter().filter(|new| new.fits()) {
                    let NewEvent { key, origin, state, event } = new;
                    let source =
                        event.agent.as_ref().map_or_else(|| "kas".to_owned(), |agent| agent.id.to_string());
                    script.arg(key).arg(source);
                    match origin {
                        Some(origin) => script.arg(origin.instance.to_string()).arg(origin.sequence),
                        None => script.arg("").arg(0),
                    };
                    match state {
                        Some(SubjectState { scope, subject, state, quiet }) => {
                            script.arg(subject).arg(state).arg(u8::from(*quiet)).arg(word(*scope))
                        }
                        None => script.arg("").arg("").arg(0).arg(""),
                    };
                    script.arg(encode_logged_event(event, |text| shared.seal(place(key), text)));
                }
                let _: u64 = shared.query(&script).await?;
            }
            Ok(())
        })
    }

    fn last_event_of(&self, agent: AgentId, instance: InstanceId) -> BoxFuture<'_, Result<u64, StoreError>> {
        Box::pin(async move {
            let shared = &self.0;
            let processes = format!("{}{agent}", shared.keys.event_origins());
            let mut script = shared.scripts.last_event.key(processes);
            script.arg(instance.to_string());
            let last: String = shared.query(&script).await?;
            Ok(last.parse().unwrap_or_default())
        })
    }

    fn events(&self, after: EventPosition, limit: usize) -> EventPage {
        self.0.logged.lock().read(after, limit)
    }

    fn event_changes(&self) -> watch::Receiver<EventPosition> {
        self.0.logged.lock().changes()
    }
}

impl RedisState {
    /// Reads the events that this replica does not have yet.
    pub(super) async fn read_events(&self, connection: &RedisConnection) -> Result<(), RedisStoreError> {
        let mut after = self.logged.lock().newest();
        loop {
            let mut script = self.scripts.read_events.key(self.keys.event_log());
            script.key(self.keys.removed_event());
            script.arg(after.to_string()).arg(PAGE).arg(MAX_LOGGED_EVENT);
            let found: Vec<Vec<u8>> = connection.run(&script, &self.metrics).await?;
            let [removed, newest, events @ ..] = &*found else {
                return Err(RedisStoreError::EmptyEvents);
            };
            let removed = self.decode_position(removed).unwrap_or_default();
            let is_new_log = self.decode_position(newest).is_some_and(|newest| newest < after);
            let (events, _) = events.as_chunks::<3>();
            let last = events.last().and_then(|[position, ..]| self.decode_position(position));
            let decoded: Vec<LoggedEvent> =
                events.iter().filter_map(|event| self.decode_event(event)).collect();
            {
                let mut logged = self.logged.lock();
                if is_new_log {
                    logged.clear();
                }
                logged.note_removed(removed);
                decoded.into_iter().for_each(|event| logged.insert(event));
            }
            after = match (is_new_log, last) {
                (true, _) => EventPosition::START,
                // Events that cannot be used are skipped, too.
                (false, Some(last)) if events.len() == PAGE && last > after => last,
                (false, _) => return Ok(()),
            };
        }
    }

    fn decode_position(&self, text: &[u8]) -> Option<EventPosition> {
        if text.is_empty() {
            return None;
        }
        let position = str::from_utf8(text).ok().and_then(|text| text.parse().ok());
        if position.is_none() {
            self.reject("position", &"it is no position of an event");
        }
        position
    }

    fn decode_event(&self, [position, key, event]: &[Vec<u8>; 3]) -> Option<LoggedEvent> {
        let position = self.decode_position(position)?;
        let key: Arc<str> =
            str::from_utf8(key).ok().filter(|key| (1..=NewEvent::MAX_TEXT).contains(&key.len()))?.into();
        let event = decode_logged_event(event, |sealed| {
            record_mac::open(self.settings.records.as_ref(), place(&key), sealed)
        });
        let event: Event = event.inspect_err(|error| self.reject("logged event", error)).ok()?;
        Some(LoggedEvent { position, key, event })
    }
}
