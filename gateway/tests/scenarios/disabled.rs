//! The kill switch: rules disable requests, end streams, and are reported to agents.
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

use std::{path::Path, sync::Arc, time::Duration};

use access::kill_switch::{DisableRule, file};
use agentk_core::Services;
use http::{Request, Response, StatusCode, header::AUTHORIZATION};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use kas_testing::{
    fleet::TestFleet,
    world::{CALLER, World, endless, text},
};
use serde_json::Value;
use testing::logs::Logs;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::task::AbortOnDropHandle;
use tunnel::Body;

const PODS: &str = "/agents/prod/kubernetes/api/v1/pods";
const QUERY: &str = "/agents/prod/prometheus/api/v1/query";
const WATCH: &str = "/agents/prod/kubernetes/api/v1/pods?watch=1";

/// The time in which a change of the file has effect.
const BOUND: Duration = Duration::from_secs(3);

fn services() -> Services {
    let answer = async |request: Request<Body>| match request.uri().query() {
        Some("watch=1") => Response::new(endless("watching")),
        _ => Response::new(Body::from("done")),
    };
    Services::new().with_fn("kubernetes", answer).with_fn("prometheus", answer)
}

fn rules(text: &str) -> Vec<DisableRule> {
    file::parse(Path::new("disabled.yaml"), text).unwrap()
}

fn disable(world: &World, text: &str) {
    world.kas.callers.kill_switch.set_file(rules(text));
}

async fn watch(world: &World) -> Incoming {
    let mut watch = world.get(WATCH).await.into_body();
    watch.frame().await.unwrap().unwrap();
    watch
}

async fn assert_cut(mut watch: Incoming) {
    let end = timeout(BOUND, watch.frame()).await.expect("it ends");
    assert!(matches!(end, Some(Err(_))), "a caller must not take a part for the whole: {end:?}");
}

async fn assert_continues(watch: &mut Incoming) {
    assert!(timeout(Duration::from_secs(1), watch.frame()).await.is_err());
}

/// Sends a GET request to the observability listener.
async fn observe(world: &World, path: &str) -> (StatusCode, String) {
    let (near, far) = tokio::io::duplex(64 << 10);
    tokio::spawn(Arc::clone(&world.kas.admin).server().serve(far, CALLER, Arc::default()));
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(near)).await.unwrap();
    tokio::spawn(connection);
    let request = Request::get(path).header("host", "kas").body(Body::empty()).unwrap();
    let response = sender.send_request(request).await.unwrap();
    (response.status(), text(response).await)
}

#[tokio::test(start_paused = true)]
async fn each_kind_of_rule_refuses_the_requests_that_it_matches() {
    let world = World::new();
    let _agent = world.agent(services()).await;
    for (rule, pods, query) in [
        ("all: true", 503, 503),
        ("service: kubernetes", 503, 200),
        ("service: prometheus", 200, 503),
        ("agent: prod", 503, 503),
        ("agent: 1", 503, 503),
        ("agent: test", 200, 200),
        ("caller: me", 503, 503),
        ("caller: you", 200, 200),
        ("address: 192.0.2.1", 503, 503),
        ("address: 192.0.2.0/24", 503, 503),
        ("address: 198.51.100.0/24", 200, 200),
        ("agent: prod, service: kubernetes, caller: me, address: 192.0.2.1", 503, 200),
        ("agent: prod, caller: you", 200, 200),
        ("all: true, until: 2000-01-01T00:00:00Z", 200, 200),
    ] {
        disable(&world, &format!("rules: [{{{rule}, reason: an incident}}]"));
        for (path, expected) in [(PODS, pods), (QUERY, query)] {
            let response = world.get(path).await;
            assert_eq!(response.status(), expected, "{rule}: {path}");
            assert_eq!(response.headers().contains_key("kas-error"), expected == 503, "{rule}");
        }
    }
    disable(&world, "rules: []");
    assert_eq!(text(world.get(PODS).await).await, "done");
    assert_eq!(world.metric("kas_handshakes_total{reason=\"accepted\"}"), 2.0, "no tunnel was replaced");
}

