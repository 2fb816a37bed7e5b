//! The audit log: which requests have a line, what a line has, and what it never has.
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

use std::{
    io::{self, Write},
    path::Path,
    sync::Arc,
    time::Duration,
};

use access::kill_switch::file;
use agentk_core::Services;
use http::{Method, Request, Response, StatusCode, header::AUTHORIZATION};
use http_body_util::BodyExt as _;
use kas_core::audit::AuditLog;
use kas_testing::{
    fleet::TestFleet,
    issuer::{IssuerKey, TestIssuer, claims},
    world::{RunningAgent, World, endless, text},
};
use parking_lot::Mutex;
use secrecy::ExposeSecret as _;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    time::sleep,
};
use tunnel::{Body, upgrade::UpgradedConnection};

/// A sink that tests can read. Its lock stops the thread of the audit log.
#[derive(Clone, Default)]
pub(crate) struct Sink(Arc<Mutex<Vec<u8>>>);

impl Write for Sink {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Starts an audit log of a replica.
pub(crate) fn audit(world: &World) -> Sink {
    let sink = Sink::default();
    let observers = &world.kas.callers.observers;
    let metrics = observers.metrics.audit.clone();
    let log = AuditLog::start(sink.clone(), metrics, world.kas.agents.replica, &observers.features);
    observers.audit.set(log.clone()).unwrap();
    tokio::spawn(async move { log.run().await });
    sink
}

/// Returns the lines since the last call.
pub(crate) async fn lines(world: &World, sink: &Sink) -> Vec<Value> {
    // The connection of a caller drops the record after the caller has the last byte.
    sleep(Duration::from_millis(10)).await;
    world.kas.callers.observers.audit.get().unwrap().flush(Duration::from_secs(20));
    let text = String::from_utf8(std::mem::take(&mut *sink.0.lock())).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

async fn audited() -> (World, Sink, RunningAgent) {
    let world = World::new();
    let sink = audit(&world);
    let agent = world.agent(services()).await;
    (world, sink, agent)
}

fn services() -> Services {
    let answer = async |request: Request<Body>| {
        let (head, body) = request.into_parts();
        let watch = head.uri.query() == Some("watch=1");
        let forbidden = head.uri.path().ends_with("/forbidden");
        if head.uri.path().ends_with("/never") {
            std::future::pending::<()>().await;
        }
        let read = body.collect().await.unwrap().to_bytes().len();
        let body = if watch { endless("watching") } else { Body::from(format!("{read} bytes")) };
        let mut response = Response::new(body);
        if forbidden {
            *response.status_mut() = StatusCode::FORBIDDEN;
        }
        response.headers_mut().insert("audit-id", "of-the-cluster".parse().unwrap());
        response
    };
    Services::new().with_fn("kubernetes", answer).with_fn("prometheus", answer)
}

fn request(world: &World, method: &Method, path: &str) -> Request<Body> {
    let mut request = world.request(path);
    *request.method_mut() = method.clone();
    request
}

async fn send(world: &World, method: &Method, path: &str) {
    let response = world.send(request(world, method, path)).await;
    text(response).await;
}

#[tokio::test(start_paused = true)]
async fn changes_secrets_and_refusals_have_a_line_and_other_reads_have_none() {
    let (world, sink, _agent) = audited().await;
    let kubernetes = "/agents/prod/kubernetes/api/v1/namespaces/a";
    for (method, path, expected) in [
        (Method::GET, format!("{kubernetes}/pods"), json!(null)),
        (Method::OPTIONS, format!("{kubernetes}/pods"), json!(null)),
        (Method::POST, format!("{kubernetes}/pods"), json!([["change"], "create", 200, "allow"])),
        (Method::DELETE, format!("{kubernetes}/pods/b"), json!([["change"], "delete", 200, "allow"])),
        (Method::GET, format!("{kubernetes}/secrets"), json!([["secret-read"], "list", 200, "allow"])),
        (Method::GET, format!("{kubernetes}/secrets/b"), json!([["secret-read"], "get", 200, "allow"])),
        (Method::GET, format!("{kubernetes}//secrets"), json!([["unclear-path"], "get", 200, "allow"])),
        (Method::GET, format!("{kubernetes}/pods/forbidden"), json!([["refusal"], "get", 403, "allow"])),
        (Method::GET, "/agents/test/kubernetes/api".to_owned(), json!([["refusal"], null, 404, "deny"])),
        (Method::GET, "/agents/prod/prometheus/api/v1/query".to_owned(), json!(null)),
        (Method::POST, "/agents/prod/prometheus/api/v1/query".to_owned(), json!(null)),
        (Method::GET, "/elsewhere".to_owned(), json!(null)),
    ] {
        send(&world, &method, &path).await;
        let lines = lines(&world, &sink).await;
        assert!(lines.len() <= 1, "{lines:?}");
        let found = lines.first().map_or(json!(null), |line| {
            json!([line["events"], line["verb"], line["status"], line["decision"]])
        });
        assert_eq!(found, expected, "{method} {path}");
    }
}

#[tokio::test(start_paused = true)]
async fn line_has_the_facts_of_the_request_and_neither_credential_query_nor_body() {
    let (world, sink, _agent) = audited().await;
    world.set_caller_rights(
        "services: ['*'], access_as: {impersonate: {username: jane, uid: u-1, groups: [dev, ops], \
         extra: [{key: example.com/team, val: [a, b]}]}}",
    );
    let path = "/agents/prod/kubernetes/api/v1/namespaces/a/secrets";
    let mut request = request(&world, &Method::POST, &format!("{path}?access_token=of-the-query"));
    request.headers_mut().insert("x-request-id", "id-1".parse().unwrap());
    request.headers_mut().insert("cookie", "session=of-the-cookie".parse().unwrap());
    *request.body_mut() = Body::from("password of the body");
    assert_eq!(text(world.send(request).await).await, "20 bytes");

    sleep(Duration::from_millis(10)).await;
    world.kas.callers.observers.audit.get().unwrap().flush(Duration::from_secs(20));
    let raw = String::from_utf8(sink.0.lock().clone()).unwrap();
    for secret in ["of-the-query", "of-the-cookie", "of the body", world.caller_token.expose_secret()] {
        assert!(!raw.contains(secret), "{raw}");
    }
    let mut line = lines(&world, &sink).await.remove(0);
    let (time, duration) = (line["time"].take(), line["duration_ms"].take());
    let audit_id = line["cluster_audit_id"].take();
    assert!(
        proto::audit::parse_id(audit_id.as_str().unwrap()).is_some(),
        "{audit_id}: kas gives the request its id"
    );
    assert!(humantime::parse_rfc3339(time.as_str().unwrap()).is_ok() && time.as_str().unwrap().len() == 24);
    assert!(duration.as_f64().unwrap() >= 0.0);
    let expected = json!({
        "time": null, "events": ["change"], "request_id": "id-1", "trace_id": null,
        "replica": world.kas.agents.replica.to_string(), "client": "192.0.2.1", "caller": "me", "user": null, "job": null,
        "impersonated_user": "jane", "impersonated_uid": "u-1", "impersonated_groups": ["dev", "ops"],
        "impersonated_extra": {"example.com/team": ["a", "b"]},
        "agent_id": 1, "agent": "prod", "service": "kubernetes", "verb": "create", "method": "POST", "host": null, "path": path,
        "decision": "allow", "reason": null, "message": null, "status": 200,
        "request_bytes": 20, "response_bytes": 8, "duration_ms": null, "cluster_audit_id": null, "left_out": null,
    });
    assert_eq!(line, expected);
    let document = include_str!("../../../docs/audit.md");
    for field in expected.as_object().unwrap().keys() {
        assert!(document.contains(&format!("| `{field}`")), "docs/audit.md has no row for {field}");
    }
}

#[tokio::test(start_paused = true)]
async fn user_that_the_caller_impersonates_by_itself_is_in_the_line() {
    let (world, sink, _agent) = audited().await;
    let mut request = request(&world, &Method::DELETE, "/agents/prod/kubernetes/api/v1/nodes/a");
    request.headers_mut().insert("impersonate-user", "\"},{\"caller\":\"root".parse().unwrap());
    let group = http::HeaderValue::from_bytes("\u{e9}\"],\"caller\":[\"root".as_bytes()).unwrap();
    request.headers_mut().append("impersonate-group", group);
    text(world.send(request).await).await;
    let lines = lines(&world, &sink).await;
    assert_eq!(lines.len(), 1, "text of the caller forges no line");
    assert_eq!((&lines[0]["caller"], &lines[0]["status"]), (&json!("me"), &json!(200)));
    assert_eq!(lines[0]["impersonated_user"], "\"},{\"caller\":\"root");
    assert_eq!(lines[0]["impersonated_groups"], json!(["\u{e9}\"],\"caller\":[\"root"]));
}

#[tokio::test(start_paused = true)]
async fn refusal_has_its_reason_and_the_token_stays_secret() {
    let (world, sink, _agent) = audited().await;
    let path = "/agents/prod/kubernetes/api/v1/pods";
    let mut stranger = world.request(path);
    stranger.headers_mut().insert(AUTHORIZATION, "Bearer a-stolen-token".parse().unwrap());
    text(world.send(stranger).await).await;
    let line = lines(&world, &sink).await.remove(0);
    assert_eq!((&line["reason"], &line["status"]), (&json!("unauthorized"), &json!(401)));
    assert_eq!(
        (&line["caller"], &line["message"]),
        (&json!(null), &json!("the token is unknown or was revoked"))
    );
    assert!(!line.to_string().contains("a-stolen-token"));

    world.set_caller_rights("services: [prometheus]");
    send(&world, &Method::GET, path).await;
    let line = lines(&world, &sink).await.remove(0);
    assert_eq!((&line["reason"], &line["decision"]), (&json!("forbidden"), &json!("deny")));
    let message = "caller me may not use the service kubernetes: services of its entry in the identity file of kas can allow it";
    assert_eq!(line["message"], message);

    world.set_caller_rights("services: ['*']");
    let rules = file::parse(Path::new("d.yaml"), "rules: [{agent: prod, reason: drill}]").unwrap();
    world.kas.callers.kill_switch.set_file(rules);
    send(&world, &Method::GET, path).await;
    let line = lines(&world, &sink).await.remove(0);
    assert_eq!((&line["reason"], &line["caller"]), (&json!("disabled"), &json!("me")));
    assert_eq!((&line["events"], &line["verb"]), (&json!(["refusal"]), &json!("list")));
}

/// Its text may quote the query or the body.
#[tokio::test(start_paused = true)]
async fn message_of_a_later_failure_is_not_in_the_line() {
    let (world, sink, _agent) = audited().await;
    let response =
        world.send(request(&world, &Method::POST, "/agents/prod/other/x?token=of-the-query")).await;
    let answer = text(response).await;
    assert!(answer.contains("agent prod does not serve other"), "{answer}");
    let line = lines(&world, &sink).await.remove(0);
    assert_eq!((&line["reason"], &line["events"]), (&json!("unknown-service"), &json!(["change"])));
    assert_eq!(line["message"], json!(null));
}

#[tokio::test(start_paused = true)]
async fn line_is_written_when_the_response_ends() {
    let (world, sink, _agent) = audited().await;
    let watch = "/agents/prod/kubernetes/api/v1/secrets?watch=1";
    let mut watching = world.get(watch).await.into_body();
    watching.frame().await.unwrap().unwrap();
    sleep(Duration::from_secs(90)).await;
    assert_eq!(lines(&world, &sink).await, [json!(null); 0]);

    drop(watching);
    sleep(Duration::from_secs(1)).await;
    let line = lines(&world, &sink).await.remove(0);
    assert_eq!((&line["verb"], &line["response_bytes"]), (&json!("watch"), &json!(8)));
    assert!(line["duration_ms"].as_f64().unwrap() >= 90_000.0, "{line}");
}

#[tokio::test(start_paused = true)]
async fn upgrade_has_a_line_with_the_bytes_of_its_streams() {
    let world = World::new();
    let sink = audit(&world);
    let services = Services::new().with_fn("kubernetes", async |_: Request<Body>| {
        let (near, mut far) = tokio::io::duplex(1024);
        tokio::spawn(async move {
            let mut input = Vec::new();
            far.read_to_end(&mut input).await.unwrap();
            far.write_all(b"of the shell").await.unwrap();
        });
        let mut response = Response::new(Body::empty());
        *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
        response.headers_mut().insert("upgrade", "SPDY/3.1".parse().unwrap());
        response.extensions_mut().insert(UpgradedConnection::new(near));
        response
    });
    let _agent = world.agent(services).await;
    let mut caller = world.connect();
    let path = "/agents/prod/kubernetes/api/v1/namespaces/a/pods/b/exec";
    let head = format!(
        "GET {path}?command=sh HTTP/1.1\r\nHost: kas\r\n{}\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\r\n",
        world.authorization()
    );
    caller.write_all(head.as_bytes()).await.unwrap();
    caller.write_all(b"secret input").await.unwrap();
    sleep(Duration::from_secs(60)).await;
    assert_eq!(lines(&world, &sink).await, [json!(null); 0], "the shell is open");

    caller.shutdown().await.unwrap();
    let mut output = Vec::new();
    caller.read_to_end(&mut output).await.unwrap();
    assert!(output.ends_with(b"of the shell"), "{}", String::from_utf8_lossy(&output));
    let line = lines(&world, &sink).await.remove(0);
    assert_eq!((&line["events"], &line["verb"]), (&json!(["upgrade"]), &json!("get")));
    assert_eq!((&line["status"], &line["path"]), (&json!(101), &json!(path)));
    assert_eq!((&line["request_bytes"], &line["response_bytes"]), (&json!(12), &json!(12)));
    assert!(line["duration_ms"].as_f64().unwrap() >= 60_000.0, "{line}");
    assert!(
        !line.to_string().contains("secret input") && !line.to_string().contains("of the shell"),
        "{line}"
    );
}

#[tokio::test(start_paused = true)]
async fn first_request_with_a_token_of_an_issuer_is_a_login() {
    let key = IssuerKey::ec("a");
    let world = World::with_issuer(&TestIssuer::new(&[&key]), "");
    world.set_callers(
        "{name: app, oidc: {issuer: test, claims: {sub: alice}}, agents: [prod], services: ['*']}",
    );
    let sink = audit(&world);
    let _agent = world.agent(services()).await;
    let token = key.token(&claims(json!({})));
    let mut request = world.request("/agents/prod/kubernetes/api/v1/pods");
    request.headers_mut().insert(AUTHORIZATION, format!("Bearer {token}").parse().unwrap());
    text(world.send(request).await).await;
    let line = lines(&world, &sink).await.remove(0);
    assert_eq!((&line["events"], &line["caller"]), (&json!(["login"]), &json!("app")));
    assert!(!line.to_string().contains(&token), "{line}");

    let mut again = world.request("/agents/prod/kubernetes/api/v1/pods");
    again.headers_mut().insert(AUTHORIZATION, format!("Bearer {token}").parse().unwrap());
    text(world.send(again).await).await;
    assert_eq!(lines(&world, &sink).await, [json!(null); 0], "the answer is in the cache");
}

#[expect(
    clippy::await_holding_lock,
    reason = "the lock stops the thread of the audit log, and no task waits for it"
)]
#[tokio::test(start_paused = true)]
async fn strangers_push_no_line_of_a_known_caller_out_of_a_slow_sink() {
    let (world, sink, _agent) = audited().await;
    let blocked = sink.0.lock();
    send_as_stranger(&world, &format!("/agents/prod/kubernetes/{}", "a".repeat(60_000)), 500).await;
    send(&world, &Method::DELETE, "/agents/prod/kubernetes/api/v1/pods/a").await;
    assert_eq!(world.metric("kas_audit_dropped_total"), 0.0);
    drop(blocked);
    let lines = lines(&world, &sink).await;
    assert_eq!((lines.len(), &lines.last().unwrap()["events"]), (11, &json!(["change"])));
}

