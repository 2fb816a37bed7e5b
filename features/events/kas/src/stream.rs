//! The stream of a reader that follows, as server-sent events.

use std::{convert::Infallible, time::Duration};

use access::CallerNames;
use axum::{
    body::Body,
    response::{IntoResponse as _, Response},
};
use bytes::{BufMut as _, Bytes, BytesMut};
use futures_util::{Stream, stream};
use http::header::{CACHE_CONTROL, CONTENT_TYPE};
use http_body::Frame;
use http_body_util::StreamBody;
use serde_json::json;
use store::{EventPage, EventPosition};
use telemetry::GaugeGuard;
use tokio::{
    sync::watch,
    time::{Instant, sleep_until},
};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::{
    EventFilter, EventQuery, Events, ListedEvent,
    watchers::{TooManyWatchers, WatchPermit},
};
use kas_listen::hold_open::HoldOpen;

/// The type of the body.
pub(crate) const EVENT_STREAM: &str = "text/event-stream";
/// The time after which a stream ends, ±10 %. The reader connects again, also to another replica.
const LIFETIME: Duration = Duration::from_secs(600);
/// The time after which a comment says that nothing has happened, below the idle timeouts of proxies.
const ALIVE: Duration = Duration::from_secs(15);
/// The events that are looked at, at once.
const PAGE: usize = 100;
/// The bytes after which a part of the body has no further event.
const MAX_PART: usize = 64 << 10;
/// The first lines: the wait of the reader before it connects again, in milliseconds.
const BEGIN: &str = "retry: 2000\n: events of kas\n\n";

/// A reader that follows. It reads the log only when the part before was sent.
#[derive(Debug)]
pub(crate) struct EventStream {
    events: Events,
    filter: EventFilter,
    /// The last event that was looked at.
    position: EventPosition,
    /// The newest removed event that the reader was told of, or that it has not asked for.
    removed: EventPosition,
    changes: watch::Receiver<EventPosition>,
    has_begun: bool,
    end: Instant,
    /// Cancelled when the replica stops.
    draining: CancellationToken,
    /// Cancelled when the stream is dropped.
    ended: CancellationToken,
    _end: DropGuard,
    _permit: WatchPermit,
    _watching: GaugeGuard,
}

impl EventStream {
    /// Returns the stream of a reader. Without a position, it begins with the next event. Operators and the internal API are no `caller`.
    ///
    /// # Errors
    ///
    /// Too many others follow.
    pub(crate) fn new(
        events: &Events,
        query: EventQuery,
        caller: Option<CallerNames>,
        draining: CancellationToken,
    ) -> Result<Self, TooManyWatchers> {
        let end = Instant::now() + LIFETIME.mul_f64(rand::random_range(0.9..1.1));
        let permit = events.0.watchers.acquire(caller, end)?;
        let EventQuery { filter, after, is_time, .. } = query;
        // Subscribed first, so that no event is missed.
        let changes = events.changes();
        let position = after.unwrap_or_else(|| events.newest());
        let ended = CancellationToken::new();
        let removed = if is_time { events.read(position, 0).removed } else { EventPosition::START };
        Ok(Self {
            events: events.clone(),
            filter,
            position,
            removed,
            changes,
            has_begun: false,
            end,
            draining,
            _end: ended.clone().drop_guard(),
            ended,
            _permit: permit,
            _watching: GaugeGuard::new(&events.0.metrics.watchers),
        })
    }

