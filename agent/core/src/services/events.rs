//! The service `agent-events`: kas follows the events of this process.

use std::sync::Arc;

use bytes::{BufMut as _, Bytes, BytesMut};
use futures_util::stream;
use http::{Method, Request, Response};
use proto::{
    Reason,
    events::{AgentEventId, AgentEventLine, EVENT_LINES, EVENTS_PATH, OPEN_ALERTS, OpenAlerts},
    header::tokens,
};
use tokio::sync::watch;
use tunnel::Body;

use super::{
    RequestHandler, ServiceError,
    response::{JSON_LINES, bad_request, line, stream_response, wrong_method},
};
use crate::events::{EventBatch, EventLog};

/// The most events that are copied at once. A reader that stops holds no more memory.
const BATCH: usize = 16;

/// Serves kas. Clones share the log.
#[derive(Clone, Debug)]
pub(crate) struct EventsHandler(pub(crate) EventLog);

/// A replica of kas that follows.
struct Reader {
    log: EventLog,
    changes: watch::Receiver<u64>,
    /// The last event that was sent.
    after: Option<AgentEventId>,
    /// kas knows lists of open alerts.
    knows_open_alerts: bool,
    /// The list that was sent.
    open_alerts: Option<Arc<OpenAlerts>>,
}

impl RequestHandler for EventsHandler {
    async fn handle(&self, request: Request<Body>) -> Result<Response<Body>, ServiceError> {
        let path = request.uri().path();
        if path != EVENTS_PATH {
            let what = format!("agentk has no path {path} for events");
            return Err(ServiceError::new(Reason::UnknownPath, what));
        }
        if request.method() != Method::GET {
            return Err(wrong_method(path, "GET"));
        }
        let after = parse(request.uri().query().unwrap_or_default())?;
        // Subscribed first, so that no event is missed.
        let (changes, log) = (self.0.changes(), self.0.clone());
        let knows_open_alerts = tokens(request.headers(), &EVENT_LINES).any(|line| line == OPEN_ALERTS);
        let reader = Reader { log, changes, after, knows_open_alerts, open_alerts: None };
        let lines =
            stream::unfold(reader, async |mut reader| reader.next().await.map(|lines| (lines, reader)));
        Ok(stream_response(JSON_LINES, lines))
    }
}

impl Reader {
    /// Returns the next lines, once there are some, or `None` at the end of a closed log. It reads the ring when the one before was sent,
    /// so that the ring is the only buffer.
    async fn next(&mut self) -> Option<Bytes> {
        loop {
            self.changes.mark_unchanged();
            let EventBatch { missed, events } = self.log.read(self.after, BATCH);
            if let Some(last) = events.last() {
                self.after = Some(last.id);
                let mut lines = BytesMut::new();
                if missed > 0 {
                    lines.put(line(&AgentEventLine::Missed(missed)));
                }
                for event in events {
                    lines.put(line(&AgentEventLine::Event(Box::new((*event).clone()))));
                }
                return Some(lines.freeze());
            }
            if let Some(open) = self.next_open_alerts() {
                return Some(line(&AgentEventLine::OpenAlerts((*open).clone())));
            }
            tokio::select! {
                biased;
                // The sender lives as long as the log.
                _ = self.changes.changed() => {}
                () = self.log.closed() => return None,
            }
        }
    }

    /// Returns the list of open alerts, if kas does not have it. All events before it were sent.
    fn next_open_alerts(&mut self) -> Option<Arc<OpenAlerts>> {
        let newest = self.log.open_alerts().filter(|_| self.knows_open_alerts)?;
        let is_sent = self.open_alerts.as_ref().is_some_and(|sent| Arc::ptr_eq(sent, &newest));
        (!is_sent).then(|| Arc::clone(self.open_alerts.insert(newest)))
    }
}

