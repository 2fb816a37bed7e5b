//! The stream of a tab of the web page: the list of agents and watches of several agents over one response.
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use access::{Identity, kill_switch::file};
use agentk_core::Services;
use bytes::{Buf as _, Bytes, BytesMut};
use futures_util::{StreamExt as _, stream};
use http::{Method, Request, Response, StatusCode};
use http_body::Frame;
use http_body_util::{BodyExt as _, StreamBody};
use hyper::body::Incoming;
use kas_testing::{
    fleet::TestFleet,
    world::{RunningAgent, World, text},
};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::{
    sync::broadcast,
    time::{Instant, sleep, timeout},
};
use tunnel::Body;

use crate::{
    audit::{audit, lines},
    web::{Browser, with_page},
};

const LIVE: &str = "/web/v1/live";

/// The service `graph` of an agent, whose events the test sends.
#[derive(Clone)]
struct Graph {
    events: broadcast::Sender<&'static str>,
    /// The URIs of the watches so far.
    asked: Arc<Mutex<Vec<String>>>,
}

impl Graph {
    fn new() -> Self {
        Self { events: broadcast::Sender::new(16), asked: Arc::default() }
    }

    fn services(&self) -> Services {
        let graph = self.clone();
        Services::new().with_fn("graph", move |request: Request<Body>| {
            let graph = graph.clone();
            async move {
                assert_eq!(request.headers()["accept-encoding"], "gzip");
                assert!(!request.headers().contains_key("cookie"), "the agent receives the session");
                graph.asked.lock().push(request.uri().to_string());
                let events = stream::unfold(graph.events.subscribe(), async |mut events| {
                    let event = events.recv().await.ok()?;
                    Some((Ok::<_, std::io::Error>(Frame::data(Bytes::from_static(event.as_bytes()))), events))
                });
                let first = stream::iter([Ok(Frame::data(Bytes::from_static(b"begin\n")))]);
                Response::new(Body::new(StreamBody::new(first.chain(events))))
            }
        })
    }
}

/// A frame of the stream.
#[derive(Debug, PartialEq)]
enum Event {
    Alive,
    Agents(Value),
    Begin(u8),
    Data(u8, String),
    End(u8, Value),
    Reconnect,
}

/// Reads the frames of a stream.
struct Live {
    body: Incoming,
    buffer: BytesMut,
}

impl Live {
    async fn open(browser: &Browser, request: &Value) -> Self {
        let response = ask(browser, request).await;
        assert_eq!(response.status(), StatusCode::OK);
        Self { body: response.into_body(), buffer: BytesMut::new() }
    }

    /// Returns the next frame, or `None` if the stream has ended or failed.
    async fn next(&mut self) -> Option<Event> {
        loop {
            if let Some(length) = self.buffer.get(2..6) {
                let length = u32::from_be_bytes(length.try_into().unwrap()) as usize;
                if self.buffer.len() >= 6 + length {
                    let (kind, watch) = (self.buffer[0], self.buffer[1]);
                    self.buffer.advance(6);
                    let payload = self.buffer.split_to(length);
                    let json = || serde_json::from_slice(&payload).unwrap();
                    return Some(match kind {
                        0 => Event::Alive,
                        1 => Event::Agents(json()),
                        2 => Event::Begin(watch),
                        3 => Event::Data(watch, String::from_utf8(payload.to_vec()).unwrap()),
                        4 => Event::End(watch, json()),
                        5 => Event::Reconnect,
                        other => panic!("an unknown kind: {other}"),
                    });
                }
            }
            let frame = self.body.frame().await?.ok()?;
            self.buffer.extend_from_slice(&frame.into_data().unwrap());
        }
    }

    /// Returns the next frame for which `find` returns something. Others are left out.
    async fn wait_for<T>(&mut self, find: impl Fn(Event) -> Option<T>) -> T {
        let found = timeout(Duration::from_secs(120), async {
            loop {
                let event = self.next().await.expect("the stream has ended");
                if let Some(found) = find(event) {
                    return found;
                }
            }
        });
        found.await.expect("the frame has not arrived")
    }

    async fn data(&mut self, watch: u8, text: &str) {
        self.wait_for(|event| (event == Event::Data(watch, text.to_owned())).then_some(())).await;
    }

