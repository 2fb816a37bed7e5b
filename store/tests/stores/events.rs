//! The contract of the log of events, and its tests with unusable values and outages of Redis.

use std::time::{Duration, SystemTime};

use proto::{
    AgentId, InstanceId, ReplicaId,
    events::{AgentEventId, Event, EventAgent, EventContent, EventKind, Severity},
};
use store::{
    CURSOR_TTL, CursorRequest, CursorStore as _, EventPage, EventPosition, EventStore as _,
    MAX_EVENTS_PER_AGENT, NewEvent, RouteChange, StateScope, Store, SubjectState,
};
use tokio::time::{sleep, timeout};

use crate::{TIMEOUT, TestReplica, redis, server::Server};

/// An event of an agent, or of kas itself, with this message, which is also its key.
fn event(agent: Option<u64>, message: &str) -> NewEvent {
    let agent = agent.map(|id| EventAgent {
        id: AgentId(id),
        name: "prod".parse().unwrap(),
        project_id: Some(3),
        project_path: None,
    });
    let content = EventContent::new(EventKind::Alert, Severity::Warning, message);
    NewEvent::new(format!("key {message}"), Event { time: SystemTime::UNIX_EPOCH, agent, content })
}

fn with_state(agent: u64, message: &str, state: &str, quiet: bool) -> NewEvent {
    let state = SubjectState {
        scope: StateScope::Reported,
        subject: "web".to_owned(),
        state: state.to_owned(),
        quiet,
    };
    NewEvent { state: Some(state), ..event(Some(agent), message) }
}

/// An event that a subject is degraded.
fn degraded(agent: u64, scope: StateScope, subject: &str, message: &str) -> NewEvent {
    let (subject, state) = (subject.to_owned(), "degraded".to_owned());
    let state = SubjectState { scope, subject, state, quiet: false };
    NewEvent { state: Some(state), ..event(Some(agent), message) }
}

fn messages(page: &EventPage) -> Vec<&str> {
    page.events.iter().map(|event| &*event.event.content.message).collect()
}

fn newest(store: &dyn Store) -> EventPosition {
    *store.event_changes().borrow()
}

/// Returns the position of the newest event. A part of the contract may have waited for it at one of the replicas only.
fn newest_of(here: &dyn Store, there: &dyn Store) -> EventPosition {
    newest(here).max(newest(there))
}

/// Waits until a replica has an event with this message, and returns all events after a position.
async fn wait_message(store: &dyn Store, after: EventPosition, last: &str) -> EventPage {
    let mut changes = store.event_changes();
    let found = async {
        loop {
            changes.borrow_and_update();
            let page = store.events(after, usize::MAX);
            if messages(&page).contains(&last) {
                return page;
            }
            changes.changed().await.unwrap();
        }
    };
    timeout(TIMEOUT, found).await.unwrap_or_else(|_| panic!("there is no event {last}"))
}

/// Part of the contract of route stores. The log may have events already.
pub(crate) async fn check_contract(here: (&dyn Store, ReplicaId), there: (&dyn Store, ReplicaId)) {
    events_have_one_order_at_all_replicas(here.0, there.0).await;
    state_is_an_event_when_it_changes(here.0, there.0).await;
    states_have_scopes_and_a_flood_pushes_out_some(here.0, there.0).await;
    events_of_a_process_are_appended_once_and_in_order(here.0, there.0).await;
    event_that_is_too_long_is_left_out(here.0, there.0).await;
    flood_of_one_agent_is_a_gap_for_those_behind(here.0, there.0).await;
    one_replica_at_a_time_has_a_cursor(here, there).await;
    changes_of_routes_are_followed(here, there.0).await;
}

async fn events_have_one_order_at_all_replicas(here: &dyn Store, there: &dyn Store) {
    let start = newest_of(here, there);
    for number in 0..150 {
        let store = if number % 3 == 0 { there } else { here };
        let events = vec![event(None, &format!("{number}a")), event(Some(7), &format!("{number}b"))];
        store.append_events(events.clone()).await.unwrap();
        // Another replica has learned of the first one, too.
        let (again, _) = events.split_at(1);
        here.append_events(again.to_vec()).await.unwrap();
    }
    here.append_events(vec![event(None, "end")]).await.unwrap();
    let (page, other) = (wait_message(here, start, "end").await, wait_message(there, start, "end").await);
    assert_eq!(page, other);
    let expected: Vec<String> =
        (0..150).flat_map(|number| [format!("{number}a"), format!("{number}b")]).collect();
    assert_eq!(messages(&page)[..300], expected);
    assert_eq!((messages(&page).len(), page.gap), (301, false));
    assert_eq!(page.events[1].event, event(Some(7), "0b").event);

    // A reader that has read a part at one replica continues at the other one.
    let third = page.events[2].position;
    assert_eq!(messages(&there.events(third, 2)), ["1b", "2a"]);
    assert_eq!(newest(there), page.events[300].position);
    assert!(there.events(newest(there), 1).events.is_empty());
}

