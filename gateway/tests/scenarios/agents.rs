//! What happens when an agent, or kas, dies or is turned away.

use std::{sync::Arc, time::Duration};

use agent::Services;
use http::{Request, Response, StatusCode};
use http_body_util::BodyExt as _;
use tokio::sync::Semaphore;
use tunnel::Body;

use crate::world::{World, endless, text};

fn services() -> Services {
    Services::new().with_fn("kubernetes", async |request: Request<Body>| match request.uri().path() {
        "/watch" => Response::new(endless("watching")),
        _ => Response::new(Body::from("hello")),
    })
}

#[tokio::test(start_paused = true)]
async fn an_agent_that_dies_in_the_middle_of_an_answer_aborts_it() {
    let world = World::new();
    let agent = world.agent(services()).await;
    let mut body = world.get("/agents/prod/kubernetes/watch").await.into_body();
    body.frame().await.unwrap().unwrap();

    agent.kill();
    assert!(body.frame().await.unwrap().is_err(), "an abort must not look like a clean end");
    world.tunnels(0).await;
}

#[tokio::test(start_paused = true)]
async fn a_kas_that_dies_in_the_middle_of_an_answer_is_dialled_again() {
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
async fn a_revoked_token_cuts_the_tunnels_and_opens_no_new_ones() {
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
async fn a_callers_revoked_token_cuts_its_watches() {
    let world = World::new();
    let _agent = world.agent(services()).await;
    let mut watch = world.get("/agents/prod/kubernetes/watch?watch=true").await.into_body();
    watch.frame().await.unwrap().unwrap();

    world.dismiss_caller();
    assert!(watch.frame().await.unwrap().is_err());
    assert_eq!(world.get("/agents/prod/kubernetes/").await.status(), StatusCode::UNAUTHORIZED);
    world.tunnels(2).await;
}

#[tokio::test(start_paused = true)]
async fn an_agent_that_stops_finishes_what_it_has_begun() {
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