    async fn end_of(&mut self, watch: u8) -> Value {
        self.wait_for(|event| match event {
            Event::End(which, failure) if which == watch => Some(failure),
            _ => None,
        })
        .await
    }

    async fn state_of(&mut self, agent: &str, state: &str) {
        self.wait_for(|event| match event {
            Event::Agents(list) => {
                let agents = list["agents"].as_array().unwrap();
                agents.iter().any(|found| found["name"] == agent && found["state"] == state).then_some(())
            }
            _ => None,
        })
        .await;
    }

    /// Waits until the stream has ended.
    async fn ended(&mut self) {
        timeout(Duration::from_secs(5), async { while self.next().await.is_some() {} })
            .await
            .expect("the stream goes on");
    }
}

async fn ask(browser: &Browser, request: &Value) -> Response<Incoming> {
    let headers = [("kas-web", "1"), ("sec-fetch-site", "same-origin"), ("accept-encoding", "gzip, br")];
    browser.send(Method::POST, LIVE, &request.to_string(), &headers).await
}

fn watches(agents: &[&str]) -> Value {
    let watches: Vec<Value> = agents.iter().map(|agent| json!({"agent": agent})).collect();
    json!({"agents": true, "watches": watches})
}

/// Returns a browser that is logged in, and the agents `prod` and `test` with these services.
async fn two_agents(prod: Services, test: Services) -> (Browser, RunningAgent, RunningAgent) {
    let mut browser = Browser::new();
    let token = browser.world.add_second_agent();
    let mut other = browser.world.clone();
    other.agent_token = token;
    let agents = (browser.world.start_agent(prod), other.start_agent(test));
    browser.world.tunnels(4).await;
    browser.log_in().await;
    (browser, agents.0, agents.1)
}

/// An agent that does not answer, and nothing else, waits.
#[tokio::test(start_paused = true)]
async fn agent_that_stalls_delays_no_other_one() {
    let stalled = Services::new().with_fn("graph", async |_| std::future::pending().await);
    let test = Graph::new();
    let (browser, _prod, _test) = two_agents(stalled, test.services()).await;
    let mut live = Live::open(&browser, &watches(&["prod", "test"])).await;
    live.data(1, "begin\n").await;
    for event in ["one\n", "two\n"] {
        test.events.send(event).unwrap();
        live.data(1, event).await;
    }
    live.wait_for(|event| (event == Event::Alive).then_some(())).await;
    test.events.send("alive\n").unwrap();
    let failure = live.end_of(0).await;
    assert_eq!((&failure["status"], &failure["request_id"]), (&json!(0), &Value::Null), "{failure}");
    test.events.send("three\n").unwrap();
    live.data(1, "three\n").await;
}

/// The name of the agent is encoded in no way that kas does not decode, and the page may encode it as it likes.
#[tokio::test(start_paused = true)]
async fn agent_with_a_hyphen_in_its_name_is_followed() {
    let (mut browser, graph) = (Browser::new(), Graph::new());
    browser.world.rename_agent("edge-berlin");
    let _agent = browser.world.agent(graph.services()).await;
    browser.log_in().await;
    let mut live = Live::open(&browser, &watches(&["edge-berlin"])).await;
    live.state_of("edge-berlin", "connected").await;
    live.data(0, "begin\n").await;
    for (path, reason) in [
        ("/agents/edge%2Dberlin/absent/v1", "unknown-service"),
        ("/agents/edge%2Fberlin/absent/v1", "unknown-agent"),
    ] {
        assert_eq!(browser.get(path).await.headers()["kas-error"], reason, "{path}");
    }
    assert_eq!(browser.get("/web/v1/agents/edge%2dberlin").await.status(), 200);
}

#[tokio::test(start_paused = true)]
async fn agent_that_disconnects_ends_its_watch_alone() {
    let (prod, test) = (Graph::new(), Graph::new());
    let (browser, agent, _test) = two_agents(prod.services(), test.services()).await;
    let mut live = Live::open(&browser, &watches(&["prod", "test"])).await;
    live.state_of("prod", "connected").await;
    agent.kill();
    let failure = live.end_of(0).await;
    let begun = Instant::now();
    assert!(failure["message"].as_str().unwrap().contains("ended"), "{failure}");
    live.state_of("prod", "away").await;
    assert!(begun.elapsed() < Duration::from_secs(3), "a change of a route is pushed: {:?}", begun.elapsed());
    test.events.send("still here\n").unwrap();
    live.data(1, "still here\n").await;
    let _again = browser.world.start_agent(prod.services());
    live.state_of("prod", "connected").await;
}

