//! Death, revocation and shutdown of agents and of kas.

use std::{sync::Arc, time::Duration};

use agentk_core::Services;
use http::{Request, Response, StatusCode};
use http_body_util::BodyExt as _;
use kas_testing::world::{World, endless, text};
use testing::logs::Logs;
use tokio::sync::Semaphore;
use tunnel::Body;

fn services() -> Services {
    Services::new().with_fn("kubernetes", async |request: Request<Body>| match request.uri().path() {
        "/watch" => Response::new(endless("watching")),
        _ => Response::new(Body::from("hello")),
    })
}

#[tokio::test(start_paused = true)]
async fn death_of_agent_aborts_the_response() {
    let world = World::new();
    let agent = world.agent(services()).await;
    let mut body = world.get("/agents/prod/kubernetes/watch").await.into_body();
    body.frame().await.unwrap().unwrap();

    agent.kill();
    assert!(body.frame().await.unwrap().is_err(), "an abort must not look like a clean end");
    world.tunnels(0).await;
}

#[tokio::test(start_paused = true)]
async fn cut_connection_is_counted_as_lost_and_stopped_agent_as_graceful() {
    let world = World::new();
    let agent = world.agent(services()).await;
    world.cut_tunnels();
    world.tunnels(0).await;
    world.tunnels(2).await;
    assert_eq!(world.metric(r#"kas_tunnel_lifetime_seconds_count{reason="lost"}"#), 2.0);

    agent.stop().await;
    world.tunnels(0).await;
    assert_eq!(world.metric(r#"kas_tunnel_lifetime_seconds_count{reason="lost"}"#), 2.0);
    assert_eq!(world.metric(r#"kas_tunnel_lifetime_seconds_count{reason="graceful"}"#), 2.0);
}

#[tokio::test(start_paused = true)]
async fn repeated_idle_cuts_of_a_proxy_name_the_key_to_set() {
    let (world, logs) = (World::new(), Logs::capture());
    let _agent = world.agent(services()).await;
    for cuts in 1..=3 {
        assert!(!logs.text().contains("agent.tunnel.keepalive_interval"), "after {} cuts", cuts - 1);
        tokio::time::sleep(Duration::from_secs(10)).await;
        world.cut_tunnels();
        world.tunnels(0).await;
        world.tunnels(2).await;
    }
    let logs = logs.text();
    let hints = logs.lines().filter(|line| line.contains("agent.tunnel.keepalive_interval"));
    let (kas, agentk): (Vec<_>, Vec<_>) = hints.partition(|line| line.contains("agent.name=prod"));
    assert_eq!((kas.len(), agentk.len()), (2, 2), "{logs}");
    assert!(kas.iter().chain(&agentk).all(|line| line.contains("WARN") && line.contains("tunnel lost")));
    assert_eq!(world.metric(r#"kas_tunnel_lifetime_seconds_count{reason="lost"}"#), 6.0);
}

#[tokio::test(start_paused = true)]
async fn agent_reconnects_after_death_of_kas() {
    let world = World::new();
    let _agent = world.agent(services()).await;
    let mut body = world.get("/agents/prod/kubernetes/watch").await.into_body();
    body.frame().await.unwrap().unwrap();

    world.cut_tunnels();
    assert!(body.frame().await.unwrap().is_err());
    world.tunnels(2).await;
    assert_eq!(text(world.get("/agents/prod/kubernetes/").await).await, "hello");
}

#[tokio::test(start_paused = true)]
async fn revoked_agent_token_cuts_its_tunnels() {
    let world = World::new();
    let _agent = world.agent(services()).await;
    let mut body = world.get("/agents/prod/kubernetes/watch").await.into_body();
    body.frame().await.unwrap().unwrap();

    world.revoke();
    assert!(body.frame().await.unwrap().is_err());
    world.tunnels(0).await;
    tokio::time::sleep(Duration::from_secs(300)).await;
    world.tunnels(0).await;
    let answer = world.get("/agents/prod/kubernetes/").await;
    assert_eq!(answer.status(), StatusCode::SERVICE_UNAVAILABLE);
}

#[tokio::test(start_paused = true)]
async fn revoked_caller_token_cuts_its_watches() {
    let world = World::new();
    let _agent = world.agent(services()).await;
    let mut watch = world.get("/agents/prod/kubernetes/watch?watch=true").await.into_body();
    watch.frame().await.unwrap().unwrap();

    world.revoke_caller();
    assert!(watch.frame().await.unwrap().is_err());
    assert_eq!(world.get("/agents/prod/kubernetes/").await.status(), StatusCode::UNAUTHORIZED);
    world.tunnels(2).await;
}

#[tokio::test(start_paused = true)]
async fn stopping_agent_finishes_requests_in_flight() {
    let world = World::new();
    let (begun, finish) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
    let (has_begun, may_finish) = (Arc::clone(&begun), Arc::clone(&finish));
    let agent = world
        .agent(Services::new().with_fn("kubernetes", move |_: Request<Body>| {
            let (begun, finish) = (Arc::clone(&has_begun), Arc::clone(&may_finish));
            async move {
                begun.add_permits(1);
                finish.acquire().await.unwrap().forget();
                Response::new(Body::from("finished"))
            }
        }))
        .await;

    let caller = {
        let world = world.clone();
        tokio::spawn(async move { text(world.get("/agents/prod/kubernetes/").await).await })
    };
    begun.acquire().await.unwrap().forget();
    let stopping = tokio::spawn(agent.stop());
    tokio::time::sleep(Duration::from_secs(1)).await;
    finish.add_permits(1);
    assert_eq!(caller.await.unwrap(), "finished");
    stopping.await.unwrap();
    world.tunnels(0).await;
}
