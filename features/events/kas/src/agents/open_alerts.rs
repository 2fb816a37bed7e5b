//! Ends the alerts of an agent whose process was killed before it could report their end.

use std::{collections::BTreeMap, sync::Arc, time::SystemTime};

use proto::events::{CLOSED, Event, EventAgent, EventContent, EventKind, OpenAlerts, Severity};
use store::{EventPosition, LoggedEvent, NewEvent};

use crate::{Events, digest::digest};

/// The events that are looked at, at once.
const PAGE: usize = 500;
/// The detail `reason` of the end of an alert that agentk has not reported.
const REASON: &str = "not-open";

/// Returns the events that end the alerts of an agent that the log has as open, and that are not among those of agentk.
///
/// An alert with an event since the time of the list is left out: agentk may have reported it after the list.
pub(super) fn ended(events: &Events, agent: &EventAgent, open: &OpenAlerts) -> Vec<NewEvent> {
    let last = last_of_each_alert(events, agent);
    let is_over = |(fingerprint, logged): &(&String, &Arc<LoggedEvent>)| {
        let Event { time, content, .. } = &logged.event;
        content.details.get("state").is_some_and(|state| state != CLOSED)
            && *time < open.since
            && !open.fingerprints.contains(*fingerprint)
    };
    let mut over: Vec<_> = last.iter().filter(is_over).collect();
    over.sort_by_key(|(_, logged)| logged.position);
    over.into_iter().map(|(fingerprint, logged)| end(agent, fingerprint, logged)).collect()
}

/// Returns the last event of each alert of an agent in the log, by fingerprint.
fn last_of_each_alert(events: &Events, agent: &EventAgent) -> BTreeMap<String, Arc<LoggedEvent>> {
    let (mut last, mut after) = (BTreeMap::new(), EventPosition::START);
    loop {
        let page = events.read(after, PAGE).events;
        let Some(newest) = page.last() else { return last };
        after = newest.position;
        for logged in page {
            if logged.event.agent.as_ref().is_some_and(|of| of.id == agent.id)
                && let Some(fingerprint) = logged.event.content.alert_fingerprint()
            {
                last.insert(fingerprint, logged);
            }
        }
    }
}

/// Returns the end of an alert, which is the same event at each replica.
fn end(agent: &EventAgent, fingerprint: &str, last: &LoggedEvent) -> NewEvent {
    let EventContent { subject, message, details, .. } = last.event.content.clone();
    let message = format!("{message}: over, because agentk no longer lists it");
    let mut content = EventContent::new(EventKind::Alert, Severity::Info, message).with_subject(subject);
    content.details = details;
    // The occurrences after the last report are not known.
    content.details.remove("count");
    let content = content.with_detail("state", CLOSED).with_detail("reason", REASON);
    let key = format!("agent:{}:end:{}", agent.id, digest(&[fingerprint, &last.position.to_string()]));
    NewEvent::new(key, Event { time: SystemTime::now(), agent: Some(agent.clone()), content })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use access::{Identities, Identity};
    use prometheus_client::registry::Registry;
    use proto::AgentId;
    use store::MemoryStore;

    use super::*;

    fn agent(id: u64) -> EventAgent {
        EventAgent { id: AgentId(id), name: "prod".parse().unwrap(), project_id: None, project_path: None }
    }

    fn at(seconds: u64) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(1_800_000_000 + seconds)
    }

    fn alert(source: &str, state: &str) -> EventContent {
        EventContent::new(EventKind::Alert, Severity::Warning, format!("{source} is blocked"))
            .with_detail("state", state)
            .with_detail("source", source)
            .with_detail("count", "7")
    }

    async fn log(logged: &[(u64, u64, EventContent)]) -> Events {
        let events = Events::new(
            Arc::new(MemoryStore::default()),
            Identities::new(Identity::default()),
            &mut Registry::default(),
        );
        for (number, (id, second, content)) in logged.iter().enumerate() {
            let event = Event { time: at(*second), agent: Some(agent(*id)), content: content.clone() };
            events.append(vec![NewEvent::new(number.to_string(), event)]).await.unwrap();
        }
        events
    }

    fn open(since: u64, contents: &[EventContent]) -> OpenAlerts {
        let fingerprints = contents.iter().map(|content| content.alert_fingerprint().unwrap());
        OpenAlerts { since: at(since), fingerprints: fingerprints.collect() }
    }

    fn sources(ended: &[NewEvent]) -> Vec<&str> {
        ended.iter().map(|new| &*new.event.content.details["source"]).collect()
    }

    #[tokio::test]
    async fn alert_that_is_open_in_the_log_only_is_ended() {
        let events = log(&[
            (1, 0, alert("lost", "opened")),
            (1, 1, alert("open", "opened")),
            (1, 2, alert("closed", "opened")),
            (2, 3, alert("of-another-agent", "opened")),
            (1, 4, alert("goes-on", "opened")),
            (1, 5, alert("closed", "closed")),
            (1, 6, EventContent::new(EventKind::Drift, Severity::Warning, "no alert")),
            (1, 7, alert("lost", "ongoing")),
            (1, 20, alert("goes-on", "ongoing")),
        ])
        .await;
        let list = open(10, &[alert("open", "opened")]);
        let found = ended(&events, &agent(1), &list);
        assert_eq!(sources(&found), ["lost"]);
        let content = &found[0].event.content;
        assert_eq!((&*content.details["state"], &*content.details["reason"]), ("closed", "not-open"));
        assert_eq!(content.message, "lost is blocked: over, because agentk no longer lists it");
        assert_eq!((content.severity, content.details.get("count")), (Severity::Info, None));
        assert_eq!(found[0].key, ended(&events, &agent(1), &list)[0].key, "each replica reports the same");
        events.append(found).await.unwrap();
        assert!(ended(&events, &agent(1), &list).is_empty(), "it is over now");
    }

    #[tokio::test]
    async fn agent_without_open_alerts_ends_all_of_its_own() {
        let events =
            log(&[(1, 0, alert("a", "opened")), (1, 1, alert("b", "opened")), (2, 1, alert("c", "opened"))])
                .await;
        assert_eq!(sources(&ended(&events, &agent(1), &open(2, &[]))), ["a", "b"]);
        assert_eq!(sources(&ended(&events, &agent(2), &open(2, &[]))), ["c"]);
    }
}
