//! Requests for the events of a ring.

use std::time::Duration;

use agentk_core::{
    AgentMetrics,
    cluster::{Cluster, KubeconfigOptions},
};
use base64::{Engine as _, prelude::BASE64_URL_SAFE_NO_PAD};
use cluster_audit::Ring;
use http_body_util::BodyExt as _;
use proto::agent_configuration::Scope;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::*;

const AGENTK: &str = "system:serviceaccount:agentk:agentk";

struct Fixture {
    directory: TempDir,
    ring: Ring,
    handler: AuditHandler,
    scope: Arc<ScopeEnforcer>,
    stopping: CancellationToken,
}

impl Fixture {
    /// Returns a handler of a ring with these numbers of events.
    fn new(events: std::ops::Range<usize>) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let ring = Ring::open(&directory.path().join("ring"), 1 << 20).unwrap();
        let claims = BASE64_URL_SAFE_NO_PAD.encode(json!({"sub": AGENTK}).to_string());
        let kubeconfig = json!({
            "current-context": "c", "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
            "clusters": [{"name": "c", "cluster": {"server": "https://127.0.0.1:1"}}],
            "users": [{"name": "u", "user": {"token": format!("h.{claims}.s")}}],
        });
        let file = directory.path().join("kubeconfig");
        std::fs::write(&file, kubeconfig.to_string()).unwrap();
        let cluster = Cluster::load(&KubeconfigOptions { file: Some(file), context: None }).unwrap();
        let scope = Arc::new(ScopeEnforcer::new(None, AgentMetrics::default()));
        let kubernetes = KubernetesService::new(Arc::new(cluster));
        let stopping = CancellationToken::new();
        let handler = AuditHandler::new(ring.view(), Some(Arc::clone(&scope)), kubernetes, stopping.clone());
        let mut fixture = Self { directory, ring, handler, scope, stopping };
        fixture.append(events);
        fixture
    }

    fn append(&mut self, events: std::ops::Range<usize>) {
        for number in events {
            let event = json!({
                "time": format!("2026-01-31T12:00:{number:02}.000000Z"), "stage": "complete", "audit_id": number.to_string(),
                "verb": if number % 2 == 0 { "delete" } else { "get" },
                "cluster_user": {"name": if number % 3 == 0 { AGENTK } else { "jane" }},
                "object": {"resource": "pods", "namespace": if number < 5 { "shop" } else { "other" }, "name": "p"},
            });
            self.ring.append(format!("{event}\n").as_bytes()).unwrap();
        }
    }

    async fn send(&self, method: Method, path: &str) -> Result<Response<Body>, ServiceError> {
        let request = Request::builder().method(method).uri(path).body(Body::empty()).unwrap();
        self.handler.handle(request).await
    }

    /// Returns all lines of a response that ends.
    async fn get(&self, path: &str) -> Vec<Value> {
        let body =
            self.send(Method::GET, path).await.unwrap().into_body().collect().await.unwrap().to_bytes();
        let text = String::from_utf8(body.to_vec()).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }
}

/// Returns the ids of events.
fn ids(lines: &[Value]) -> Vec<&str> {
    lines.iter().filter_map(|line| line["audit_id"].as_str()).collect()
}

