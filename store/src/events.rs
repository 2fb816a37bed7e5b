//! The log of events that all replicas share: its rule, and its table in memory.
//!
//! Every replica has the same events in the same order. A reader continues after a position, and learns if events were removed that it
//! has not read. The log is bounded: it has a number of events, an agent has a share of them, and none is older than a week.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    fmt,
    hash::Hash,
    str::FromStr,
    sync::Arc,
    time::{Duration, SystemTime},
};

use futures_util::future::BoxFuture;
use proto::{
    AgentId, InstanceId,
    events::{AgentEventId, Event},
};
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use crate::routes::StoreError;

/// The most events of the log.
pub const MAX_EVENTS: usize = 10_000;
/// The most events of one agent. Its oldest ones give way, so that an agent does not push out those of others.
pub const MAX_EVENTS_PER_AGENT: usize = 1000;
/// The time for which events are kept.
pub const EVENTS_PERIOD: Duration = Duration::from_secs(7 * 86_400);
/// The most states that one agent has reported, and the most of its processes.
pub(crate) const MAX_STATES: usize = 1000;
/// The states, or processes, that are forgotten when there are more. All of them at once would repeat the events of each subject.
pub(crate) const EVICTED_STATES: usize = 100;

/// The position of an event, as a text `<milliseconds since 1970>-<number>`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct EventPosition {
    /// The time at which the event was appended.
    pub millis: u64,
    /// The number of the event among those of this time.
    pub sequence: u64,
}

/// A text that is no [`EventPosition`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a position: it is two numbers with '-' between them, as in the id of an event")]
pub struct InvalidEventPosition;

/// An event that is appended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewEvent {
    /// An event with a key that the log has is not appended again.
    pub key: String,
    /// The position of the event in its process. An event is not appended after a later one of the same process.
    pub origin: Option<AgentEventId>,
    /// The state of a subject. If it is the same as before, the event is not appended.
    pub state: Option<SubjectState>,
    /// The event.
    pub event: Event,
}

/// The state of the subject of an event. The store remembers the last one of each subject of each scope.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SubjectState {
    /// Where the subject is one.
    pub scope: StateScope,
    /// The subject, as a short text.
    pub subject: String,
    /// Its state.
    pub state: String,
    /// The first state of a subject is no event.
    pub quiet: bool,
}

/// The scope of a subject. An agent that reports any number of states changes none of the other scopes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StateScope {
    /// All of kas, also if the event names an agent.
    Fleet,
    /// The agent of the event, whose state kas itself has noticed.
    Agent,
    /// The agent of the event, which has reported the state.
    Reported,
}

/// An event of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoggedEvent {
    /// Its position.
    pub position: EventPosition,
    /// Its key.
    pub key: Arc<str>,
    /// The event.
    pub event: Event,
}

/// Events that follow a position.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EventPage {
    /// The events, the oldest one first.
    pub events: Vec<Arc<LoggedEvent>>,
    /// Events after the position were removed before they were read here.
    pub gap: bool,
    /// The position of the newest event that was removed.
    pub removed: EventPosition,
}

/// The log of events that replicas share.
///
/// **It has one order.** Each event is in it once, and a reader with a position learns if it has missed some.
pub trait EventStore: fmt::Debug + Send + Sync + 'static {
    /// Appends events to the log, except those whose keys it has, whose subjects have the same states, or that are not newer than one of
    /// the same process. All replicas see them in the same order.
    fn append_events(&self, events: Vec<NewEvent>) -> BoxFuture<'_, Result<(), StoreError>>;

    /// Returns the number of the last event of an agentk process that was appended or left out, or 0.
    fn last_event_of(&self, agent: AgentId, instance: InstanceId) -> BoxFuture<'_, Result<u64, StoreError>>;

    /// Returns at most `limit` events after a position. They are read from memory, also while the store is degraded.
    fn events(&self, after: EventPosition, limit: usize) -> EventPage;

    /// Returns a receiver of the position of the newest event in memory.
    fn event_changes(&self) -> watch::Receiver<EventPosition>;
}