#[tokio::test(start_paused = true)]
async fn end_of_the_session_ends_the_stream() {
    for revoked in [true, false] {
        let (prod, test) = (Graph::new(), Graph::new());
        let (browser, _prod, _test) = two_agents(prod.services(), test.services()).await;
        let mut live = Live::open(&browser, &watches(&["prod", "test"])).await;
        live.data(0, "begin\n").await;
        if revoked {
            let nobody = "agents: [{id: 1, name: prod, tokens: []}]\ncallers: []";
            browser
                .world
                .kas
                .identities
                .replace(Identity::parse(Path::new("identity.yaml"), nobody).unwrap());
        } else {
            assert_eq!(browser.page(Method::DELETE, "/web/v1/session").await.status(), 204);
        }
        live.ended().await;
        let refused = ask(&browser, &watches(&[])).await;
        assert_eq!(
            (refused.status(), &refused.headers()["kas-error"]),
            (StatusCode::UNAUTHORIZED, &"unauthorized".parse().unwrap())
        );
        assert_eq!(
            browser.world.kas.callers.observers.metrics.service(&"graph".parse().unwrap()).in_flight.get(),
            0
        );
    }
}

#[tokio::test(start_paused = true)]
async fn kill_switch_ends_the_watch_of_its_agent() {
    let (prod, test) = (Graph::new(), Graph::new());
    let (browser, _prod, _test) = two_agents(prod.services(), test.services()).await;
    let mut live = Live::open(&browser, &watches(&["prod", "test"])).await;
    live.data(0, "begin\n").await;
    let rules =
        file::parse(Path::new("disabled.yaml"), "rules: [{agent: prod, reason: incident 7}]").unwrap();
    browser.world.kas.callers.kill_switch.set_file(rules);
    live.end_of(0).await;
    test.events.send("still here\n").unwrap();
    live.data(1, "still here\n").await;
    let mut next = Live::open(&browser, &watches(&["prod"])).await;
    let failure = next.end_of(0).await;
    assert_eq!((&failure["status"], &failure["reason"]), (&json!(503), &json!("disabled")));
    assert!(failure["message"].as_str().unwrap().contains("incident 7"), "{failure}");
}