#[tokio::test(start_paused = true)]
async fn request_that_its_caller_cancels_has_a_line_without_status() {
    let (world, sink, _agent) = audited().await;
    let path = "/agents/prod/kubernetes/api/v1/namespaces/a/pods/never";
    let sending =
        tokio::time::timeout(Duration::from_secs(1), world.send(request(&world, &Method::DELETE, path)));
    assert!(sending.await.is_err());
    sleep(Duration::from_secs(1)).await;
    world.kas.callers.connections.group.cut.cancel();
    let mut found = lines(&world, &sink).await;
    for _ in 0..100 {
        if !found.is_empty() {
            break;
        }
        sleep(Duration::from_secs(1)).await;
        found = lines(&world, &sink).await;
    }
    assert_eq!((&found[0]["status"], &found[0]["events"]), (&json!(null), &json!(["change"])));
}

#[tokio::test(start_paused = true)]
async fn request_through_another_replica_has_one_line() {
    let fleet = TestFleet::new(2);
    let sinks = [audit(&fleet.replicas[0]), audit(&fleet.replicas[1])];
    let _agent = fleet.agent(0, services()).await;
    send(&fleet.replicas[1], &Method::POST, "/agents/prod/kubernetes/api/v1/namespaces").await;
    assert!(lines(&fleet.replicas[0], &sinks[0]).await.is_empty());
    assert_eq!(lines(&fleet.replicas[1], &sinks[1]).await.len(), 1);
}

