//! Long responses: watches whose agent dies, and stalled readers.

use std::time::Duration;

use agentk_core::Services;
use bytes::Bytes;
use futures_util::stream;
use http::{Request, Response};
use http_body::Frame;
use http_body_util::{BodyExt as _, StreamBody};
use hyper::body::Incoming;
use kas_testing::world::{World, text};
use tokio::time::{Instant, sleep, timeout};
use tunnel::Body;

use crate::{
    cluster::services,
    http2::{DATA, frame, headers},
    memory::Memory,
    tunnel_ends::{agent, asked_for},
};

const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3600);
/// The longest time until a dead tunnel is detected: twice the interval of the keepalive, and its timeout.
const NOTICED: Duration = Duration::from_secs(20 + 20 + 10);

/// Returns a watch that sends an event each minute.
fn watched() -> Services {
    Services::new().with_fn("kubernetes", async |_: Request<Body>| {
        let events = stream::unfold((), async |()| {
            sleep(MINUTE).await;
            Some((Ok::<_, std::io::Error>(Frame::data(Bytes::from_static(b"event\n"))), ()))
        });
        Response::new(Body::new(StreamBody::new(Box::pin(events))))
    })
}

async fn watch_for(world: &World, duration: Duration) -> Incoming {
    let mut watch = world.get("/agents/prod/kubernetes/api/v1/pods?watch=true").await.into_body();
    let started = Instant::now();
    while started.elapsed() < duration {
        watch.frame().await.unwrap().unwrap();
    }
    watch
}

/// A clean end would look like the end of the watch by the API server, and silence like a watch without events.
async fn assert_cut(mut watch: Incoming, within: Duration) {
    let cut = async {
        loop {
            match watch.frame().await {
                Some(Ok(_)) => {}
                end => break end,
            }
        }
    };
    let end = timeout(within, cut).await.expect("silence");
    assert!(matches!(end, Some(Err(_))), "{end:?}");
}

#[tokio::test(start_paused = true)]
async fn attack_29_watch_is_cut_when_its_agent_dies() {
    for dies in [false, true] {
        let world = World::with(|config| {
            config.agent.listen.max_connection_age = HOUR.into();
            config.agent.kubernetes_api.listen.shutdown_grace_period = 12 * HOUR;
        });
        let agent = world.agent(watched()).await;
        // Through the tunnels that replace its own.
        let watch = watch_for(&world, 3 * HOUR).await;
        let survivor = (!dies).then_some(agent);
        world.cut_tunnels();
        assert_cut(watch, Duration::from_secs(1)).await;
        let _agent = survivor.unwrap_or_else(|| world.start_agent(watched()));
        world.tunnels(2).await;
        drop(watch_for(&world, MINUTE).await);
    }
}

#[tokio::test(start_paused = true)]
async fn attack_29_watch_is_cut_when_the_host_vanishes() {
    let world = World::new();
    let mut vanishing = agent(&world, &[]).await;
    let (watch, stream) = asked_for(&world, &mut vanishing, "/watch?watch=true").await;
    vanishing.send(&headers(stream, 0, &[(":status", "200")])).await;
    vanishing.send(&frame(DATA, 0, stream, b"event\n")).await;
    let mut watch = watch.await.unwrap().into_body();
    watch.frame().await.unwrap().unwrap();
    vanishing.go_deaf();
    assert_cut(watch, NOTICED).await;
    world.tunnels(0).await;
}

#[tokio::test(start_paused = true)]
async fn attack_30_stalled_log_readers_do_not_block_others() {
    let world = World::new();
    let _agent = world.agent(services()).await;
    let memory = Memory::now();
    let mut stalled = Vec::new();
    for _ in 0..20 {
        stalled.push(world.get("/agents/prod/kubernetes/large?follow=true").await);
    }
    sleep(Duration::from_secs(1)).await;
    let started = Instant::now();
    for _ in 0..100 {
        let quick = timeout(Duration::from_secs(1), world.get("/agents/prod/kubernetes/quick")).await;
        assert!(text(quick.expect("blocked")).await.starts_with("GET /quick"));
    }
    let large = world.get("/agents/prod/kubernetes/large").await.into_body();
    let large = timeout(MINUTE, large.collect()).await.expect("blocked").unwrap();
    assert_eq!(large.to_bytes().len(), 64 << 20);
    assert!(started.elapsed() < MINUTE);
    // The limit: the window of each stream, at both ends, and the one answer that was read.
    memory.assert_below((20 * 2 * (4 << 20)) + 2 * (64 << 20));
    let reader = stalled.pop().unwrap().into_body();
    assert_eq!(reader.collect().await.unwrap().to_bytes().len(), 64 << 20, "and lose nothing");
}
