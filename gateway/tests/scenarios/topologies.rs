//! The clusters and the versions of agents.
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

use std::{sync::Arc, time::Duration};

use agentk_core::Services;
use http::{Request, Response, header::AUTHORIZATION};
use http_body_util::{BodyExt as _, Empty};
use hyper::body::Bytes;
use hyper_util::rt::TokioIo;
use kas_testing::{
    fleet::TestFleet,
    handshake::hello,
    world::{World, parse},
};
use proto::{TunnelProtocol, header::HELLO};
use secrecy::ExposeSecret as _;
use serde_json::{Value, json};
use testing::logs::Logs;
use tunnel::{Body, handshake};

use crate::agent_list::agents;

const IN_SEVERAL: &str = "kas_agents_in_several_clusters";

fn services() -> Services {
    Services::new().with_fn("kubernetes", async |_: Request<Body>| Response::new(Body::empty()))
}

/// Returns the clusters of the agent, if there are several.
async fn clusters(world: &World) -> Value {
    agents(world).await[0]["clusters"].clone()
}

/// Replaces the identity file by one that pins the agent to a cluster.
fn pin(world: &World, cluster: &str) {
    let text = world.identity_file("services: ['*']");
    world
        .kas
        .identities
        .replace(parse(&text.replace("name: prod,", &format!("name: prod, cluster: {cluster},"))));
}

/// Waits until a condition holds, on a paused clock.
async fn until(condition: impl Fn() -> bool) {
    let met = async {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(600), met).await.unwrap();
}

/// Sends the handshake of an agentk of this version. Returns the status and the text of the response.
async fn handshake_of(world: &World, version: &str) -> (u16, String) {
    let hello = hello(version);
    let (near, far) = tokio::io::duplex(64 << 10);
    let agents = Arc::clone(&world.kas.agents);
    tokio::spawn(async move { agents.serve(far, kas_testing::world::CALLER, Arc::default()).await });
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(near)).await.unwrap();
    tokio::spawn(connection);
    let mut request = Request::get("/").body(Empty::<Bytes>::new()).unwrap();
    (*request.headers_mut(), _) = handshake::request_headers(&[TunnelProtocol::KasTunnel]);
    request.headers_mut().insert("host", "kas".parse().unwrap());
    request.headers_mut().insert(HELLO, hello.encode().unwrap());
    let bearer = format!("Bearer {}", world.agent_token.expose_secret());
    request.headers_mut().insert(AUTHORIZATION, bearer.parse().unwrap());
    let response = sender.send_request(request).await.unwrap();
    let status = response.status().as_u16();
    let body = match status {
        101 => Bytes::new(),
        _ => response.into_body().collect().await.unwrap().to_bytes(),
    };
    (status, String::from_utf8(body.to_vec()).unwrap())
}

#[tokio::test(start_paused = true)]
async fn token_in_two_clusters_is_logged_shown_and_counted_until_one_is_left() {
    let (world, logs) = (World::new(), Logs::capture());
    let server = Arc::clone(&world.kas.agents);
    let _rechecking = tokio_util::task::AbortOnDropHandle::new(tokio::spawn(async move {
        server.recheck_clusters().await;
    }));
    let _first = world.start_agent_in("cluster-a", services());
    world.tunnels(2).await;
    assert_eq!(world.metric(IN_SEVERAL), 0.0);
    assert_eq!(clusters(&world).await, json!([]));

    let second = world.start_agent_in("cluster-b", services());
    world.tunnels(4).await;
    until(|| world.metric(IN_SEVERAL) == 1.0).await;
    assert_eq!(clusters(&world).await, json!(["cluster-a", "cluster-b"]));
    let text = logs.text();
    let line = text.lines().find(|line| line.contains("used in several clusters")).unwrap();
    assert!(
        line.contains("WARN") && line.contains("agent.name=prod") && line.contains("cluster-b"),
        "{line}"
    );

    second.stop().await;
    until(|| world.metric(IN_SEVERAL) == 0.0).await;
    assert_eq!(clusters(&world).await, json!([]));
}

#[tokio::test(start_paused = true)]
async fn token_in_two_clusters_is_found_over_two_replicas() {
    let fleet = TestFleet::new(2);
    let _first = fleet.replicas[0].start_agent_in("cluster-a", services());
    fleet.replicas[0].tunnels(2).await;
    let _second = fleet.replicas[1].start_agent_in("cluster-b", services());
    fleet.replicas[1].tunnels(2).await;
    until(|| fleet.replicas[1].metric(IN_SEVERAL) == 1.0).await;
    assert_eq!(clusters(&fleet.replicas[0]).await, json!(["cluster-a", "cluster-b"]));
}

#[tokio::test(start_paused = true)]
async fn pinned_agent_is_refused_elsewhere_with_the_reason() {
    let (world, logs) = (World::new(), Logs::capture());
    let running = world.start_agent_in("cluster-b", services());
    world.tunnels(2).await;
    pin(&world, "cluster-a");
    world.tunnels(0).await;
    let refused = r#"kas_handshakes_total{reason="wrong-cluster"}"#;
    until(|| world.metric(refused) > 0.0).await;
    let status = agents(&world).await[0]["refused"].clone();
    assert_eq!(status["reason"], "wrong-cluster");
    assert_eq!(
        status["message"],
        "agent prod is pinned to the cluster cluster-a (agents[].cluster of the identity file), and this agentk runs in the \
         cluster cluster-b: give that cluster an agent and a token of its own, or correct the pin"
    );
    let seen = running.observability.health.problems().join("\n");
    assert!(seen.contains("403") && seen.contains("runs in the cluster cluster-b"), "{seen}");
    assert!(logs.text().contains("wrong-cluster"), "{}", logs.text());

    let _right = world.start_agent_in("cluster-a", services());
    world.tunnels(2).await;
    let without = world.start_agent(services());
    until(|| without.observability.health.problems().join("").contains("does not report its cluster")).await;

    pin(&world, "cluster-b");
    until(|| running.observability.health.tunnels().borrow().eq(&2)).await;
}

#[tokio::test(start_paused = true)]
async fn agentk_too_old_or_too_new_is_refused_with_both_versions() {
    let world = World::new();
    let kas = env!("CARGO_PKG_VERSION");
    let minor: u64 = kas.split('.').nth(1).unwrap().parse().unwrap();
    for served in [kas.to_owned(), format!("0.{}.3", minor + 1)] {
        assert_eq!(handshake_of(&world, &served).await.0, 101, "{served}");
    }
    let refused = [(format!("0.{}.0", minor + 2), "too new"), ("1.1.0".to_owned(), "too new")];
    for (agentk, expected) in refused {
        let (status, body) = handshake_of(&world, &agentk).await;
        assert_eq!(status, 426, "{body}");
        let whole = format!("agentk {agentk} is {expected} for kas {kas}, which serves agentk 0.");
        assert!(body.starts_with(&whole) && body.trim_end().ends_with("upgrade kas first"), "{body}");
    }
    assert_eq!(world.metric(r#"kas_handshakes_total{reason="version"}"#), 2.0);
    assert_eq!(agents(&world).await[0]["refused"]["reason"], "version");
}