/// Returns the next lines of a response that follows.
async fn next(body: &mut Body) -> Vec<Value> {
    let data = body.frame().await.unwrap().unwrap().into_data().unwrap();
    let text = String::from_utf8(data.to_vec()).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[tokio::test]
async fn events_are_selected_and_end_with_a_position() {
    let fixture = Fixture::new(0..10);
    let lines = fixture.get("/v1/events").await;
    assert_eq!(ids(&lines), ["0", "1", "2", "3", "4", "5", "6", "7", "8", "9"]);
    assert_eq!(
        (&lines[0]["type"], &lines[0]["of_agentk"], &lines[1]["of_agentk"]),
        (&json!("event"), &json!(true), &json!(false))
    );
    let end = lines.last().unwrap();
    assert_eq!(
        (&end["type"], &end["has_more"], &end["position"]),
        (&json!("end"), &json!(false), &lines[9]["position"])
    );
    for (query, expected) in [
        ("verb=delete", &["0", "2", "4", "6", "8"][..]),
        ("since=2026-01-31T12:00:08Z", &["8", "9"]),
        ("until=2026-01-31T12:00:01Z&resource=pods", &["0", "1"]),
        ("namespace=shop&user=jane", &["1", "2", "4"]),
        ("resource=secrets", &[]),
    ] {
        assert_eq!(ids(&fixture.get(&format!("/?{query}")).await), expected, "{query}");
    }
}

#[tokio::test]
async fn next_response_continues_at_the_position() {
    let fixture = Fixture::new(0..7);
    let mut path = "/v1/events?limit=3".to_owned();
    let mut all = Vec::new();
    loop {
        let lines = fixture.get(&path).await;
        let end = lines.last().unwrap().clone();
        all.extend(ids(&lines).into_iter().map(str::to_owned));
        if end["has_more"] == false {
            break;
        }
        assert_eq!(ids(&lines).len(), 3);
        path = format!("/v1/events?limit=3&position={}", end["position"].as_str().unwrap());
    }
    assert_eq!(all, ["0", "1", "2", "3", "4", "5", "6"]);
    let lines = fixture.get("/v1/events?position=00000000.7").await;
    assert_eq!((&lines[0]["type"], ids(&lines).len()), (&json!("gap"), 7), "a position of another ring");
}

#[tokio::test]
async fn scope_hides_events_of_other_namespaces() {
    let fixture = Fixture::new(0..10);
    fixture.scope.set(Some(Scope { namespaces: vec!["shop".to_owned()] }));
    assert_eq!(ids(&fixture.get("/v1/events").await), ["0", "1", "2", "3", "4"]);
    assert_eq!(ids(&fixture.get("/v1/events?namespace=other").await), [""; 0]);
    fixture.scope.set(Some(Scope { namespaces: Vec::new() }));
    assert_eq!(ids(&fixture.get("/v1/events").await), [""; 0]);
}

#[tokio::test]
async fn response_that_follows_has_each_later_event_once() {
    let mut fixture = Fixture::new(0..4);
    let response =
        fixture.send(Method::GET, "/v1/events?follow=true&since=2026-01-31T12:00:02Z").await.unwrap();
    let mut body = response.into_body();
    assert_eq!(ids(&next(&mut body).await), ["2", "3"]);
    fixture.append(4..6);
    assert_eq!(ids(&next(&mut body).await), ["4", "5"]);
    // A scope that comes into force applies to a response in flight.
    fixture.scope.set(Some(Scope { namespaces: vec!["shop".to_owned()] }));
    fixture.append(6..7);
    fixture.append(3..4);
    assert_eq!(ids(&next(&mut body).await), ["3"]);
    fixture.scope.set(None);
    let response = fixture.send(Method::GET, "/v1/events?follow=true").await.unwrap();
    let mut later = response.into_body();
    let lines = next(&mut later).await;
    assert_eq!(
        lines,
        [json!({"type": "end", "position": fixture.ring.view().end().to_string(), "has_more": true})]
    );
    fixture.append(8..9);
    assert_eq!(ids(&next(&mut later).await), ["8"], "without a time it begins with the next event");
    assert!(fixture.directory.path().exists());
}

#[tokio::test(start_paused = true)]
async fn silent_response_has_a_position_from_time_to_time() {
    let fixture = Fixture::new(0..1);
    let mut body = fixture.send(Method::GET, "/v1/events?follow=true").await.unwrap().into_body();
    for _ in 0..3 {
        let lines = next(&mut body).await;
        assert_eq!((&lines[0]["type"], &lines[0]["has_more"]), (&json!("end"), &json!(true)));
        assert_eq!(lines[0]["position"], fixture.ring.view().end().to_string());
    }
}

#[tokio::test(start_paused = true)]
async fn response_without_a_selected_event_has_a_position_in_a_busy_cluster() {
    let mut fixture = Fixture::new(0..1);
    let mut body = fixture.send(Method::GET, "/v1/events?follow=true&verb=patch").await.unwrap().into_body();
    next(&mut body).await;
    let begun = Instant::now();
    let busy = async {
        loop {
            tokio::time::sleep(Duration::from_secs(1)).await;
            fixture.append(1..2);
        }
    };
    let lines = tokio::select! {
        lines = next(&mut body) => lines,
        () = busy => panic!("it does not end"),
    };
    assert_eq!((&lines[0]["type"], begun.elapsed().as_secs()), (&json!("end"), 15));
}

#[tokio::test]
async fn time_that_the_ring_has_lost_begins_with_a_gap() {
    let mut fixture = Fixture::new(0..10);
    let path = "/v1/events?limit=1&since=2026-01-31T12:00:00Z";
    assert_eq!(fixture.get(path).await[0]["type"], "event", "the ring is complete");
    let first = fixture.ring.view().start();
    while fixture.ring.view().start() == first {
        fixture.append(10..20);
    }
    let gap = json!({"type": "gap", "position": fixture.ring.view().start().to_string()});
    let lines = fixture.get(path).await;
    assert_eq!((&lines[0], ids(&lines).len()), (&gap, 1));
    let response = fixture.send(Method::GET, &format!("{path}&follow=true")).await.unwrap();
    assert_eq!(next(&mut response.into_body()).await, [gap]);
    for (path, expected) in [
        ("/v1/events?limit=1", "event"),
        ("/v1/events?limit=1&since=2026-01-31T12:00:19Z", "event"),
        ("/v1/events?follow=true", "end"),
    ] {
        let mut body = fixture.send(Method::GET, path).await.unwrap().into_body();
        assert_eq!(next(&mut body).await[0]["type"], expected, "{path}");
    }
}

#[tokio::test(start_paused = true)]
async fn response_that_follows_ends_with_its_position_when_agentk_stops() {
    let fixture = Fixture::new(0..2);
    let path = "/v1/events?follow=true&since=2026-01-31T12:00:00Z";
    let mut body = fixture.send(Method::GET, path).await.unwrap().into_body();
    assert_eq!(ids(&next(&mut body).await), ["0", "1"]);
    let end = json!({"type": "end", "position": fixture.ring.view().end().to_string(), "has_more": true});
    let stop = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        fixture.stopping.cancel();
    };
    let (lines, ()) = tokio::join!(next(&mut body), stop);
    assert_eq!(lines, [end]);
    assert!(body.frame().await.is_none());
    assert_eq!(ids(&fixture.get("/v1/events").await), ["0", "1"], "a response that has an end is complete");
}

