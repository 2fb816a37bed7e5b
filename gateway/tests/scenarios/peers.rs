//! A request may arrive at any replica. Failures of replicas are in peers_failures.rs.

use std::time::Duration;

use agentk_core::Services;
use bytes::Bytes;
use http::{HeaderMap, Request, Response, StatusCode, header::AUTHORIZATION};
use http_body::Frame;
use http_body_util::{BodyExt as _, StreamBody};
use kas_testing::{
    fleet::TestFleet,
    world::{endless, text, uppercase_upgrade},
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    time::{sleep, timeout},
};
use tunnel::Body;

pub(crate) const PATH: &str = "/agents/prod/kubernetes/api";

/// Returns a cluster that responds with its name, echoes bodies, lists headers, or sends an endless watch.
pub(crate) fn cluster(name: &'static str) -> Services {
    Services::new().with_fn("kubernetes", move |request: Request<Body>| async move {
        match request.uri().path() {
            "/watch" => Response::new(endless("watching")),
            "/echo" => Response::new(request.into_body()),
            "/headers" => {
                let names: Vec<&str> = request.headers().keys().map(|name| name.as_str()).collect();
                Response::new(Body::from(names.join("\n")))
            }
            _ => Response::new(Body::from(name)),
        }
    })
}

#[tokio::test(start_paused = true)]
async fn request_at_any_replica_reaches_the_agent() {
    let fleet = TestFleet::new(3);
    let _agent = fleet.agent(1, cluster("here")).await;
    for replica in &fleet.replicas {
        let answer = replica.get(PATH).await;
        assert_eq!(answer.status(), StatusCode::OK);
        assert!(answer.headers().get("kas-peer").is_none());
        assert_eq!(text(answer).await, "here");
    }
    assert_eq!(fleet.replicas[0].metric("kas_routes_total{kind=\"peer\"}"), 1.0);
    assert_eq!(fleet.replicas[1].metric("kas_routes_total{kind=\"local\"}"), 1.0);
    assert_eq!(fleet.replicas[1].metric("kas_peer_served_total{result=\"forwarded\"}"), 2.0);
    // Requests in flight count on the replica that has the tunnel, and none is left.
    assert_eq!(fleet.replicas[0].in_flight(), 0);
}

#[tokio::test(start_paused = true)]
async fn recent_owner_gets_no_probe() {
    let fleet = TestFleet::new(2);
    let _agent = fleet.agent(1, cluster("here")).await;
    for _ in 0..10 {
        assert_eq!(text(fleet.replicas[0].get(PATH).await).await, "here");
    }
    let probes = || fleet.replicas[0].metric("kas_peer_probes_total{result=\"accepted\"}");
    assert_eq!(probes(), 1.0);
    sleep(Duration::from_secs(2)).await;
    assert_eq!(text(fleet.replicas[0].get(PATH).await).await, "here");
    assert_eq!(probes(), 2.0);
    assert_eq!(fleet.replicas[0].metric("kas_peer_connections"), 1.0);
}

#[tokio::test(start_paused = true)]
async fn agent_gets_the_same_headers_through_another_replica() {
    let fleet = TestFleet::new(2);
    let _agent = fleet.agent(1, cluster("here")).await;
    let direct = text(fleet.replicas[1].get("/agents/prod/kubernetes/headers").await).await;
    let through = text(fleet.replicas[0].get("/agents/prod/kubernetes/headers").await).await;
    assert_eq!(through, direct);
    assert!(!through.contains("kas-peer"), "{through}");
}

#[tokio::test(start_paused = true)]
async fn large_body_with_trailers_is_forwarded() {
    let fleet = TestFleet::new(2);
    let _agent = fleet.agent(1, cluster("here")).await;
    let mut trailers = HeaderMap::new();
    trailers.insert("sum", "42".parse().unwrap());
    let chunks = (0..256).map(|_| Frame::data(Bytes::from_static(&[7; 64 << 10])));
    let frames = chunks.chain([Frame::trailers(trailers)]).map(Ok::<_, std::io::Error>);
    let body = Body::new(StreamBody::new(futures_util::stream::iter(frames)));
    let mut request = fleet.replicas[0].request("/agents/prod/kubernetes/echo").map(|_| body);
    *request.method_mut() = http::Method::POST;
    request.headers_mut().insert("te", "trailers".parse().unwrap());
    request.headers_mut().insert("trailer", "sum".parse().unwrap());
    let answer = fleet.replicas[0].send(request).await;
    assert_eq!(answer.status(), StatusCode::OK);
    let whole = answer.into_body().collect().await.unwrap();
    assert_eq!(whole.to_bytes().len(), 16 << 20);
}