async fn state_is_an_event_when_it_changes(here: &dyn Store, there: &dyn Store) {
    let start = newest_of(here, there);
    for (store, message, state, quiet) in [
        (here, "first", "healthy", true),
        (there, "second", "healthy", false),
        (there, "bad", "degraded", true),
        (here, "bad again", "degraded", false),
        (here, "good", "healthy", true),
    ] {
        store.append_events(vec![with_state(21, message, state, quiet)]).await.unwrap();
    }
    here.append_events(vec![with_state(22, "other agent", "degraded", false)]).await.unwrap();
    let page = wait_message(there, start, "other agent").await;
    assert_eq!(messages(&page), ["bad", "good", "other agent"]);
}

async fn states_have_scopes_and_a_flood_pushes_out_some(here: &dyn Store, there: &dyn Store) {
    let start = newest_of(here, there);
    let scopes = [StateScope::Fleet, StateScope::Agent, StateScope::Reported];
    let of_scopes = |agent: u64, time: &str| -> Vec<NewEvent> {
        let name = |scope| format!("{scope:?} of {agent} {time}");
        scopes.iter().map(|scope| degraded(agent, *scope, "scoped", &name(*scope))).collect()
    };
    here.append_events(of_scopes(25, "first")).await.unwrap();
    there.append_events(of_scopes(26, "first")).await.unwrap();
    here.append_events(vec![event(None, "scopes end")]).await.unwrap();
    assert_eq!(
        messages(&wait_message(there, start, "scopes end").await),
        [
            "Fleet of 25 first",
            "Agent of 25 first",
            "Reported of 25 first",
            "Agent of 26 first",
            "Reported of 26 first",
            "scopes end",
        ],
        "the whole fleet has one state, whichever agent the event names"
    );

    let flood = |time: &str, number: u32| -> Vec<NewEvent> {
        let subject = |number: u32| format!("subject {number}");
        (0..number).map(|n| degraded(25, StateScope::Reported, &subject(n), &format!("{time} {n}"))).collect()
    };
    here.append_events(flood("before", 1100)).await.unwrap();
    let origin = AgentEventId { instance: InstanceId::random(), sequence: 5 };
    let of_process = |origin| NewEvent { origin: Some(origin), ..event(Some(25), "before 1099") };
    let random = |_| of_process(AgentEventId { instance: InstanceId::random(), sequence: 1 });
    here.append_events((0..1100).map(random).collect()).await.unwrap();
    here.append_events(vec![of_process(origin)]).await.unwrap();
    assert_eq!(there.last_event_of(AgentId(25), origin.instance).await.unwrap(), 5);
    here.append_events(vec![event(None, "flood end")]).await.unwrap();
    let position = wait_message(here, start, "flood end").await.events.last().unwrap().position;

    let mut again = of_scopes(25, "again");
    again.truncate(2);
    again.extend(flood("after", 500));
    here.append_events(again).await.unwrap();
    here.append_events(vec![event(None, "again end")]).await.unwrap();
    let page = wait_message(there, position, "again end").await;
    let repeated = messages(&page);
    assert!(!repeated.iter().any(|message| message.ends_with("again")), "kas has noticed them: {repeated:?}");
    assert!(repeated.len() < 350, "{} of 500 states were forgotten", repeated.len() - 1);
}

async fn events_of_a_process_are_appended_once_and_in_order(here: &dyn Store, there: &dyn Store) {
    let (start, instance, other) = (newest_of(here, there), InstanceId::random(), InstanceId::random());
    let from = |instance, sequence, message: &str| NewEvent {
        origin: Some(AgentEventId { instance, sequence }),
        ..event(Some(23), message)
    };
    here.append_events(vec![from(instance, 1, "p1"), from(instance, 2, "p2")]).await.unwrap();
    // The other replica follows the same process, and is behind.
    there.append_events(vec![from(instance, 1, "p1 again"), from(instance, 3, "p3")]).await.unwrap();
    here.append_events(vec![from(instance, 3, "p3 again"), from(other, 1, "q1")]).await.unwrap();
    let page = wait_message(there, start, "q1").await;
    assert_eq!(messages(&page), ["p1", "p2", "p3", "q1"]);
    assert_eq!(here.last_event_of(AgentId(23), instance).await.unwrap(), 3);
    assert_eq!(there.last_event_of(AgentId(23), InstanceId::random()).await.unwrap(), 0);
    assert_eq!(there.last_event_of(AgentId(24), instance).await.unwrap(), 0);
}