/// The decisions, the audit log and the limits are those of every other request.
#[tokio::test(start_paused = true)]
async fn caller_receives_nothing_of_an_agent_that_it_may_not_use() {
    let test = Graph::new();
    let mut browser = Browser::new();
    let token = browser.world.add_second_agent();
    let mut other = browser.world.clone();
    other.agent_token = token.clone();
    let _test = other.agent(test.services()).await;
    let sink = audit(&browser.world);
    let hash = access::token::TokenHash::of(&token);
    let rights = browser.world.identity_file("services: [graph]");
    let rights = rights.replacen("}]\n", &format!("}}, {{id: 2, name: test, tokens: ['{hash}']}}]\n"), 1);
    browser.world.kas.identities.replace(Identity::parse(Path::new("identity.yaml"), &rights).unwrap());
    browser.log_in().await;
    let mut live = Live::open(&browser, &watches(&["test", "2", "none", "prod/kubernetes/api"])).await;
    for watch in 0..4 {
        let failure = live.end_of(watch).await;
        assert!([403, 404].contains(&failure["status"].as_u64().unwrap()), "{watch}: {failure}");
        assert!(failure["request_id"].is_string(), "{failure}");
    }
    let mut live = Live::open(&browser, &watches(&[])).await;
    let list = live.wait_for(|event| match event {
        Event::Agents(list) => Some(list),
        _ => None,
    });
    let list = list.await;
    assert_eq!(list["agents"].as_array().unwrap().len(), 1, "{list}");
    assert!(test.asked.lock().is_empty());
    let lines = lines(&browser.world, &sink).await;
    let refused: Vec<_> = lines.iter().filter(|line| line["path"] == "/agents/test/graph/v1/watch").collect();
    assert_eq!(
        (refused.len(), &refused[0]["caller"], &refused[0]["decision"]),
        (1, &json!("me"), &json!("deny")),
        "{lines:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn stream_continues_at_another_replica() {
    let (fleet, graph) = (TestFleet::with(2, with_page), Graph::new());
    for replica in &fleet.replicas {
        replica.set_caller_rights("services: ['*']");
    }
    let _agent = fleet.agent(0, graph.services()).await;
    let mut first = Browser::of(fleet.replicas[0].clone());
    first.log_in().await;
    let mut live = Live::open(&first, &watches(&["prod"])).await;
    live.data(0, "begin\n").await;
    fleet.replicas[0].kas.callers.connections.group.drain();
    live.wait_for(|event| (event == Event::Reconnect).then_some(())).await;
    live.ended().await;

    let mut second = Browser::of(fleet.replicas[1].clone());
    second.log_in().await;
    let request = json!({"watches": [{"agent": "prod", "query": "kind=Pod", "since": "1b2c.1.4711"}]});
    let mut live = Live::open(&second, &request).await;
    live.data(0, "begin\n").await;
    graph.events.send("delta\n").unwrap();
    live.data(0, "delta\n").await;
    assert_eq!(*graph.asked.lock(), ["/v1/watch?", "/v1/watch?kind=Pod&since=1b2c.1.4711"]);
}

/// kas reads from an agent only what the browser takes.
#[tokio::test(start_paused = true)]
async fn browser_that_does_not_read_stops_the_agents() {
    let sent = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&sent);
    let flood = Services::new().with_fn("graph", move |_| {
        let counted = Arc::clone(&counted);
        let frames = stream::repeat_with(move || {
            counted.fetch_add(16 << 10, Relaxed);
            Ok::<_, std::io::Error>(Frame::data(Bytes::from_static(&[b'x'; 16 << 10])))
        });
        async move { Response::new(Body::new(StreamBody::new(frames))) }
    });
    let (browser, _prod, _test) = two_agents(flood, Graph::new().services()).await;
    let live = Live::open(&browser, &watches(&["prod", "test"])).await;
    sleep(Duration::from_secs(5)).await;
    let before = sent.load(Relaxed);
    assert!((1..8 << 20).contains(&before), "{before}");
    sleep(Duration::from_secs(5)).await;
    assert_eq!(sent.load(Relaxed), before);
    drop(live);
}

#[tokio::test(start_paused = true)]
async fn request_for_a_stream_is_checked() {
    let mut browser = Browser::of(World::with(|config| {
        with_page(config);
        config.agent.kubernetes_api.limits.max_requests_per_caller = 2;
    }));
    assert_eq!(ask(&browser, &watches(&[])).await.status(), 401);
    browser.log_in().await;
    assert_eq!(browser.get(LIVE).await.status(), 405);
    for (request, part) in [
        (json!(7), "invalid type"),
        (json!({"watch": []}), "unknown field"),
        (json!({"watches": [{"agent": "prod", "query": "a b\r\n"}]}), "no part of a URL"),
        (watches(&["prod"; 65]), "at most 64"),
        (watches(&["prod"; 9]), "at most 8 watches of one agent"),
        (json!({"watches": [], "x": "x".repeat(70 << 10)}), "too long"),
    ] {
        let response = ask(&browser, &request).await;
        assert_eq!(response.status(), 400, "{part}");
        let text = text(response).await;
        assert!(text.contains(part), "{text}");
    }
    let form = browser.send(Method::POST, LIVE, "{}", &[]).await;
    assert_eq!(form.status(), 403, "a form of another site");
    let streams = [Live::open(&browser, &watches(&[])).await, Live::open(&browser, &watches(&[])).await];
    let limited = ask(&browser, &watches(&[])).await;
    assert_eq!(
        (limited.status(), &limited.headers()["kas-error"]),
        (StatusCode::TOO_MANY_REQUESTS, &"too-many-requests".parse().unwrap())
    );
    drop(streams);
    let again = async {
        while ask(&browser, &watches(&[])).await.status() != 200 {
            sleep(Duration::from_millis(1)).await
        }
    };
    timeout(Duration::from_secs(5), again).await.expect("the streams have ended");
}
