//! Events: what happens to agents and in their clusters, at all replicas, for programs and callers.
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::{Duration, SystemTime},
};

use access::kill_switch::file;
use agentk_core::{Agent, AgentToken, Dial, DialError, EventLog, Observability, Services, SessionConfig};
use agentk_gitlab::gitlab_protocol;
use bytes::Bytes;
use futures_util::{future::join_all, stream};
use http::{Request, Response, StatusCode};
use http_body::Frame;
use http_body_util::{BodyExt as _, StreamBody};
use hyper::body::Incoming;
use kas_testing::{
    fleet::TestFleet,
    internal_api::{self, get, valid_request},
    world::{RunningAgent, World, text},
};
use proto::{
    InstanceId,
    events::{
        AgentEvent, AgentEventId, AgentEventLine, Event, EventContent, EventKind, EventSubject,
        NewAgentEvent, Severity,
    },
};
use serde_json::Value;
use store::NewEvent;
use tokio::{
    io::DuplexStream,
    time::{sleep, timeout},
};
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};
use tunnel::Body;

use crate::set_configuration::Configuration;

/// Long enough for an agent to be gone.
const GONE: Duration = Duration::from_secs(30);

/// Runs the tasks of a replica that notice and report events.
pub(crate) fn run_events(world: &World) -> AbortOnDropHandle<()> {
    let tasks = world.kas.features.background_tasks(&world.kas.agents);
    AbortOnDropHandle::new(tokio::spawn(async move { drop(join_all(tasks).await) }))
}

pub(crate) async fn list(world: &World, query: &str) -> Vec<Value> {
    let response = get(world, &format!("/api/v1/events{query}")).await;
    assert_eq!(response.status(), StatusCode::OK, "{query}");
    let list: Value = serde_json::from_str(&text(response).await).unwrap();
    assert_eq!((&list["missing"], &list["reset"]), (&Value::Null, &Value::Bool(false)));
    list["events"].as_array().unwrap().clone()
}

pub(crate) fn messages(events: &[Value]) -> Vec<&str> {
    events.iter().map(|event| event["message"].as_str().unwrap()).collect()
}

fn kinds(events: &[Value]) -> Vec<&str> {
    events.iter().map(|event| event["kind"].as_str().unwrap()).collect()
}

pub(crate) fn alert(message: &str) -> EventContent {
    EventContent::new(EventKind::Alert, Severity::Warning, message)
}

/// The replicas to which an agentk opens its tunnels, one after the other.
#[derive(Clone)]
pub(crate) struct InTurn {
    pub(crate) worlds: Vec<World>,
    pub(crate) next: Arc<AtomicUsize>,
}

impl Dial for InTurn {
    type Io = DuplexStream;

    async fn dial(&self) -> Result<DuplexStream, DialError> {
        self.worlds[self.next.fetch_add(1, Relaxed) % self.worlds.len()].dial().await
    }
}

/// An agentk with events, whose two tunnels end at these replicas.
pub(crate) async fn agent_with(worlds: &[&World], log: &EventLog) -> AbortOnDropHandle<()> {
    agent_with_services(worlds, log, Services::new()).await
}

/// The same with other services, too.
pub(crate) async fn agent_with_services(
    worlds: &[&World],
    log: &EventLog,
    services: Services,
) -> AbortOnDropHandle<()> {
    let before: Vec<i64> = worlds.iter().map(|world| world.kas.agents.metrics.tunnels.get()).collect();
    let token = AgentToken::value(worlds[0].agent_token.clone());
    let config =
        SessionConfig { instance: log.instance(), ..SessionConfig::new("ws://kas".parse().unwrap(), token) };
    let dial = InTurn { worlds: worlds.iter().map(|&world| world.clone()).collect(), next: Arc::default() };
    let services = services.with_events(log);
    let agent = Agent::new(config, dial, services, Observability::default(), gitlab_protocol);
    let task = AbortOnDropHandle::new(tokio::spawn(agent.run(CancellationToken::new())));
    for (world, before) in worlds.iter().zip(before) {
        world.tunnels(before + 2 / worlds.len() as i64).await;
    }
    task
}

/// A reader of server-sent events.
struct Reader {
    body: Incoming,
    buffer: String,
}

impl Reader {
    async fn open(world: &World, query: &str, last: Option<&str>) -> Self {
        let mut request = valid_request(&format!("/api/v1/events?watch{query}"));
        if let Some(last) = last {
            request.headers_mut().insert("last-event-id", last.parse().unwrap());
        }
        Self::of(internal_api::send(world, request).await)
    }