#[tokio::test(start_paused = true)]
async fn refusal_has_the_reason_in_the_dialect_of_the_caller() {
    let world = World::new();
    let _agent = world.agent(services()).await;
    disable(&world, "rules: [{agent: prod, reason: incident 4711}]");
    let message = "the operator of kas has disabled agent prod: incident 4711";
    for (path, key, value) in [
        (PODS, "message", format!("kas: {message}")),
        (QUERY, "error", format!("kas: {message}")),
        ("/agents/prod/other/x", "message", message.to_owned()),
    ] {
        let response = world.get(path).await;
        assert_eq!(response.headers()["kas-error"], "disabled", "{path}");
        assert_eq!(response.headers()["retry-after"], "60", "{path}");
        let body: Value = serde_json::from_str(&text(response).await).unwrap();
        assert_eq!(body[key], value, "{path}");
    }
    assert_eq!(world.metric("kas_requests_total{service=\"none\",result=\"disabled\"}"), 3.0);
}

#[tokio::test(start_paused = true)]
async fn stranger_learns_of_rules_for_everything_and_not_of_those_for_an_agent() {
    let world = World::new();
    let stranger = || async {
        let mut request = world.request(PODS);
        request.headers_mut().insert(AUTHORIZATION, "Bearer wrong".parse().unwrap());
        world.send(request).await.headers()["kas-error"].to_str().unwrap().to_owned()
    };
    for rule in ["agent: prod", "caller: me"] {
        disable(&world, &format!("rules: [{{{rule}, reason: an incident}}]"));
        assert_eq!(stranger().await, "unauthorized", "{rule}");
    }
    for rule in ["all: true", "service: kubernetes", "address: 192.0.2.1"] {
        disable(&world, &format!("rules: [{{{rule}, reason: an incident}}]"));
        assert_eq!(stranger().await, "disabled", "{rule}");
    }
}

#[tokio::test(start_paused = true)]
async fn watch_that_a_rule_matches_ends_and_others_continue() {
    let world = World::new();
    let _agent = world.agent(services()).await;
    let mut kept = watch(&world).await;
    disable(&world, "rules: [{service: prometheus, reason: another service}]");
    assert_continues(&mut kept).await;

    disable(&world, "rules: [{caller: me, service: kubernetes, reason: an incident}]");
    assert_cut(kept).await;
    assert_eq!(world.in_flight(), 0);
    world.tunnels(2).await;

    disable(&world, "rules: []");
    let mut again = watch(&world).await;
    assert_continues(&mut again).await;
    assert_eq!(world.metric("kas_handshakes_total{reason=\"accepted\"}"), 2.0, "no tunnel was replaced");
}

#[tokio::test(start_paused = true)]
async fn rules_of_the_file_have_effect_within_seconds_and_an_invalid_file_changes_nothing() {
    let world = World::new();
    let _agent = world.agent(services()).await;
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("disabled.yaml");
    std::fs::write(&path, "rules: []").unwrap();
    let (switch, read) = (Arc::clone(&world.kas.callers.kill_switch), path.clone());
    let (followed, requests) = (world.kas.admin.files.file("disabled.file"), world.kas.reload.subscribe());
    let reading = files::follow(followed, vec![path.clone()], requests, move || switch.reload(&read));
    let _reading = AbortOnDropHandle::new(tokio::spawn(reading));
    let in_flight = watch(&world).await;
    sleep(Duration::from_secs(10)).await;

    let started = Instant::now();
    file::replace(&path, &rules("rules: [{all: true, reason: an incident}]")).unwrap();
    assert_cut(in_flight).await;
    assert!(started.elapsed() <= BOUND, "{:?}", started.elapsed());
    assert_eq!(world.get(PODS).await.status(), StatusCode::SERVICE_UNAVAILABLE);

    for invalid in [Some(""), Some("rules: [{all: true}]"), Some("\0"), None] {
        match invalid {
            Some(text) => std::fs::write(&path, text).unwrap(),
            None => std::fs::remove_file(&path).unwrap(),
        }
        sleep(BOUND).await;
        assert_eq!(world.get(PODS).await.status(), StatusCode::SERVICE_UNAVAILABLE, "{invalid:?}");
        let refused = "kas_file_refused_since_timestamp_seconds{file=\"disabled.file\"}";
        assert!(world.metric(refused) > 0.0, "{invalid:?}");
    }
    std::fs::write(&path, "rules: []").unwrap();
    sleep(BOUND).await;
    assert_eq!(world.get(PODS).await.status(), StatusCode::OK);
}