/// The events in memory. The script `append_events.lua` has the same rule.
#[derive(Debug)]
pub(crate) struct EventTable {
    events: VecDeque<Arc<LoggedEvent>>,
    keys: HashSet<Arc<str>>,
    /// The number of events of each agent, and of kas itself.
    counts: HashMap<Option<AgentId>, usize>,
    /// The position of the newest event that was removed.
    removed: EventPosition,
    /// The position of the newest event of a log before this one, which is lost.
    lost: EventPosition,
    newest: watch::Sender<EventPosition>,
}

/// The states of subjects and the numbers of the last events of processes, in memory.
#[derive(Debug, Default)]
pub(crate) struct StateTable(HashMap<Option<AgentId>, States>);

#[derive(Debug, Default)]
struct States {
    /// The states that kas has noticed.
    noticed: HashMap<String, String>,
    /// The states that the agent has reported.
    reported: HashMap<String, String>,
    origins: HashMap<InstanceId, u64>,
}

impl EventPosition {
    /// The position before all events.
    pub const START: Self = Self { millis: 0, sequence: 0 };

    /// Returns the position before all events that were appended at a time, or after it.
    pub fn before(time: SystemTime) -> Self {
        match Self::first_at(time).millis.checked_sub(1) {
            Some(millis) => Self { millis, sequence: u64::MAX },
            None => Self::START,
        }
    }

    /// Returns the position of the first event that is appended at a time.
    fn first_at(time: SystemTime) -> Self {
        let millis = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_millis();
        Self { millis: u64::try_from(millis).unwrap_or(u64::MAX), sequence: 0 }
    }
}

impl fmt::Display for EventPosition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.millis, self.sequence)
    }
}

impl FromStr for EventPosition {
    type Err = InvalidEventPosition;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let number = |text: &str| {
            let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
            text.parse().ok().filter(|_| digits).ok_or(InvalidEventPosition)
        };
        let (millis, sequence) = text.split_once('-').ok_or(InvalidEventPosition)?;
        Ok(Self { millis: number(millis)?, sequence: number(sequence)? })
    }
}

impl TryFrom<String> for EventPosition {
    type Error = InvalidEventPosition;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<EventPosition> for String {
    fn from(position: EventPosition) -> Self {
        position.to_string()
    }
}

impl NewEvent {
    /// The longest key, subject and state, in bytes.
    pub const MAX_TEXT: usize = 512;

    /// Returns an event that is appended unless the log has its key.
    pub fn new(key: impl Into<String>, event: Event) -> Self {
        Self { key: key.into(), origin: None, state: None, event }
    }

    /// Returns whether the texts of the event fit into the log.
    pub(crate) fn fits(&self) -> bool {
        let state = self.state.as_ref().map_or(0, |state| state.subject.len().max(state.state.len()));
        self.key.len().max(state) <= Self::MAX_TEXT
    }
}

/// Returns the agent whose share of the log an event takes.
fn source(event: &Event) -> Option<AgentId> {
    event.agent.as_ref().map(|agent| agent.id)
}

impl Default for EventTable {
    fn default() -> Self {
        Self {
            events: VecDeque::new(),
            keys: HashSet::new(),
            counts: HashMap::new(),
            removed: EventPosition::START,
            lost: EventPosition::START,
            newest: watch::Sender::new(EventPosition::START),
        }
    }
}

impl EventTable {
    /// Returns the log of a process that starts at `now`. Positions of an earlier process are before it.
    pub(crate) fn begun_at(now: SystemTime) -> Self {
        Self { removed: EventPosition::before(now), ..Self::default() }
    }

    /// Returns whether the log has an event with this key.
    pub(crate) fn has(&self, key: &str) -> bool {
        self.keys.contains(key)
    }