/// Sends requests without a credential from the address of the caller.
async fn send_as_stranger(world: &World, path: &str, requests: usize) {
    for _ in 0..requests {
        let mut request = request(world, &Method::DELETE, path);
        request.headers_mut().remove(AUTHORIZATION);
        assert_eq!(world.send(request).await.status(), 401);
    }
}

#[tokio::test(start_paused = true)]
async fn refusals_of_strangers_are_limited_and_counted_and_those_of_known_callers_are_not() {
    let (world, sink, _agent) = audited().await;
    send_as_stranger(&world, "/agents/prod/kubernetes/api", 1000).await;
    let strangers = lines(&world, &sink).await;
    assert_eq!(strangers.len(), 10);
    assert_eq!(world.metric("kas_audit_left_out_total"), 990.0);

    for _ in 0..50 {
        send(&world, &Method::DELETE, "/agents/prod/kubernetes/api/v1/pods/a").await;
        send(&world, &Method::GET, "/agents/test/kubernetes/api").await;
        send(&world, &Method::GET, "/agents/prod/kubernetes/api/forbidden").await;
    }
    let known = lines(&world, &sink).await;
    assert_eq!(known.len(), 150, "the lines of a caller at the same address");
    assert!(known.iter().all(|line| line["caller"] == "me"), "{known:?}");

    sleep(Duration::from_secs(60)).await;
    let counts = lines(&world, &sink).await;
    let shown =
        counts.iter().map(|line| json!([line["events"], line["client"], line["left_out"], line["decision"]]));
    assert!(shown.eq([json!([["left-out"], "192.0.2.1", 990, "deny"])]), "{counts:?}");
    send_as_stranger(&world, "/agents/prod/kubernetes/api", 1).await;
    assert_eq!(lines(&world, &sink).await.len(), 1, "a new minute");
}