#[tokio::test(start_paused = true)]
async fn agentk_gets_each_change_and_a_new_tunnel_the_present_rules() {
    let logs = Logs::capture();
    let world = World::new();
    let agent = world.agent(services()).await;
    let lines = || agent.observability.health.disabled.lines();
    let settle = || sleep(Duration::from_secs(1));
    disable(&world, "rules: [{caller: me, agent: prod, reason: of no concern to the agent}]");
    settle().await;
    assert!(lines().is_empty());

    disable(
        &world,
        "rules: [{agent: prod, service: kubernetes, reason: drill, until: 2999-01-01T00:00:00Z}]",
    );
    settle().await;
    let drill = "disabled by the operator of kas: service kubernetes until 2999-01-01T00:00:00Z: drill";
    assert_eq!(lines(), [drill]);
    let text = logs.text();
    for line in ["requests are disabled", "the operator of kas has disabled requests to this agent"] {
        assert!(text.contains(line), "kas and agentk log it: {text}");
    }

    world.cut_tunnels();
    world.tunnels(0).await;
    assert!(lines().is_empty(), "a lost tunnel reports nothing");
    world.tunnels(2).await;
    settle().await;
    assert_eq!(lines(), [drill]);

    disable(&world, "rules: []");
    settle().await;
    assert!(lines().is_empty());
    world.tunnels(2).await;
    assert!(logs.text().contains("the operator of kas has enabled requests to this agent again"));
}

#[tokio::test(start_paused = true)]
async fn operator_sees_the_rules_in_metrics_and_in_the_list_of_agents() {
    let world = World::new();
    let _agent = world.agent(services()).await;
    assert_eq!(world.metric("kas_disabled{what=\"agent\"}"), 0.0);
    disable(&world, "rules: [{agent: prod, reason: drill}, {service: prometheus, reason: load}]");
    for (what, expected) in
        [("all", 0.0), ("service", 1.0), ("agent", 1.0), ("caller", 0.0), ("address", 0.0)]
    {
        assert_eq!(world.metric(&format!("kas_disabled{{what=\"{what}\"}}")), expected, "{what}");
    }
    let (_, list) = observe(&world, "/agents").await;
    let list: Value = serde_json::from_str(&list).unwrap();
    assert_eq!(list["disabled"], serde_json::json!(["agent prod: drill", "service prometheus: load"]));
    assert_eq!(list["agents"][0]["disabled"], "agent prod: drill");
    assert_eq!(list["agents"][0]["state"], "connected");
}

#[tokio::test(start_paused = true)]
async fn replica_that_accepts_the_request_decides() {
    let fleet = TestFleet::new(2);
    let _agent = fleet.agent(0, services()).await;
    let (owner, other) = (&fleet.replicas[0], &fleet.replicas[1]);
    let in_flight = watch(other).await;
    disable(owner, "rules: [{agent: prod, reason: at the owner}]");
    assert_eq!(other.get(PODS).await.status(), StatusCode::OK);

    disable(owner, "rules: []");
    disable(other, "rules: [{agent: prod, reason: at the other replica}]");
    assert_cut(in_flight).await;
    assert_eq!(other.get(PODS).await.headers()["kas-error"], "disabled");
    assert_eq!(owner.get(PODS).await.status(), StatusCode::OK);
}

#[tokio::test(start_paused = true)]
async fn reason_outside_of_kas_disables_everything_until_it_ends() {
    let world = World::new();
    let _agent = world.agent(services()).await;
    let switch = &world.kas.callers.kill_switch;
    switch.set_external(Some("GitLab has turned kas off".to_owned()));
    let refused = world.get(PODS).await;
    assert_eq!(refused.headers()["kas-error"], "disabled");
    assert!(text(refused).await.contains("everything: GitLab has turned kas off"));
    switch.set_external(None);
    assert_eq!(world.get(PODS).await.status(), StatusCode::OK);
}