    /// Returns the frames of the body.
    pub(crate) fn into_frames(self) -> impl Stream<Item = Result<Frame<Bytes>, Infallible>> + Send + 'static {
        stream::unfold(self, async |mut reader| Some((Ok(Frame::data(reader.next().await?)), reader)))
    }

    /// Returns the next part of the body, or `None` at its end.
    async fn next(&mut self) -> Option<Bytes> {
        if !self.has_begun {
            self.has_begun = true;
            return Some(Bytes::from_static(BEGIN.as_bytes()));
        }
        let alive = Instant::now() + ALIVE;
        loop {
            self.changes.mark_unchanged();
            let page = self.events.read(self.position, PAGE);
            let is_last = page.events.len() < PAGE;
            if let Some(text) = self.encode(&page) {
                return Some(text);
            }
            if !is_last {
                continue;
            }
            tokio::select! {
                biased;
                () = self.draining.cancelled() => return None,
                () = sleep_until(self.end) => return None,
                // The sender lives as long as the store.
                _ = self.changes.changed() => {}
                () = sleep_until(alive) => {
                    // The id, too: a reader whose filter selects little does not fall behind.
                    return Some(format!(": alive\nid: {}\n\n", self.position).into());
                }
            }
        }
    }

    /// Returns the selected events at the beginning of a page, and moves on.
    fn encode(&mut self, EventPage { events, gap, removed }: &EventPage) -> Option<Bytes> {
        let mut text = BytesMut::new();
        if events.is_empty() {
            // No event is in between, so that a reader that comes again learns once of those that were removed.
            self.position = self.position.max(*removed);
        }
        if *gap && *removed > self.removed {
            self.removed = *removed;
            let message = "some events were removed before they were sent: more than a week has passed, there were too many, or kas or Redis has lost them";
            let data = json!({"message": message, "removed": removed});
            text.put_slice(format!("event: reset\ndata: {data}\n\n").as_bytes());
        }
        for logged in events {
            if text.len() >= MAX_PART {
                break;
            }
            self.position = logged.position;
            if self.events.selects(&self.filter, &logged.event) {
                let data =
                    serde_json::to_string(&ListedEvent::from(&**logged)).expect("it has keys that are text");
                text.put_slice(format!("id: {}\ndata: {data}\n\n", logged.position).as_bytes());
            }
        }
        (!text.is_empty()).then(|| text.freeze())
    }
}

/// Returns the response with a stream.
pub(crate) fn stream_response(stream: EventStream) -> Response {
    let hold = HoldOpen { until: stream.ended.clone(), at_most: LIFETIME.mul_f64(1.2) };
    let body = Body::new(StreamBody::new(stream.into_frames()));
    let mut response = ([(CONTENT_TYPE, EVENT_STREAM), (CACHE_CONTROL, "no-store")], body).into_response();
    response.extensions_mut().insert(hold);
    response
}

#[cfg(test)]
mod tests {
    use access::{Identities, Identity};
    use std::{sync::Arc, time::SystemTime};

    use prometheus_client::registry::Registry;
    use proto::{
        AgentId,
        events::{Event, EventAgent, EventContent, EventKind, Severity},
    };
    use store::{MAX_EVENTS_PER_AGENT, MemoryStore, NewEvent};
    use tokio::time::timeout;

    use super::*;
    use crate::watchers::MAX_WATCHERS;

    fn events() -> Events {
        Events::new(
            Arc::new(MemoryStore::default()),
            Identities::new(Identity::default()),
            &mut Registry::default(),
        )
    }

    async fn append(events: &Events, kind: EventKind, message: &str) {
        let content = EventContent::new(kind, Severity::Info, message);
        let agent = EventAgent {
            id: AgentId(1),
            name: "prod".parse().unwrap(),
            project_id: None,
            project_path: None,
        };
        let event = Event { time: SystemTime::UNIX_EPOCH, agent: Some(agent), content };
        events.append(vec![NewEvent::new(message, event)]).await.unwrap();
    }

    fn watch(events: &Events, query: &str) -> EventStream {
        EventStream::new(events, query.parse().unwrap(), None, CancellationToken::new()).unwrap()
    }

    /// Returns what a reader receives next: messages of events, or the lines of other parts.
    async fn next(stream: &mut EventStream) -> Option<Vec<String>> {
        let text = String::from_utf8(stream.next().await?.to_vec()).unwrap();
        let parts = text.split("\n\n").filter(|part| !part.is_empty()).map(|part| {
            let data = part.lines().find_map(|line| line.strip_prefix("data: "));
            let value: Option<serde_json::Value> = data.map(|data| serde_json::from_str(data).unwrap());
            match value {
                Some(value) if value["id"].is_string() => {
                    assert!(part.starts_with(&format!("id: {}\n", value["id"].as_str().unwrap())));
                    value["message"].as_str().unwrap().to_owned()
                }
                _ => part.lines().next().unwrap().to_owned(),
            }
        });
        Some(parts.collect())
    }