async fn event_that_is_too_long_is_left_out(here: &dyn Store, there: &dyn Store) {
    let start = newest_of(here, there);
    let long = NewEvent { key: "k".repeat(NewEvent::MAX_TEXT + 1), ..event(None, "long") };
    here.append_events(vec![long, event(None, "short")]).await.unwrap();
    assert_eq!(messages(&wait_message(here, start, "short").await), ["short"]);
}

async fn flood_of_one_agent_is_a_gap_for_those_behind(here: &dyn Store, there: &dyn Store) {
    let start = newest_of(here, there);
    here.append_events(vec![event(Some(31), "quiet agent")]).await.unwrap();
    let flood: Vec<NewEvent> =
        (0..MAX_EVENTS_PER_AGENT + 20).map(|number| event(Some(32), &format!("flood {number}"))).collect();
    here.append_events(flood).await.unwrap();
    let last = format!("flood {}", MAX_EVENTS_PER_AGENT + 19);
    let (page, other) = (wait_message(here, start, &last).await, wait_message(there, start, &last).await);
    assert_eq!(page, other);
    assert_eq!(messages(&page)[..2], ["quiet agent", "flood 20"]);
    assert_eq!((messages(&page).len(), page.gap), (MAX_EVENTS_PER_AGENT + 1, true));
    assert!(!there.events(page.events[1].position, 1).gap, "it has missed nothing");
    assert!(!there.events(EventPosition::START, 1).gap, "whoever begins has missed nothing");
}

async fn one_replica_at_a_time_has_a_cursor(
    (here, this): (&dyn Store, ReplicaId),
    (there, other): (&dyn Store, ReplicaId),
) {
    use CursorRequest::{Claim, Move, Release};

    let at = |millis| EventPosition { millis, sequence: 1 };
    let first = async |request| here.event_cursor("hook", this, request).await.unwrap();
    let second = async |request| there.event_cursor("hook", other, request).await.unwrap();
    assert_eq!(first(Move(at(1))).await, None, "nobody has claimed it");
    assert_eq!(first(Claim(at(5))).await, Some(at(5)));
    assert_eq!(
        (second(Claim(at(9))).await, second(Move(at(9))).await, second(Release).await),
        (None, None, None)
    );
    assert_eq!(first(Move(at(7))).await, Some(at(7)));
    assert_eq!(first(Move(at(6))).await, Some(at(7)), "it never moves back");
    assert_eq!(there.event_cursor("another", other, Claim(at(1))).await.unwrap(), Some(at(1)));
    assert_eq!((first(Release).await, second(Claim(at(9))).await), (Some(at(7)), Some(at(7))));
    assert_eq!(first(Move(at(8))).await, None, "the other replica has it");
    // The other replica is killed.
    sleep(CURSOR_TTL + Duration::from_secs(1)).await;
    assert_eq!(first(Claim(at(9))).await, Some(at(7)));
}

async fn changes_of_routes_are_followed(here: (&dyn Store, ReplicaId), there: &dyn Store) {
    let agent = AgentId(41);
    let route = store::Route { replica: here.1, epoch: proto::Epoch(1) };
    let mut changes = [here.0.route_changes(), there.route_changes()];
    here.0.announce(agent, route).await.unwrap();
    for receiver in &mut changes {
        let received = async { while receiver.recv().await.unwrap() != RouteChange::Agent(agent) {} };
        timeout(Duration::from_secs(5), received).await.expect("the change is announced");
    }
}

#[tokio::test]
async fn events_are_read_from_memory_while_redis_is_down() {
    let Some(mut server) = redis() else { return };
    let (here, there) =
        (TestReplica::joined(server.settings()).await, TestReplica::joined(server.settings()).await);
    here.store.append_events(vec![event(Some(1), "a"), event(Some(1), "b")]).await.unwrap();
    let page = wait_message(&*there.store, EventPosition::START, "b").await;
    let (first, last) = (page.events[0].position, page.events[1].position);
    server.kill();
    there.wait_degraded().await;
    assert!(there.store.append_events(vec![event(Some(1), "c")]).await.is_err(), "the caller tries again");
    assert_eq!(messages(&there.store.events(first, 9)), ["b"]);

    // Redis has lost the log. Nobody knows whether others have appended events to it meanwhile.
    server.restart();
    here.wait_healthy().await;
    there.wait_healthy().await;
    there.store.append_events(vec![event(Some(1), "c")]).await.unwrap();
    let page = wait_message(&*here.store, last, "c").await;
    assert_eq!((messages(&page), page.gap), (vec!["c"], true));
    let late = TestReplica::joined(server.settings()).await;
    let page = late.store.events(last, 9);
    assert_eq!((messages(&page), page.gap), (vec!["c"], true));
    assert!(!late.store.events(page.events[0].position, 9).gap);
}

