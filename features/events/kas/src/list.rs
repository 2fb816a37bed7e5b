//! The list of events that a query selects.

use std::{collections::VecDeque, sync::Arc, time::SystemTime};

use proto::{ReplicaId, events::Event};
use serde::{Deserialize, Serialize};
use settings::rfc3339;
use store::{EventPosition, LoggedEvent};

use super::{EventQuery, Events};

/// The events that are looked at, at once.
const PAGE: usize = 500;

/// A list of events, as `docs/events.md` documents it.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct EventList {
    /// The replica that created the response.
    pub(crate) replica: ReplicaId,
    /// The time at which the response was created.
    #[serde(with = "rfc3339")]
    pub(crate) time: SystemTime,
    /// The error because of which newer events may be missing.
    pub(crate) missing: Option<String>,
    /// Events after the position of the query were removed before they were read.
    pub(crate) reset: bool,
    /// The events, the newest one last.
    pub(crate) events: Vec<ListedEvent>,
    /// The value of `after` for the next events.
    #[serde(rename = "continue")]
    pub(crate) next: EventPosition,
}

/// An event with its id.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ListedEvent {
    /// The position of the event in the log.
    pub(crate) id: EventPosition,
    #[serde(flatten)]
    pub(crate) event: Event,
}

impl From<&LoggedEvent> for ListedEvent {
    fn from(LoggedEvent { position, event, .. }: &LoggedEvent) -> Self {
        Self { id: *position, event: event.clone() }
    }
}

impl Events {
    /// Returns the events that a query selects: the oldest ones after its position, or, without a position, the newest ones.
    pub(crate) fn list(&self, query: &EventQuery, replica: ReplicaId) -> EventList {
        let EventQuery { filter, after, is_time, limit, .. } = query;
        let identity = self.0.identities.load_full();
        let mut next = after.unwrap_or(EventPosition::START);
        let (mut reset, mut found) = (false, VecDeque::<Arc<LoggedEvent>>::new());
        loop {
            let page = self.read(next, PAGE);
            reset |= page.gap && !is_time && after.is_some();
            let Some(last) = page.events.last() else {
                // No event is in between, so that the reader learns once of those that were removed.
                next = next.max(page.removed);
                break;
            };
            next = last.position;
            for event in page.events.iter().filter(|event| filter.matches(&event.event, &identity)) {
                if found.len() == *limit {
                    found.pop_front();
                }
                found.push_back(Arc::clone(event));
                if after.is_some() && found.len() == *limit {
                    next = event.position;
                    break;
                }
            }
            if after.is_some() && found.len() == *limit {
                break;
            }
        }
        EventList {
            replica,
            time: SystemTime::now(),
            missing: self.missing(),
            reset,
            events: found.iter().map(|event| ListedEvent::from(&**event)).collect(),
            next,
        }
    }
}

#[cfg(test)]
mod tests {
    use access::{Identities, Identity};
    use prometheus_client::registry::Registry;
    use proto::events::{EventContent, EventKind, Severity};
    use store::{MemoryStore, NewEvent};

    use super::*;

    async fn events(count: usize) -> Events {
        let events = Events::new(
            Arc::new(MemoryStore::default()),
            Identities::new(Identity::default()),
            &mut Registry::default(),
        );
        for number in 0..count {
            let kind = if number % 2 == 0 { EventKind::Sync } else { EventKind::Drift };
            let content = EventContent::new(kind, Severity::Info, number.to_string());
            let event = Event { time: SystemTime::UNIX_EPOCH, agent: None, content };
            events.append(vec![NewEvent::new(format!("{number}"), event)]).await.unwrap();
        }
        events
    }

    fn list(events: &Events, query: &str) -> (Vec<String>, EventPosition) {
        let EventList { events, next, reset, missing, .. } =
            events.list(&query.parse().unwrap(), ReplicaId::random());
        assert!(!reset && missing.is_none());
        (events.into_iter().map(|event| event.event.content.message).collect(), next)
    }

    #[tokio::test]
    async fn reader_learns_once_that_a_restart_has_lost_events() {
        let events = events(0).await;
        let list = |after: &str| {
            let query: EventQuery = format!("after={after}").parse().unwrap();
            let EventList { reset, next, .. } = events.list(&query, ReplicaId::random());
            (reset, next.to_string())
        };
        let (reset, next) = list("5-0");
        assert!(reset && !list(&next).0, "{next}");
    }

    #[tokio::test]
    async fn newest_events_are_listed_and_pages_follow() {
        let events = events(999).await;
        let (newest, end) = list(&events, "limit=3&kind=sync");
        assert_eq!(newest, ["994", "996", "998"]);
        assert_eq!(end, events.newest());
        assert!(list(&events, &format!("after={end}")).0.is_empty());

        let (mut all, mut next) = (Vec::new(), EventPosition::START);
        loop {
            let (page, end) = list(&events, &format!("limit=100&kind=drift&after={next}"));
            if page.is_empty() {
                break;
            }
            all.extend(page);
            next = end;
        }
        assert_eq!(all, (0..499).map(|number| (2 * number + 1).to_string()).collect::<Vec<_>>());
        assert!(list(&events, "since=2001-01-01T00:00:00Z&limit=500").0.len() == 500);
    }
}