    fn of(response: Response<Incoming>) -> Self {
        assert_eq!(response.status(), StatusCode::OK);
        assert_eq!(response.headers()["content-type"], "text/event-stream");
        Self { body: response.into_body(), buffer: String::new() }
    }

    /// Returns the id and the message of the next event, or `None` if the stream has ended.
    async fn next(&mut self) -> Option<(String, String)> {
        loop {
            while let Some((part, rest)) = self.buffer.split_once("\n\n") {
                let field =
                    |name: &str| part.lines().find_map(|line| line.strip_prefix(name)).map(str::to_owned);
                let (id, data) = (field("id: "), field("data: "));
                self.buffer = rest.to_owned();
                if let (Some(id), Some(data)) = (id, data) {
                    let data: Value = serde_json::from_str(&data).unwrap();
                    assert_eq!(data["id"], *id);
                    return Some((id, data["message"].as_str().unwrap().to_owned()));
                }
            }
            let frame = timeout(Duration::from_secs(60), self.body.frame()).await.expect("a sign of life");
            let data = frame?.ok()?.into_data().unwrap();
            self.buffer.push_str(str::from_utf8(&data).unwrap());
        }
    }
}

#[tokio::test(start_paused = true)]
async fn agent_comes_and_goes_once_for_all_replicas() {
    let fleet = TestFleet::new(2);
    let _running: Vec<_> = fleet.replicas.iter().map(run_events).collect();
    let (here, there) = (&fleet.replicas[0], &fleet.replicas[1]);
    let first = fleet.agent(0, Services::new()).await;
    sleep(GONE).await;
    let second = fleet.agent(1, Services::new()).await;
    sleep(GONE).await;
    let connected = list(here, "").await;
    assert_eq!(kinds(&connected), ["agent-connected"]);
    assert_eq!((&connected[0]["agent"]["id"], &connected[0]["agent"]["name"]), (&1.into(), &"prod".into()));
    assert_eq!(connected[0]["details"]["version"], env!("CARGO_PKG_VERSION"));

    // One of two replicas loses its tunnels, and then the agent is restarted within some seconds.
    first.kill();
    here.cut_tunnels();
    sleep(GONE).await;
    second.kill();
    there.cut_tunnels();
    sleep(Duration::from_secs(4)).await;
    let again = fleet.agent(0, Services::new()).await;
    sleep(GONE).await;
    assert_eq!(kinds(&list(there, "").await), ["agent-connected"], "it was never gone");

    again.kill();
    here.cut_tunnels();
    sleep(GONE).await;
    let _last = fleet.agent(1, Services::new()).await;
    sleep(GONE).await;
    let events = list(there, "").await;
    assert_eq!(kinds(&events), ["agent-connected", "agent-disconnected", "agent-connected"]);
    assert_eq!(events[1]["severity"], "warning");
    assert_eq!(events, list(here, "").await, "every replica has the same events");
}

#[tokio::test(start_paused = true)]
async fn event_of_an_agent_with_tunnels_to_two_replicas_is_one_event() {
    let fleet = TestFleet::new(2);
    let log = EventLog::new(InstanceId::random());
    log.emit(alert("before the tunnel"));
    let (here, there) = (&fleet.replicas[0], &fleet.replicas[1]);
    let _agent = agent_with(&[here, there], &log).await;
    sleep(Duration::from_secs(1)).await;
    (0..50).for_each(|number| log.emit(alert(&number.to_string())));
    sleep(Duration::from_secs(1)).await;
    // The events that happen while one replica has no tunnel arrive through the other one.
    here.cut_tunnels();
    log.emit(alert("one tunnel"));
    sleep(Duration::from_secs(20)).await;
    log.emit(alert("two tunnels"));
    sleep(Duration::from_secs(1)).await;
    let mut expected = vec!["before the tunnel".to_owned()];
    expected.extend((0..50).map(|number| number.to_string()));
    expected.extend(["one tunnel", "two tunnels"].map(str::to_owned));
    for world in [here, there] {
        assert_eq!(messages(&list(world, "?kind=alert").await), expected);
    }
}