#[tokio::test]
async fn readers_have_a_limit() {
    let fixture = Fixture::new(0..1);
    let mut responses = Vec::new();
    for _ in 0..MAX_READERS / 2 {
        responses.push(fixture.send(Method::GET, "/v1/events?follow=true").await.unwrap());
    }
    let error = fixture.send(Method::GET, "/v1/events").await.unwrap_err();
    assert_eq!(error.reason, Reason::TooManyRequests);
    assert!(
        error.message.ends_with("its share of the readers that other callers leave, which is 8 now"),
        "{error}"
    );
    let other = |user: &str| {
        let request = Request::get("/v1/events?follow=true").header("impersonate-user", user);
        request.body(Body::empty()).unwrap()
    };
    for (user, readers) in [("jane", 4), ("ann", 2), ("bob", 1), ("max", 1)] {
        for _ in 0..readers {
            responses.push(fixture.handler.handle(other(user)).await.unwrap());
        }
        assert_eq!(fixture.handler.handle(other(user)).await.unwrap_err().reason, Reason::TooManyRequests);
    }
    let error = fixture.handler.handle(other("joe")).await.unwrap_err();
    assert!(error.message.contains("16 callers read the audit log"), "{error}");
    responses.remove(0);
    let freed = fixture.handler.handle(other("joe")).await;
    assert!(freed.is_ok(), "{freed:?}");
}

#[tokio::test]
async fn anything_but_a_question_is_refused() {
    let fixture = Fixture::new(0..1);
    for (method, path, reason) in [
        (Method::GET, "/v1/secrets", Reason::UnknownPath),
        (Method::DELETE, "/v1/events", Reason::MethodNotAllowed),
        (Method::GET, "/v1/events?since=now", Reason::BadRequest),
    ] {
        assert_eq!(fixture.send(method, path).await.unwrap_err().reason, reason, "{path}");
    }
}
