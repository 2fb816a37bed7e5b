//! Drains: a tunnel is replaced before it is closed.

use std::{sync::Arc, time::Duration};

use agentk_core::{Agent, AgentToken, Observability, Services, SessionConfig};
use agentk_gitlab::gitlab_protocol;
use futures_util::future::join_all;
use http::{Method, Request, Response, StatusCode};
use http_body_util::BodyExt as _;
use kas_testing::{
    fleet::TestFleet,
    world::{World, endless, text},
};
use tokio::time::{Instant, sleep};
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};
use tunnel::Body;

use crate::events::InTurn;

fn services() -> Services {
    Services::new().with_fn("kubernetes", async |request: Request<Body>| {
        if request.uri().path() == "/watch" {
            return Response::new(endless("watching"));
        }
        sleep(Duration::from_millis(70)).await;
        Response::new(Body::from("done"))
    })
}

/// A load balancer that keeps its connections would send requests until kas closes them.
#[tokio::test(start_paused = true)]
async fn replica_that_stops_closes_connections_of_callers_after_their_next_response() {
    let world = World::new();
    let _agent = world.agent(services()).await;
    let connection = async || {
        let answer = world.get("/agents/prod/kubernetes/").await;
        let connection = answer.headers().get("connection").map(|value| value.to_str().unwrap().to_owned());
        (answer.status(), connection)
    };
    assert_eq!(connection().await, (StatusCode::OK, None));
    world.kas.callers.connections.group.leaving.cancel();
    assert_eq!(connection().await, (StatusCode::OK, Some("close".to_owned())));
}

#[tokio::test(start_paused = true)]
async fn draining_under_load_loses_no_request() {
    // Forty seconds of load, in which every tunnel is replaced about four times.
    let world = World::with(|config| config.agent.listen.max_connection_age = Duration::from_secs(10).into());
    let _agent = world.agent(services()).await;
    let end = Instant::now() + Duration::from_secs(40);
    let callers = (0..20).map(|_| {
        let world = world.clone();
        async move {
            let mut answered = 0;
            while Instant::now() < end {
                let answer = world.get("/agents/prod/kubernetes/").await;
                assert_eq!(answer.status(), StatusCode::OK, "{}", text(answer).await);
                assert_eq!(text(answer).await, "done");
                answered += 1;
            }
            answered
        }
    });
    let answered: u32 = join_all(callers).await.into_iter().sum();
    assert!(answered > 20 * 300, "{answered}");
    world.tunnels(2).await;
}

#[tokio::test(start_paused = true)]
async fn tunnel_at_maximum_age_is_replaced_and_its_streams_continue() {
    let world = World::with(|config| config.agent.listen.max_connection_age = Duration::from_secs(60).into());
    let _agent = world.agent(services()).await;
    let mut watch = world.get("/agents/prod/kubernetes/watch").await.into_body();
    watch.frame().await.unwrap().unwrap();

    // The old tunnel of the watch lives on beside the two new ones.
    sleep(Duration::from_secs(70)).await;
    world.tunnels(3).await;
    assert_eq!(text(world.get("/agents/prod/kubernetes/").await).await, "done");
    assert!(tokio::time::timeout(Duration::from_secs(1), watch.frame()).await.is_err(), "still watching");
    drop(watch);
    world.tunnels(2).await;
}

#[tokio::test(start_paused = true)]
async fn tunnel_with_stream_in_flight_ends_when_agents_are_cut() {
    let world = World::new();
    let _agent = world.agent(services()).await;
    let mut watch = world.get("/agents/prod/kubernetes/watch").await.into_body();
    watch.frame().await.unwrap().unwrap();

    world.kas.agents.connections.draining.cancel();
    sleep(Duration::from_secs(60)).await;
    world.tunnels(1).await;
    world.kas.agents.connections.cut.cancel();
    world.tunnels(0).await;
    assert!(watch.frame().await.unwrap().is_err());
}

/// Test of a body that was partly sent to a replica which cannot use its tunnel.
#[tokio::test(start_paused = true)]
async fn large_request_goes_to_the_replica_of_the_next_tunnel() {
    const LENGTH: usize = 2 << 20;
    let fleet = TestFleet::with(3, |config| {
        config.agent.listen.max_connection_age = Duration::from_secs(40).into();
    });
    let [front, first, second] = &*fleet.replicas else { panic!("three replicas") };
    let services = Services::new().with_fn("kubernetes", async |request: Request<Body>| {
        if request.uri().path() == "/watch" {
            return Response::new(endless("watching"));
        }
        let body = request.into_body().collect().await.unwrap().to_bytes();
        Response::new(Body::from(body.len().to_string()))
    });
    // An agent with one tunnel, whose next one ends at another replica.
    let dial = InTurn { worlds: vec![first.clone(), second.clone()], next: Arc::default() };
    let token = AgentToken::value(first.agent_token.clone());
    let config = SessionConfig { tunnels: 1, ..SessionConfig::new("ws://kas".parse().unwrap(), token) };
    let agent = Agent::new(config, dial, services, Observability::default(), gitlab_protocol);
    let _agent = AbortOnDropHandle::new(tokio::spawn(agent.run(CancellationToken::new())));
    first.tunnels(1).await;
    // The old tunnel stays for its stream.
    let mut watch = first.get("/agents/prod/kubernetes/watch").await.into_body();
    watch.frame().await.unwrap().unwrap();
    second.tunnels(1).await;
    sleep(Duration::from_secs(1)).await;
    for round in 0..6 {
        let mut request = front.request("/agents/prod/kubernetes/upload");
        *request.method_mut() = Method::POST;
        *request.body_mut() = Body::from("x".repeat(LENGTH));
        let answer = front.send(request).await;
        let status = answer.status();
        assert_eq!((status, text(answer).await), (StatusCode::OK, LENGTH.to_string()), "{round}");
    }
    assert_eq!(first.kas.agents.metrics.tunnels.get(), 1, "the watch goes on");
}