#[tokio::test(start_paused = true)]
async fn reader_that_continues_at_another_replica_misses_nothing_and_reads_nothing_twice() {
    let fleet = TestFleet::new(2);
    let log = EventLog::new(InstanceId::random());
    let _agent = agent_with(&[&fleet.replicas[0]], &log).await;
    let mut reader = Reader::open(&fleet.replicas[0], "&kind=alert", None).await;
    let (mut received, mut last) = (Vec::new(), None::<String>);
    for round in 0..10 {
        for number in 0..7 {
            log.emit(alert(&format!("{round}.{number}")));
            log.emit(EventContent::new(EventKind::Sync, Severity::Info, "not selected"));
        }
        for _ in 0..4 {
            let (id, message) = reader.next().await.unwrap();
            received.push(message);
            last = Some(id);
        }
        // The others are not read on this connection.
        reader = Reader::open(&fleet.replicas[(round + 1) % 2], "&kind=alert", last.as_deref()).await;
    }
    while received.len() < 70 {
        received.push(reader.next().await.unwrap().1);
    }
    let expected: Vec<String> =
        (0..10).flat_map(|round| (0..7).map(move |number| format!("{round}.{number}"))).collect();
    assert_eq!(received, expected);
}

#[tokio::test(start_paused = true)]
async fn stream_ends_by_itself_and_when_the_replica_stops() {
    let world = World::new();
    let mut reader = Reader::open(&world, "", None).await;
    let start = tokio::time::Instant::now();
    assert_eq!(reader.next().await, None);
    assert!((500..700).contains(&start.elapsed().as_secs()), "{:?}", start.elapsed());
    let mut reader = Reader::open(&world, "", None).await;
    world.kas.agents.connections.draining.cancel();
    assert_eq!(timeout(Duration::from_secs(1), reader.next()).await.unwrap(), None);
}

#[tokio::test(start_paused = true)]
async fn configuration_errors_are_events_until_the_configuration_is_valid() {
    let (world, configuration) = (World::new(), Configuration::default());
    let _running = run_events(&world);
    configuration.set("observability: {}");
    world.kas.agents.configuration.add_source(Arc::new(configuration.clone()));
    let _agent = world.agent(Services::new()).await;
    let wake = async || {
        world.kas.agents.configuration.wake("group/agents");
        sleep(Duration::from_secs(20)).await;
    };
    wake().await;
    assert!(list(&world, "?kind=configuration-error&kind=configuration-valid").await.is_empty());
    configuration.set("observability: {login: {}}");
    wake().await;
    wake().await;
    configuration.set("graph: {}");
    wake().await;
    let events = list(&world, "?kind=configuration-error&kind=configuration-valid").await;
    assert_eq!(kinds(&events), ["configuration-error", "configuration-valid"]);
    assert!(
        events[0]["message"]
            .as_str()
            .unwrap()
            .contains("config.yaml:1:17: observability.login: unknown field")
    );
    assert_eq!((&events[0]["severity"], &events[0]["agent"]["name"]), (&"error".into(), &"prod".into()));
}

#[tokio::test(start_paused = true)]
async fn rules_of_the_kill_switch_are_events() {
    let fleet = TestFleet::new(2);
    let _running: Vec<_> = fleet.replicas.iter().map(run_events).collect();
    sleep(GONE).await;
    let set = async |text: &str| {
        for world in &fleet.replicas {
            world.kas.callers.kill_switch.set_file(file::parse(Path::new("disabled.yaml"), text).unwrap());
        }
        sleep(GONE).await;
    };
    set("rules: [{agent: prod, reason: incident 7}]").await;
    set("rules: []").await;
    let events = list(&fleet.replicas[1], "").await;
    assert_eq!(
        messages(&events),
        ["requests are disabled: agent prod: incident 7", "no rule disables requests any more"]
    );
    assert_eq!((&events[0]["kind"], &events[0]["agent"]["name"]), (&"kill-switch".into(), &"prod".into()));
}