    /// Returns the position of an event that is appended at `now`.
    pub(crate) fn next_position(&self, now: SystemTime) -> EventPosition {
        // Also if the clock steps back after the start.
        let (newest, next) = (self.newest().max(self.removed), EventPosition::first_at(now));
        if next > newest { next } else { EventPosition { sequence: newest.sequence + 1, ..newest } }
    }

    /// Adds an event, and removes those that are too many or too old. An event that is not newer than all others, or whose key is known,
    /// changes nothing.
    pub(crate) fn insert(&mut self, event: LoggedEvent) {
        let position = event.position;
        if position <= self.newest() || !self.keys.insert(Arc::clone(&event.key)) {
            return;
        }
        let source = source(&event.event);
        self.events.push_back(Arc::new(event));
        let count = self.counts.entry(source).or_default();
        *count += 1;
        if *count > MAX_EVENTS_PER_AGENT
            && let Some(index) = self.events.iter().position(|event| self::source(&event.event) == source)
        {
            self.remove(index);
        }
        let period = u64::try_from(EVENTS_PERIOD.as_millis()).unwrap_or(u64::MAX);
        let oldest = position.millis.saturating_sub(period);
        while self.events.len() > MAX_EVENTS
            || self.events.front().is_some_and(|event| event.position.millis < oldest)
        {
            self.remove(0);
        }
        self.newest.send_replace(position);
    }

    fn remove(&mut self, index: usize) {
        let Some(event) = self.events.remove(index) else { return };
        self.keys.remove(&event.key);
        self.note_removed(event.position);
        let source = source(&event.event);
        if let Some(count) = self.counts.get_mut(&source) {
            *count -= 1;
            if *count == 0 {
                self.counts.remove(&source);
            }
        }
    }

    /// Notes that an event at this position, which this table may not have had, was removed.
    pub(crate) fn note_removed(&mut self, position: EventPosition) {
        self.removed = self.removed.max(position);
    }

    /// Forgets all events, because the log has begun anew.
    pub(crate) fn clear(&mut self) {
        let (lost, newest) = (self.newest().max(self.lost), self.newest.clone());
        newest.send_replace(EventPosition::START);
        *self = Self { lost, newest, ..Self::default() };
    }

    /// Returns at most `limit` events after a position.
    pub(crate) fn read(&self, after: EventPosition, limit: usize) -> EventPage {
        let is_lost = after > self.newest() && after <= self.lost;
        let first = if is_lost { 0 } else { self.events.partition_point(|event| event.position <= after) };
        let events = self.events.iter().skip(first).take(limit).cloned().collect();
        let gap = is_lost || (after != EventPosition::START && after < self.removed);
        let removed = if is_lost { self.removed.max(after) } else { self.removed };
        EventPage { events, gap, removed }
    }

    /// Returns the position of the newest event.
    pub(crate) fn newest(&self) -> EventPosition {
        *self.newest.borrow()
    }

    /// Returns a receiver of the positions of new events.
    pub(crate) fn changes(&self) -> watch::Receiver<EventPosition> {
        self.newest.subscribe()
    }
}

impl StateTable {
    /// Notes the position of an event in its process. Returns false if this or a later event was noted before.
    pub(crate) fn note_origin(&mut self, event: &Event, origin: AgentEventId) -> bool {
        let origins = &mut self.0.entry(source(event)).or_default().origins;
        if !origins.contains_key(&origin.instance) {
            make_room(origins);
        }
        let last = origins.entry(origin.instance).or_default();
        let is_new = origin.sequence > *last;
        *last = origin.sequence.max(*last);
        is_new
    }

    /// Returns the number of the last event of a process that was noted, or 0.
    pub(crate) fn last_origin(&self, agent: AgentId, instance: InstanceId) -> u64 {
        self.0.get(&Some(agent)).and_then(|states| states.origins.get(&instance)).copied().unwrap_or_default()
    }