#[tokio::test]
async fn replica_that_joins_has_the_whole_log() {
    let Some(server) = redis() else { return };
    let here = TestReplica::joined(server.settings()).await;
    let events = (0..450).map(|number| event(Some(number % 9), &number.to_string()));
    here.store.append_events(events.collect()).await.unwrap();
    wait_message(&*here.store, EventPosition::START, "449").await;
    let late = TestReplica::joined(server.settings()).await;
    assert_eq!(
        late.store.events(EventPosition::START, usize::MAX),
        here.store.events(EventPosition::START, usize::MAX)
    );
    let ttl: i64 = server.run("PTTL {kas}:event-log").await;
    assert!((1..=7 * 86_400_000).contains(&ttl), "{ttl}");
}

async fn add(server: &Server, id: &str, fields: &[&[u8]]) {
    let mut cmd = redis::cmd("XADD");
    cmd.arg("{kas}:event-log").arg(id).arg(fields);
    let _: redis::Value = server.run_cmd(cmd).await;
}

#[tokio::test]
async fn unusable_values_of_the_log_are_skipped_and_counted() {
    let Some(server) = redis() else { return };
    let long = vec![b'x'; 1 << 20];
    let valid = br#"[1,{"time":"2026-11-20T13:00:00Z","kind":"of a later version","message":"a\u0007b","severity":"info"}]"#;
    add(&server, "1-1", &[b"k", b"1", b"e", b"garbage"]).await;
    add(&server, "1-2", &[b"k", b"2", b"e", b"[2,{}]"]).await;
    add(&server, "1-3", &[b"k", b"3", b"e", &long]).await;
    add(&server, "1-4", &[b"k", &long, b"e", valid]).await;
    add(&server, "1-5", &[b"\xff", b"\xff"]).await;
    add(&server, "1-6", &[b"k", b"4", b"s", b"not/a source", b"e", valid]).await;
    for number in 7..300 {
        add(&server, &format!("1-{number}"), &[b"k", b"5", b"e", b"[1]"]).await;
    }
    server.run::<redis::Value>("SET {kas}:event-log:removed \u{fffd}").await;
    let here = TestReplica::joined(server.settings()).await;
    let page = here.store.events(EventPosition::START, 9);
    assert_eq!(messages(&page), ["a b"]);
    assert_eq!(page.events[0].event.content.kind, EventKind::Other);
    assert!(here.store.metrics().rejected.get() > 250);
    assert_eq!(here.store.metrics().connections.get(), 1, "the first connection stays in use");

    // Keys of other types are replaced.
    for key in
        ["{kas}:event-log", "{kas}:event-log:keys", "{kas}:event-log:removed", "{kas}:event-log:source:7"]
    {
        server.run::<redis::Value>(&format!("DEL {key}")).await;
        server.run::<redis::Value>(&format!("ZADD {key} 1 a")).await;
    }
    let states = ["states", "reported", "origins"].map(|kind| format!("{{kas}}:event-log:{kind}:7"));
    for key in states.iter().map(String::as_str).chain(["{kas}:event-cursors"]) {
        server.run::<redis::Value>(&format!("SET {key} a")).await;
    }
    let origin = Some(AgentEventId { instance: InstanceId::random(), sequence: 1 });
    let real = NewEvent { origin, ..with_state(7, "real", "bad", false) };
    here.store.append_events(vec![real]).await.unwrap();
    let of_kas = degraded(7, StateScope::Agent, "presence", "of kas");
    here.store.append_events(vec![of_kas]).await.unwrap();
    let page = wait_message(&*here.store, EventPosition::START, "of kas").await;
    assert_eq!(messages(&page), ["real", "of kas"], "the event of 1970 is too old");
    let claim = CursorRequest::Claim(EventPosition { millis: 9, sequence: 0 });
    assert!(here.store.event_cursor("hook", here.id, claim).await.unwrap().is_some());
    for forged in ["x", "00 99999999999999999 1-1", " 1 -"] {
        let mut cmd = redis::cmd("HSET");
        cmd.arg("{kas}:event-cursors").arg("hook").arg(forged);
        server.run_cmd::<redis::Value>(cmd).await;
        assert!(here.store.event_cursor("hook", here.id, claim).await.unwrap().is_some(), "{forged}");
    }
    assert_eq!(here.store.metrics().connections.get(), 1);
}