#[tokio::test(start_paused = true)]
async fn rules_that_return_are_events_and_a_restarted_replica_repeats_none() {
    let fleet = TestFleet::new(2);
    let (here, restarted) = (&fleet.replicas[0], &fleet.replicas[1]);
    let running = run_events(here);
    sleep(GONE).await;
    let set = async |rules: &[&str]| {
        let text = format!("rules: [{}]", rules.join(", "));
        for world in &fleet.replicas {
            world.kas.callers.kill_switch.set_file(file::parse(Path::new("disabled.yaml"), &text).unwrap());
        }
        sleep(GONE).await;
    };
    let (one, two) = ("{agent: prod, reason: one}", "{service: kubernetes, reason: two}");
    for rules in [&[one] as &[&str], &[one, two], &[], &[one], &[one, two], &[two]] {
        set(rules).await;
    }
    let events = list(here, "").await;
    let numbers: Vec<&str> = events.iter().map(|event| event["details"]["rules"].as_str().unwrap()).collect();
    assert_eq!(numbers, ["1", "2", "0", "1", "2", "1"]);
    assert_eq!(messages(&events)[3], messages(&events)[0], "requests are disabled again");
    drop(running);
    let _running = run_events(restarted);
    sleep(GONE).await;
    assert_eq!(list(restarted, "").await, events);
}

#[tokio::test(start_paused = true)]
async fn agent_that_comes_back_after_a_restart_of_the_replica_was_never_gone() {
    let world = World::new();
    let running = run_events(&world);
    let agent = world.agent(Services::new()).await;
    sleep(GONE).await;
    let presence = async || kinds(&list(&world, "?kind=agent-connected&kind=agent-disconnected").await).len();
    assert_eq!(presence().await, 1);
    drop(running);
    agent.kill();
    world.cut_tunnels();
    // Each event makes the replica read the log, in which the agent is connected.
    let _running = run_events(&world);
    sleep(Duration::from_secs(1)).await;
    let event = Event { time: SystemTime::now(), agent: None, content: alert("after the restart") };
    world.kas.events.emit(NewEvent::new("after the restart", event));
    sleep(GONE).await;
    let agent = world.agent(Services::new()).await;
    sleep(GONE * 2).await;
    assert_eq!(presence().await, 1);
    // Later, an agent that is away is gone.
    agent.kill();
    world.cut_tunnels();
    sleep(GONE).await;
    assert_eq!(presence().await, 2);
}

#[tokio::test(start_paused = true)]
async fn processes_of_two_agents_with_one_id_are_both_followed() {
    let world = World::new();
    let second = world.with_agent_token(world.add_second_agent());
    let instance = InstanceId::random();
    let (log, other) = (EventLog::new(instance), EventLog::new(instance));
    let _first = agent_with(&[&world], &log).await;
    let _second = agent_with(&[&second], &other).await;
    log.emit(alert("of prod"));
    sleep(Duration::from_secs(1)).await;
    other.emit(alert("of test"));
    sleep(Duration::from_secs(1)).await;
    assert_eq!(messages(&list(&world, "?kind=alert").await), ["of prod", "of test"]);
}

#[tokio::test(start_paused = true)]
async fn flood_of_missed_events_is_read_slowly_and_does_not_overflow() {
    let world = World::new();
    let missed = format!("{{\"missed\":{}}}\n", u64::MAX);
    let _agent = hostile(&world, move |_| vec![Bytes::from(missed.clone()); 500]).await;
    sleep(Duration::from_secs(10)).await;
    let missed = world.metric("kas_agent_events_total{result=\"missed\"}");
    assert!((100e6..120e6).contains(&missed), "{missed}");
}

#[tokio::test(start_paused = true)]
async fn caller_with_many_streams_leaves_places_for_others() {
    let world = World::new();
    let open = async || world.get("/agents/prod/events/v1/events?watch").await;
    let mut streams = Vec::new();
    for _ in 0..20 {
        streams.push(Reader::of(open().await));
    }
    let refused = open().await;
    assert_eq!(refused.status(), 429);
    assert!(text(refused).await.contains("20 streams of this caller"));
    let _operator = Reader::open(&world, "", None).await;
    streams.pop();
    sleep(Duration::from_secs(1)).await;
    assert_eq!(open().await.status(), 200);
}

fn line(instance: InstanceId, sequence: u64, event: impl Into<NewAgentEvent>) -> Bytes {
    let id = AgentEventId { instance, sequence };
    let event = AgentEvent { id, time: SystemTime::now(), event: event.into() };
    Bytes::from(serde_json::to_string(&AgentEventLine::Event(Box::new(event))).unwrap() + "\n")
}

#[tokio::test(start_paused = true)]
async fn event_with_an_id_of_another_process_ends_the_stream() {
    let world = World::new();
    let _agent = hostile(&world, |_| vec![line(InstanceId::random(), 1, alert("forged"))]).await;
    sleep(Duration::from_secs(20)).await;
    assert!(list(&world, "?kind=alert").await.is_empty());
    assert!(world.metric("kas_agent_events_total{result=\"invalid\"}") >= 1.0);
    assert_eq!(world.metric("kas_agent_events_total{result=\"accepted\"}"), 0.0);
}