    /// Notes a state. Returns whether it is an event.
    pub(crate) fn note_state(&mut self, event: &Event, new: &SubjectState) -> bool {
        let source = source(event).filter(|_| new.scope != StateScope::Fleet);
        let States { noticed, reported, .. } = self.0.entry(source).or_default();
        let states = match new.scope {
            StateScope::Fleet | StateScope::Agent => noticed,
            StateScope::Reported => {
                if !reported.contains_key(&new.subject) {
                    make_room(reported);
                }
                reported
            }
        };
        let before = states.insert(new.subject.clone(), new.state.clone());
        before.as_ref() != Some(&new.state) && (before.is_some() || !new.quiet)
    }
}

/// Removes some entries, in no order, if there are too many.
fn make_room<K: Clone + Eq + Hash, V>(entries: &mut HashMap<K, V>) {
    if entries.len() >= MAX_STATES {
        let evicted: Vec<K> = entries.keys().take(EVICTED_STATES).cloned().collect();
        for key in &evicted {
            entries.remove(key);
        }
    }
}

#[cfg(test)]
mod tests {
    use proto::events::{EventAgent, EventContent, EventKind, Severity};

    use super::*;

    fn event(agent: Option<u64>, number: u64) -> LoggedEvent {
        let content = EventContent::new(EventKind::Alert, Severity::Info, number.to_string());
        let agent = agent.map(|id| EventAgent {
            id: AgentId(id),
            name: "a".parse().unwrap(),
            project_id: None,
            project_path: None,
        });
        LoggedEvent {
            position: at(number),
            key: format!("key {number}").into(),
            event: Event { time: SystemTime::UNIX_EPOCH, agent, content },
        }
    }

    fn at(millis: u64) -> EventPosition {
        EventPosition { millis, sequence: 3 }
    }

    fn read(table: &EventTable, after: EventPosition, limit: usize) -> (bool, Vec<u64>) {
        let EventPage { events, gap, .. } = table.read(after, limit);
        (gap, events.iter().map(|event| event.position.millis).collect())
    }

    #[test]
    fn position_has_one_spelling() {
        let position = EventPosition { millis: u64::MAX, sequence: 7 };
        assert_eq!(position.to_string().parse(), Ok(position));
        for bad in ["", "-", "1", "1-", "-1", "+1-1", "1-1-1", "1- 1", "18446744073709551616-0"] {
            assert_eq!(bad.parse::<EventPosition>(), Err(InvalidEventPosition), "{bad}");
        }
    }

    #[test]
    fn position_before_a_time_is_before_all_of_its_events() {
        let at = |millis| SystemTime::UNIX_EPOCH + Duration::from_millis(millis);
        let mut table = EventTable::default();
        let position = table.next_position(at(1000));
        assert_eq!(position, EventPosition { millis: 1000, sequence: 0 });
        table.insert(LoggedEvent { position, ..event(None, 1) });
        assert_eq!(read(&table, EventPosition::before(at(1000)), 9), (false, vec![1000]));
        assert_eq!(read(&table, EventPosition::before(at(1001)), 9), (false, vec![]));
        assert_eq!(EventPosition::before(at(0)), EventPosition::START);
    }

    #[test]
    fn events_are_read_once_and_in_order() {
        let mut table = EventTable::default();
        for number in [1, 2, 3, 2, 4] {
            table.insert(event(None, number));
        }
        assert_eq!(read(&table, EventPosition::START, 10), (false, vec![1, 2, 3, 4]));
        assert_eq!(read(&table, at(2), 1), (false, vec![3]));
        assert_eq!(read(&table, at(9), 1), (false, vec![]));
        table.insert(LoggedEvent { key: "key 3".into(), ..event(None, 7) });
        assert_eq!(table.newest(), at(4), "the key is known");
        assert!(table.has("key 4") && !table.has("key 7"));
    }