#[tokio::test(start_paused = true)]
async fn watch_stays_open_and_its_cancellation_is_forwarded() {
    let fleet = TestFleet::new(2);
    let _agent = fleet.agent(1, cluster("here")).await;
    let mut watch = fleet.replicas[0].get("/agents/prod/kubernetes/watch?watch=1").await.into_body();
    assert_eq!(watch.frame().await.unwrap().unwrap().into_data().unwrap(), "watching");
    assert!(timeout(Duration::from_secs(3600), watch.frame()).await.is_err());
    // Short requests have another connection.
    assert_eq!(text(fleet.replicas[0].get(PATH).await).await, "here");
    assert_eq!(fleet.replicas[0].metric("kas_peer_connections"), 2.0);
    drop(watch);
    let served = fleet.replicas[1].kas.agents.tunnels.clone();
    while served.views().iter().any(|view| view.services().any(|(_, load)| load.long > 0)) {
        sleep(Duration::from_millis(1)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn exec_through_another_replica_preserves_half_close() {
    let fleet = TestFleet::new(2);
    let services = Services::new().with_fn("kubernetes", async |_| uppercase_upgrade("early "));
    let _agent = fleet.agent(1, services).await;
    let mut caller = fleet.replicas[0].connect();
    let head = format!(
        "POST /agents/prod/kubernetes/api/v1/namespaces/a/pods/b/exec HTTP/1.1\r\nHost: kas\r\n{}\r\n\
         Connection: Upgrade\r\nUpgrade: SPDY/3.1\r\nContent-Length: 0\r\n\r\n",
        fleet.replicas[0].authorization()
    );
    caller.write_all(head.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    while !answer.ends_with(b"early ") {
        answer.push(caller.read_u8().await.unwrap());
    }
    assert!(answer.starts_with(b"HTTP/1.1 101 "), "{}", String::from_utf8_lossy(&answer));
    caller.write_all(b"hello").await.unwrap();
    caller.shutdown().await.unwrap();
    let mut rest = String::new();
    caller.read_to_string(&mut rest).await.unwrap();
    assert_eq!(rest, "HELLO");
}

#[tokio::test(start_paused = true)]
async fn body_of_a_request_with_an_upgrade_arrives_through_any_replica() {
    let fleet = TestFleet::new(2);
    let _agent = fleet.agent(1, cluster("here")).await;
    for replica in &fleet.replicas {
        let mut caller = replica.connect();
        let head = format!(
            "DELETE /agents/prod/kubernetes/echo HTTP/1.1\r\nHost: kas\r\n{}\r\n\
             Connection: Upgrade, close\r\nUpgrade: foo/1\r\nContent-Length: 19\r\n\r\n{{\"dryRun\": [\"All\"]}}",
            replica.authorization()
        );
        caller.write_all(head.as_bytes()).await.unwrap();
        let mut answer = String::new();
        caller.read_to_string(&mut answer).await.unwrap();
        assert!(
            answer.starts_with("HTTP/1.1 200 ") && answer.contains("{\"dryRun\": [\"All\"]}"),
            "{answer}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn agent_that_connects_to_another_replica_wakes_waiting_request() {
    let fleet = TestFleet::new(2);
    let waiting = {
        let world = fleet.replicas[0].clone();
        tokio::spawn(async move { text(world.get(PATH).await).await })
    };
    sleep(Duration::from_secs(1)).await;
    let _agent = fleet.agent(1, cluster("here")).await;
    assert_eq!(waiting.await.unwrap(), "here");
}

#[tokio::test(start_paused = true)]
async fn unknown_service_is_refused_at_any_replica() {
    let fleet = TestFleet::new(2);
    let _agent = fleet.agent(1, cluster("here")).await;
    let answer = fleet.replicas[0].get("/agents/prod/prometheus/api/v1/query?query=up").await;
    assert_eq!(answer.status(), StatusCode::NOT_FOUND);
    assert_eq!(answer.headers()["kas-error"], "unknown-service");
    let text = text(answer).await;
    assert!(text.contains("the agent serves there: ") && text.contains("kubernetes"), "{text}");
}

#[tokio::test(start_paused = true)]
async fn limit_of_the_agent_applies_at_any_replica() {
    let fleet = TestFleet::with(2, |config| config.agent.kubernetes_api.limits.max_requests_per_agent = 2);
    let _agent = fleet.agent(1, cluster("here")).await;
    let watch = async || fleet.replicas[0].get("/agents/prod/kubernetes/watch?watch=1").await;
    let (_first, _second) = (watch().await, watch().await);
    let answer = watch().await;
    assert_eq!(answer.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(answer.headers()["kas-error"], "too-many-requests");
}

#[tokio::test(start_paused = true)]
async fn largest_head_of_a_tunnel_is_forwarded() {
    let fleet = TestFleet::with(2, |config| {
        config.agent.kubernetes_api.limits.max_head_bytes = 1 << 20;
        config.agent.tunnel.max_header_bytes = 65_536;
    });
    let _agent = fleet.agent(1, cluster("here")).await;
    for size in [60_000, 62_000, 64_000, 66_000, 200_000] {
        let request = |index: usize| {
            let mut request = fleet.replicas[index].request(PATH);
            request.headers_mut().insert("x-large", "x".repeat(size).parse().unwrap());
            request
        };
        let direct = fleet.replicas[1].send(request(1)).await;
        let through = fleet.replicas[0].send(request(0)).await;
        assert_eq!(through.status(), direct.status(), "{size}");
        // The connection stays open.
        assert_eq!(text(fleet.replicas[0].get(PATH).await).await, "here");
    }
}

#[tokio::test(start_paused = true)]
async fn revoked_caller_loses_watch_through_another_replica() {
    let fleet = TestFleet::new(2);
    let _agent = fleet.agent(1, cluster("here")).await;
    let mut watch = fleet.replicas[0].get("/agents/prod/kubernetes/watch?watch=1").await.into_body();
    watch.frame().await.unwrap().unwrap();
    fleet.replicas[0].revoke_caller();
    assert!(watch.frame().await.unwrap().is_err());
}

#[tokio::test(start_paused = true)]
async fn unauthorized_caller_causes_no_probe() {
    let fleet = TestFleet::new(2);
    let _agent = fleet.agent(1, cluster("here")).await;
    let mut request = fleet.replicas[0].request(PATH);
    request.headers_mut().insert(AUTHORIZATION, "Bearer nobody".parse().unwrap());
    let answer = fleet.replicas[0].send(request).await;
    assert_eq!(answer.status(), StatusCode::UNAUTHORIZED);
    assert_eq!(fleet.replicas[1].metric("kas_peer_served_total{result=\"answered\"}"), 0.0);
}