/// An agent whose process sends these lines to each request for its events.
async fn hostile(
    world: &World,
    lines: impl Fn(InstanceId) -> Vec<Bytes> + Send + Sync + 'static,
) -> RunningAgent {
    let tunnels = Arc::clone(&world.kas.agents.tunnels);
    let services = Services::new().with_fn("agent-events", move |_: Request<Body>| {
        let lines = lines(tunnels.views()[0].handle().hello().instance);
        let frames = lines.into_iter().map(|line| Ok::<_, std::io::Error>(Frame::data(line)));
        let body = Body::new(StreamBody::new(stream::iter(frames.collect::<Vec<_>>())));
        std::future::ready(Response::new(body))
    });
    world.agent(services).await
}

#[tokio::test(start_paused = true)]
async fn hostile_events_are_bounded_and_name_the_agent_of_the_tunnel() {
    let world = World::new();
    let lines = |instance| {
        let forged = EventContent {
            kind: EventKind::KillSwitch,
            subject: EventSubject { name: "x".repeat(5000), ..EventSubject::default() },
            ..alert(&"\u{1b}[31m".repeat(1000))
        };
        let forged = line(instance, 1, forged);
        // An agent in the event is ignored.
        let text = String::from_utf8(forged.to_vec()).unwrap();
        let other = text.replacen("{\"event\":{", "{\"event\":{\"agent\":{\"id\":99,\"name\":\"other\"},", 1);
        assert_ne!(text, other);
        vec![Bytes::from(other), Bytes::from(format!("{{\"event\":{{\"message\":\"{}", "x".repeat(64 << 10)))]
    };
    let _agent = hostile(&world, lines).await;
    sleep(Duration::from_secs(60)).await;
    let events = list(&world, "").await;
    assert_eq!(events.len(), 1, "the same event is in the log once, however often it is sent");
    let event = &events[0];
    assert_eq!((&event["kind"], &event["agent"]["name"]), (&"other".into(), &"prod".into()));
    assert!(
        event["message"].as_str().unwrap().len() <= 512
            && event["subject"]["name"].as_str().unwrap().len() <= 253
    );
    assert!(!event.to_string().contains("\\u001b"));
    assert!(list(&world, "?agent=99").await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn flood_of_an_agent_is_read_slowly() {
    let world = World::new();
    let flood =
        |instance| (1..=500).map(|number| line(instance, number, alert(&number.to_string()))).collect();
    let _agent = hostile(&world, flood).await;
    sleep(Duration::from_secs(10)).await;
    let accepted = world.metric("kas_agent_events_total{result=\"accepted\"}");
    assert!((100.0..120.0).contains(&accepted), "{accepted}");
    assert!(world.metric("kas_agent_events_total{result=\"delayed\"}") >= 5.0);
    sleep(Duration::from_secs(450)).await;
    let events = list(&world, "?limit=500&kind=alert").await;
    assert_eq!(
        messages(&events),
        (1..=500).map(|number| number.to_string()).collect::<Vec<_>>(),
        "none is lost"
    );
}

#[tokio::test(start_paused = true)]
async fn process_that_continues_after_a_gap_is_followed() {
    let world = World::new();
    let lines = |instance| {
        let missed = Bytes::from("{\"missed\":7}\n");
        vec![
            line(instance, 1, alert("a")),
            missed,
            line(instance, 9, alert("b")),
            line(instance, 2, alert("late")),
        ]
    };
    let _agent = hostile(&world, lines).await;
    sleep(Duration::from_secs(1)).await;
    assert_eq!(messages(&list(&world, "?kind=alert").await), ["a", "b"]);
    assert_eq!(world.metric("kas_agent_events_total{result=\"missed\"}"), 7.0);
    assert!(world.metric("kas_agent_events_total{result=\"invalid\"}") >= 1.0);
    assert_eq!(world.kas.agents.tunnels.views().len(), 2, "the tunnels stay");
}

#[tokio::test(start_paused = true)]
async fn caller_reads_the_events_of_its_agents_with_a_right() {
    let world = World::new();
    let token = world.add_second_agent();
    let (log, other) = (EventLog::new(InstanceId::random()), EventLog::new(InstanceId::random()));
    let _agent = agent_with(&[&world], &log).await;
    let second = world.with_agent_token(token);
    let second = agent_with(&[&second], &other).await;
    log.emit(alert("of prod"));
    other.emit(alert("of test"));
    sleep(Duration::from_secs(1)).await;
    let read = async |path: &str| {
        let response = world.get(path).await;
        let status = response.status().as_u16();
        (status, serde_json::from_str::<Value>(&text(response).await).unwrap())
    };
    let (status, page) = read("/agents/prod/events/v1/events").await;
    assert_eq!((status, messages(page["events"].as_array().unwrap())), (200, vec!["of prod"]));
    let (_, page) = read("/agents/test/events/v1/events?kind=alert").await;
    assert_eq!(messages(page["events"].as_array().unwrap()), ["of test"]);
    let (_, page) = read("/agents/prod/events/v1/events?agent=test").await;
    assert!(page["events"].as_array().unwrap().is_empty(), "another agent cannot be selected");
    // The agent need not be connected.
    drop(second);
    assert_eq!(read("/agents/2/events/v1/events").await.0, 200);
    for (path, status, reason) in [
        ("/agents/prod/events/v1/event", 404, "unknown-path"),
        ("/agents/prod/events/v1/events?kind=x", 400, "bad-request"),
        ("/agents/none/events/v1/events", 404, "unknown-agent"),
        ("/agents/prod/agent-events/v1/events", 404, "unknown-path"),
    ] {
        let (found, body) = read(path).await;
        assert_eq!((found, &body["error"]), (status, &reason.into()), "{path}: {body}");
    }
    world.set_caller_rights("services: [kubernetes]");
    assert_eq!(read("/agents/prod/events/v1/events").await.0, 403);
}

#[tokio::test(start_paused = true)]
async fn stream_of_a_caller_ends_with_its_rights_and_with_the_kill_switch() {
    let world = World::new();
    world.set_caller_rights("services: [events]");
    let log = EventLog::new(InstanceId::random());
    let _agent = agent_with(&[&world], &log).await;
    let open = async || Reader::of(world.get("/agents/prod/events/v1/events?watch").await);
    let mut reader = open().await;
    log.emit(alert("a"));
    assert_eq!(reader.next().await.unwrap().1, "a");
    let rules = file::parse(Path::new("disabled.yaml"), "rules: [{service: events, reason: drill}]").unwrap();
    world.kas.callers.kill_switch.set_file(rules);
    assert_eq!(timeout(Duration::from_secs(1), reader.next()).await.unwrap(), None);
    assert_eq!(world.get("/agents/prod/events/v1/events").await.status(), 503);
    log.emit(alert("while disabled"));
    sleep(Duration::from_secs(20)).await;
    assert_eq!(messages(&list(&world, "?kind=alert").await), ["a"], "the agent is not followed");

    world.kas.callers.kill_switch.set_file(Vec::new());
    sleep(Duration::from_secs(20)).await;
    let mut reader = Reader::of(world.get("/agents/prod/events/v1/events?watch&after=0-0").await);
    assert_eq!(reader.next().await.unwrap().1, "a");
    assert_eq!(reader.next().await.unwrap().1, "while disabled");
    world.revoke_caller();
    assert_eq!(timeout(Duration::from_secs(1), reader.next()).await.unwrap(), None);
}

#[tokio::test(start_paused = true)]
async fn events_need_a_token_and_a_valid_query() {
    let world = World::new();
    let without = Request::get("/api/v1/events").body(Body::empty()).unwrap();
    assert_eq!(internal_api::send(&world, without).await.status(), 401);
    for (path, expected) in [
        ("/api/v1/events?kind=x", "kind: \\\"x\\\" is not agent-connected"),
        ("/api/v1/events?after=x", "the id of an event"),
        ("/api/v1/events?project_id=7", "is not a parameter"),
    ] {
        let response = get(&world, path).await;
        assert_eq!(response.status(), 400, "{path}");
        let body = text(response).await;
        assert!(body.contains(expected), "{body}");
    }
    let mut request = valid_request("/api/v1/events?watch");
    request.headers_mut().insert("last-event-id", "x".parse().unwrap());
    assert_eq!(internal_api::send(&world, request).await.status(), 400);
    let mut delete = valid_request("/api/v1/events");
    *delete.method_mut() = http::Method::DELETE;
    assert_eq!(internal_api::send(&world, delete).await.status(), 405);
}
