//! Callers that may see only series with certain labels.
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

use std::{path::Path, sync::Arc};

use access::{Identity, token::TokenHash};
use agentk_core::Services;
use http::{Request, Response, StatusCode, header::CONTENT_TYPE};
use http_body_util::BodyExt as _;
use kas_testing::world::{RunningAgent, World, endless, text};
use parking_lot::Mutex;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tunnel::Body;

/// A request that reached the agent: method, path, `Content-Length` and form.
type Received = Arc<Mutex<Vec<String>>>;

/// The caller of this world may see `ns="a"`, in every Prometheus of its agent.
async fn world() -> (World, RunningAgent, Received) {
    let world = World::new();
    world.kas.identities.replace(identity(&world, "prometheus: {labels: {ns: [a]}}"));
    let received = Received::default();
    let mut services = Services::new();
    for service in ["prometheus", "prometheus.thanos", "prometheus-like", "kubernetes"] {
        let received = Arc::clone(&received);
        services = services.with_fn(service, move |request: Request<Body>| {
            let received = Arc::clone(&received);
            async move {
                let (head, body) = request.into_parts();
                let form = body.collect().await.unwrap().to_bytes();
                let length =
                    head.headers.get("content-length").map_or("-", |length| length.to_str().unwrap());
                let form = str::from_utf8(&form).unwrap();
                received.lock().push(format!("{} {} {length} {form}", head.method, head.uri));
                Response::new(Body::from("answered"))
            }
        });
    }
    let agent = world.agent(services).await;
    (world, agent, received)
}

fn identity(world: &World, key: &str) -> Identity {
    let (agent, caller) = (TokenHash::of(&world.agent_token), TokenHash::of(&world.caller_token));
    let text = format!(
        "agents: [{{id: 1, name: prod, tokens: ['{agent}']}}]\n\
         callers: [{{name: me, tokens: ['{caller}'], agents: [prod], services: ['*'], {key}}}]",
    );
    Identity::parse(Path::new("identity.yaml"), &text).unwrap()
}

fn post(world: &World, path: &str, form: impl Into<Body>) -> Request<Body> {
    let mut request = world.request(path).map(|_| form.into());
    *request.method_mut() = http::Method::POST;
    let form = http::HeaderValue::from_static("application/x-www-form-urlencoded");
    request.headers_mut().insert(CONTENT_TYPE, form);
    request
}

#[tokio::test(start_paused = true)]
async fn agent_receives_only_rewritten_queries() {
    let (world, _agent, received) = world().await;
    for service in ["prometheus", "prometheus.thanos"] {
        let path = |rest: &str| format!("/agents/prod/{service}/api/v1/{rest}");
        for request in [
            world.request(&path("query?query=up&time=1")),
            world.request(&path("labels")),
            post(&world, &path("query_range?query=up"), "query=sum(up)&step=1"),
            post(&world, &path("series"), "match[]=up"),
        ] {
            let answer = world.send(request).await;
            assert_eq!((answer.status(), &*text(answer).await), (StatusCode::OK, "answered"));
        }
        let ours = "up%7Bns%3D%22a%22%7D";
        assert_eq!(
            *received.lock(),
            [
                format!("GET /api/v1/query?query={ours}&time=1 - "),
                "GET /api/v1/labels?match%5B%5D=%7Bns%3D%22a%22%7D - ".to_owned(),
                format!("POST /api/v1/query_range?query={ours} 42 query=sum%28{ours}%29&step=1"),
                format!("POST /api/v1/series 32 match%5B%5D={ours}"),
            ]
        );
        received.lock().clear();
    }
}

#[tokio::test(start_paused = true)]
async fn unenforceable_query_is_a_prometheus_error() {
    let (world, _agent, received) = world().await;
    let long = format!("query=up&x={}", "y".repeat(1 << 20));
    let prometheus = |rest: &str| format!("/agents/prod/prometheus{rest}");
    for (request, status, reason, kind) in [
        (world.request(&prometheus("/api/v1/targets")), 403, "not-enforceable", "forbidden"),
        (world.request(&prometheus("/api/v1/query?query=info(up)")), 403, "not-enforceable", "forbidden"),
        (world.request(&prometheus("/api/v1/query?query=up%7B")), 400, "bad-request", "bad_data"),
        (world.request(&prometheus("/api/v1/query?query=up;x")), 400, "bad-request", "bad_data"),
        (post(&world, &prometheus("/api/v1/query"), long), 413, "body-too-large", "bad_data"),
    ] {
        let uri = request.uri().clone();
        let answer = world.send(request).await;
        assert_eq!(
            (answer.status().as_u16(), answer.headers()["kas-error"].to_str().unwrap()),
            (status, reason),
            "{uri}"
        );
        let envelope: serde_json::Value = serde_json::from_str(&text(answer).await).unwrap();
        assert_eq!((&envelope["status"], &envelope["errorType"]), (&"error".into(), &kind.into()), "{uri}");
    }
    assert!(received.lock().is_empty(), "nothing was sent: {received:?}");
    assert_eq!(world.limit_count("form"), 1.0);
}

#[tokio::test(start_paused = true)]
async fn slow_form_times_out() {
    let (world, _agent, received) = world().await;
    let answer = world.send(post(&world, "/agents/prod/prometheus/api/v1/query", endless("query=up"))).await;
    assert_eq!(answer.status(), StatusCode::REQUEST_TIMEOUT);
    assert_eq!(answer.headers()["kas-error"], "body-timeout");
    assert!(received.lock().is_empty());
}

#[tokio::test(start_paused = true)]
async fn other_services_and_callers_are_not_rewritten() {
    let (world, _agent, received) = world().await;
    let path = "/agents/prod/kubernetes/api/v1/query?query=up;x";
    assert_eq!(world.get(path).await.status(), StatusCode::OK);
    let path = "/agents/prod/prometheus-like/api/v1/query?query=up;x";
    assert_eq!(world.get(path).await.status(), StatusCode::OK);
    world.kas.identities.replace(identity(&world, "access_as: {agent: {}}"));
    let path = "/agents/prod/prometheus/api/v1/query?query=up;x";
    assert_eq!(world.get(path).await.status(), StatusCode::OK);
    assert_eq!(*received.lock(), vec!["GET /api/v1/query?query=up;x - "; 3]);
}

#[tokio::test(start_paused = true)]
async fn form_of_a_query_with_an_upgrade_is_enforced_and_arrives() {
    let (world, _agent, received) = world().await;
    let mut caller = world.connect();
    let head = format!(
        "POST /agents/prod/prometheus/api/v1/query HTTP/1.1\r\nHost: kas\r\n{}\r\nConnection: Upgrade, close\r\n\
         Upgrade: foo/1\r\nContent-Type: application/x-www-form-urlencoded\r\nContent-Length: 8\r\n\r\nquery=up",
        world.authorization()
    );
    caller.write_all(head.as_bytes()).await.unwrap();
    let mut answer = String::new();
    caller.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    assert_eq!(received.lock()[0], "POST /api/v1/query 26 query=up%7Bns%3D%22a%22%7D");
}