    #[tokio::test(start_paused = true)]
    async fn reader_receives_later_events_and_signs_of_life() {
        let events = events();
        append(&events, EventKind::Sync, "before").await;
        let mut stream = watch(&events, "watch&kind=sync");
        assert_eq!(next(&mut stream).await.unwrap(), ["retry: 2000"]);
        append(&events, EventKind::Sync, "a").await;
        append(&events, EventKind::Drift, "not selected").await;
        append(&events, EventKind::Sync, "b").await;
        assert_eq!(next(&mut stream).await.unwrap(), ["a", "b"]);
        append(&events, EventKind::Drift, "not selected, too").await;
        let start = Instant::now();
        let text = String::from_utf8(stream.next().await.unwrap().to_vec()).unwrap();
        assert_eq!((text, start.elapsed()), (format!(": alive\nid: {}\n\n", events.newest()), ALIVE));
    }

    #[tokio::test(start_paused = true)]
    async fn stream_ends_after_its_time_and_when_the_replica_stops() {
        let events = events();
        let mut stream = watch(&events, "watch");
        let start = Instant::now();
        while stream.next().await.is_some() {}
        assert!((540..=660).contains(&start.elapsed().as_secs()), "{:?}", start.elapsed());

        let draining = CancellationToken::new();
        let query = "watch".parse().unwrap();
        let mut stream = EventStream::new(&events, query, None, draining.clone()).unwrap();
        stream.next().await.unwrap();
        draining.cancel();
        assert_eq!(stream.next().await, None);
    }

    #[tokio::test(start_paused = true)]
    async fn reader_that_is_behind_is_told_once_that_events_are_missing() {
        let events = events();
        append(&events, EventKind::Sync, "first").await;
        let first = events.newest();
        for number in 0..MAX_EVENTS_PER_AGENT + 5 {
            append(&events, EventKind::Sync, &number.to_string()).await;
        }
        let mut stream = watch(&events, &format!("watch&after={first}"));
        stream.next().await.unwrap();
        let received = next(&mut stream).await.unwrap();
        assert_eq!((&*received[0], &*received[1], received.len()), ("event: reset", "5", PAGE + 1));
        assert_eq!(next(&mut stream).await.unwrap()[0], "105", "it is told once");

        let mut stream = watch(&events, "watch&since=1970-01-01T00:00:00Z");
        stream.next().await.unwrap();
        assert_eq!(next(&mut stream).await.unwrap()[0], "5", "it has not read any before");
    }

    #[tokio::test(start_paused = true)]
    async fn parts_of_large_events_are_short_and_complete() {
        let events = events();
        let mut stream = watch(&events, "watch");
        stream.next().await.unwrap();
        let large = |number: usize| format!("{number:03} {}", "x".repeat(400));
        for number in 0..2 * PAGE {
            let mut content = EventContent::new(EventKind::Alert, Severity::Info, large(number));
            for detail in 0..4 {
                content = content.with_detail(&format!("detail-{detail}"), "y".repeat(256));
            }
            let event = Event { time: SystemTime::UNIX_EPOCH, agent: None, content };
            events.append(vec![NewEvent::new(number.to_string(), event)]).await.unwrap();
        }
        let mut received = Vec::new();
        while received.len() < 2 * PAGE {
            let part = stream.next().await.unwrap();
            assert!(part.len() < MAX_PART + (8 << 10), "{}", part.len());
            let part = String::from_utf8(part.to_vec()).unwrap();
            let data = part.lines().filter_map(|line| line.strip_prefix("data: "));
            received.extend(data.map(|data| {
                let event: serde_json::Value = serde_json::from_str(data).unwrap();
                event["message"].as_str().unwrap().to_owned()
            }));
        }
        assert_eq!(received, (0..2 * PAGE).map(large).collect::<Vec<_>>());
    }

    #[tokio::test(start_paused = true)]
    async fn readers_are_limited_and_counted() {
        let events = events();
        let mut streams: Vec<EventStream> = (0..MAX_WATCHERS).map(|_| watch(&events, "watch")).collect();
        let one_more = || EventStream::new(&events, "watch".parse().unwrap(), None, CancellationToken::new());
        assert_eq!(one_more().err(), Some(TooManyWatchers::All));
        assert_eq!(events.0.metrics.watchers.get(), MAX_WATCHERS as i64);
        streams.pop();
        assert!(timeout(ALIVE, async { one_more().is_ok() }).await.unwrap());
    }
}