    #[test]
    fn flood_of_one_agent_pushes_out_its_own_events() {
        let mut table = EventTable::default();
        table.insert(event(Some(1), 1));
        table.insert(event(None, 2));
        (10..1020).for_each(|number| table.insert(event(Some(7), number)));
        let (gap, events) = read(&table, at(1), 2000);
        assert_eq!((gap, events.len(), events[0], events[1]), (true, 1001, 2, 20));
        assert!(!table.has("key 19") && table.has("key 20") && table.has("key 1"));
        assert_eq!(read(&table, at(19), 1), (false, vec![20]));
    }

    #[test]
    fn log_has_a_number_of_events_and_a_week() {
        let mut table = EventTable::default();
        let last = MAX_EVENTS as u64 + 5;
        (1..=last).for_each(|number| table.insert(event(Some(number % 100), number)));
        assert_eq!(read(&table, at(5), 1), (false, vec![6]));
        assert_eq!(read(&table, at(4), 1), (true, vec![6]));
        let later = event(None, 7 * 86_400_000 + last);
        table.insert(later);
        assert_eq!(read(&table, EventPosition::START, 1), (false, vec![last]), "all others are too old");
        assert_eq!(table.counts.len(), 2);
    }

    #[test]
    fn position_of_an_earlier_process_has_a_gap() {
        let mut table = EventTable::begun_at(SystemTime::UNIX_EPOCH + Duration::from_millis(20));
        assert_eq!(read(&table, at(10), 9), (true, vec![]));
        table.insert(event(None, 21));
        assert_eq!(read(&table, at(10), 9), (true, vec![21]));
        assert_eq!(read(&table, EventPosition::START, 9), (false, vec![21]), "the reader has no position");
        assert_eq!(read(&table, at(20), 9), (false, vec![21]));
    }

    #[test]
    fn log_that_has_begun_anew_reports_a_gap() {
        let mut table = EventTable::default();
        table.insert(event(None, 50));
        let changes = table.changes();
        table.clear();
        table.insert(event(None, 3));
        assert_eq!(*changes.borrow(), at(3));
        assert_eq!(read(&table, at(50), 9), (true, vec![3]), "the clock of the new log is behind");
        assert_eq!(read(&table, at(2), 9), (false, vec![3]));
        assert_eq!(read(&table, at(51), 9), (false, vec![]), "a position that is not known yet");
    }

    #[test]
    fn state_is_an_event_when_it_changes() {
        let (mut states, event) = (StateTable::default(), event(Some(1), 1).event);
        let mut note = |state: &str, quiet| {
            let scope = StateScope::Reported;
            let state = SubjectState { scope, subject: "web".to_owned(), state: state.to_owned(), quiet };
            states.note_state(&event, &state)
        };
        assert!(!note("healthy", true), "it was healthy from the start");
        assert!(note("degraded", true) && !note("degraded", false) && note("healthy", true));
        let degraded = |scope, subject: String| SubjectState {
            scope,
            subject,
            state: "degraded".to_owned(),
            quiet: false,
        };
        assert!(states.note_state(&event, &degraded(StateScope::Reported, "db".to_owned())));
        for number in 0..3 * MAX_STATES {
            states.note_state(&event, &degraded(StateScope::Reported, number.to_string()));
            let reported = states.0[&Some(AgentId(1))].reported.len();
            assert!((number.min(MAX_STATES - EVICTED_STATES)..=MAX_STATES).contains(&reported));
        }
    }

    #[test]
    fn events_of_a_process_are_noted_once_and_in_order() {
        let (mut states, event, instance) =
            (StateTable::default(), event(Some(1), 1).event, InstanceId::random());
        let mut note = |instance, sequence| states.note_origin(&event, AgentEventId { instance, sequence });
        assert!(note(instance, 1) && note(instance, 3));
        assert!(!note(instance, 3) && !note(instance, 2), "another replica is behind");
        assert!(note(InstanceId::random(), 1) && note(instance, 4));
        assert_eq!(
            (states.last_origin(AgentId(1), instance), states.last_origin(AgentId(2), instance)),
            (4, 0)
        );
    }
}