fn parse(query: &str) -> Result<Option<AgentEventId>, ServiceError> {
    if query.is_empty() {
        return Ok(None);
    }
    let id = query
        .strip_prefix("after=")
        .ok_or_else(|| bad_request("the query must be after=<id of an event>"))?;
    id.parse().map(Some).map_err(|error| bad_request(&format!("after: {error}")))
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;
    use http_body_util::BodyExt as _;
    use proto::{
        InstanceId,
        events::{EventContent, EventKind, Severity},
    };

    use super::*;

    fn emit(log: &EventLog, message: &str) {
        log.emit(EventContent::new(EventKind::Drift, Severity::Warning, message));
    }

    async fn open_stream(log: &EventLog, query: &str) -> Body {
        let request = Request::get(format!("{EVENTS_PATH}{query}")).body(Body::empty()).unwrap();
        EventsHandler(log.clone()).handle(request).await.unwrap().into_body()
    }

    /// Returns the messages of the next lines, or what they are.
    async fn lines(body: &mut Body) -> Vec<String> {
        let data = body.frame().await.unwrap().unwrap().into_data().unwrap();
        let lines = data.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
        let lines = lines.map(|line| match serde_json::from_slice(line).unwrap() {
            AgentEventLine::Event(event) => format!("{} {}", event.id.sequence, event.event.content.message),
            other => format!("{other:?}"),
        });
        lines.collect()
    }

    #[tokio::test]
    async fn events_follow_while_the_stream_is_open() {
        let log = EventLog::new(InstanceId::random());
        emit(&log, "before");
        let mut body = open_stream(&log, "").await;
        assert_eq!(lines(&mut body).await, ["1 before"]);
        assert!(lines(&mut body).now_or_never().is_none(), "nothing happens");
        emit(&log, "a");
        emit(&log, "b");
        assert_eq!(lines(&mut body).await, ["2 a", "3 b"]);
    }

    #[tokio::test]
    async fn stream_continues_after_an_event_and_reports_a_gap() {
        let log = EventLog::new(InstanceId::random());
        (0..1020).for_each(|number| emit(&log, &number.to_string()));
        let first = log.read(None, 1).events[0].id;
        let query = format!("?after={}", AgentEventId { sequence: 5, ..first });
        let mut body = open_stream(&log, &query).await;
        let found = lines(&mut body).await;
        assert_eq!((found.len(), &*found[0], &*found[1]), (BATCH + 1, "Missed(15)", "21 20"));
        let query = format!("?after={}", AgentEventId { sequence: 1019, ..first });
        assert_eq!(lines(&mut open_stream(&log, &query).await).await, ["1020 1019"]);
    }

    #[tokio::test]
    async fn open_alerts_follow_the_events_for_a_kas_that_knows_them() {
        let log = EventLog::new(InstanceId::random());
        let open = |fingerprint: &str| OpenAlerts {
            since: std::time::SystemTime::UNIX_EPOCH,
            fingerprints: [fingerprint.to_owned()].into(),
        };
        let request = Request::get(EVENTS_PATH).header(EVENT_LINES, "later, open-alerts");
        let request = request.body(Body::empty()).unwrap();
        let mut knowing = EventsHandler(log.clone()).handle(request).await.unwrap().into_body();
        let mut older = open_stream(&log, "").await;
        log.set_open_alerts(open("a"));
        log.set_open_alerts(open("b"));
        emit(&log, "event");
        assert_eq!(lines(&mut knowing).await, ["1 event"]);
        assert_eq!(lines(&mut knowing).await, [format!("{:?}", AgentEventLine::OpenAlerts(open("b")))]);
        assert!(lines(&mut knowing).now_or_never().is_none(), "the list is sent once");
        assert_eq!(lines(&mut older).await, ["1 event"]);
        assert!(lines(&mut older).now_or_never().is_none(), "it would not understand the line");
    }

    #[tokio::test]
    async fn stream_of_a_closed_log_ends_after_the_last_event() {
        let log = EventLog::new(InstanceId::random());
        let mut open_before = open_stream(&log, "").await;
        emit(&log, "last");
        log.close();
        assert_eq!(lines(&mut open_before).await, ["1 last"]);
        assert!(open_before.frame().await.is_none());
        let mut open_after = open_stream(&log, "").await;
        assert_eq!(lines(&mut open_after).await, ["1 last"]);
        assert!(open_after.frame().await.is_none());
    }

    #[tokio::test]
    async fn wrong_request_is_refused() {
        let handler = EventsHandler(EventLog::new(InstanceId::random()));
        for (method, uri, reason) in [
            (Method::POST, "/v1/events", Reason::MethodNotAllowed),
            (Method::GET, "/v1/event", Reason::UnknownPath),
            (Method::GET, "/v1/events?after=7", Reason::BadRequest),
            (Method::GET, "/v1/events?from=7", Reason::BadRequest),
        ] {
            let request = Request::builder().method(method).uri(uri).body(Body::empty()).unwrap();
            assert_eq!(handler.handle(request).await.unwrap_err().reason, reason, "{uri}");
        }
    }
}