#[tokio::test(start_paused = true)]
async fn last_count_is_written_when_kas_stops() {
    let (world, sink, _agent) = audited().await;
    send_as_stranger(&world, "/agents/prod/kubernetes/api", 12).await;
    assert_eq!(lines(&world, &sink).await.len(), 10);
    world.kas.callers.observers.audit.get().unwrap().finish(Duration::from_secs(20));
    assert_eq!(lines(&world, &sink).await[0]["left_out"], 2);
}

#[tokio::test(start_paused = true)]
async fn long_texts_of_refused_requests_are_cut_and_marked() {
    let (world, sink, _agent) = audited().await;
    let long = format!("/agents/prod/kubernetes/{}", "a".repeat(60_000));
    let cut = format!("/agents/prod/kubernetes/{}… (60024 bytes)", "a".repeat(512 - 24));
    send_as_stranger(&world, &long, 1).await;
    assert_eq!(lines(&world, &sink).await[0]["path"], cut);
    let forbidden = format!("{long}/forbidden");
    send(&world, &Method::GET, &forbidden).await;
    assert!(lines(&world, &sink).await[0]["path"].as_str().unwrap().ends_with("… (60034 bytes)"));
    send(&world, &Method::GET, &format!("/agents/{}/kubernetes/api", "a".repeat(60_000))).await;
    let line = lines(&world, &sink).await.remove(0);
    assert!(line.to_string().len() < 3000, "the message has the name of the agent: {line}");

    send(&world, &Method::DELETE, &long).await;
    assert_eq!(lines(&world, &sink).await[0]["path"], long, "a change has its whole path");
}

#[expect(
    clippy::await_holding_lock,
    reason = "the lock stops the thread of the audit log, and no task waits for it"
)]
#[tokio::test(start_paused = true)]
async fn blocked_sink_delays_no_request_and_lost_lines_are_counted() {
    let (world, sink, _agent) = audited().await;
    let long = format!("/agents/prod/kubernetes/api/v1/namespaces/{}", "a".repeat(60_000));
    let blocked = sink.0.lock();
    for _ in 0..200 {
        send(&world, &Method::DELETE, &long).await;
    }
    let dropped = world.metric("kas_audit_dropped_total");
    assert!((1.0..200.0).contains(&dropped), "{dropped}");
    drop(blocked);
    let written = lines(&world, &sink).await.len();
    assert_eq!(written as f64 + dropped, 200.0, "each line is written or counted");
    send(&world, &Method::DELETE, &long).await;
    assert_eq!(lines(&world, &sink).await.len(), 1, "later lines are written");
}
