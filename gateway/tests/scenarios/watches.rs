//! Watches that last for hours, and those that a stopping replica ends.
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

use std::time::Duration;

use agentk_core::Services;
use bytes::Bytes;
use futures_util::stream;
use http::{Request, Response};
use http_body::Frame;
use http_body_util::{BodyExt as _, StreamBody};
use kas_testing::{
    fleet::TestFleet,
    world::{World, endless, text, uppercase_upgrade},
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream},
    time::{Instant, sleep, timeout},
};
use tunnel::Body;

const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3600);

/// Returns a watch that sends an event each minute for six hours, and then ends like that of an API server.
fn services() -> Services {
    Services::new().with_fn("kubernetes", async |request: Request<Body>| {
        if request.uri().path() != "/watch" {
            return Response::new(Body::from("done"));
        }
        let events = stream::unfold(1, async |minute| {
            if minute > 360 {
                return None;
            }
            sleep(MINUTE).await;
            let event = Bytes::from(format!("{minute}\n"));
            Some((Ok::<_, std::io::Error>(Frame::data(event)), minute + 1))
        });
        Response::new(Body::new(StreamBody::new(Box::pin(events))))
    })
}

#[tokio::test(start_paused = true)]
async fn watch_of_six_hours_outlives_tunnel_replacements() {
    let world = World::with(|config| {
        config.agent.listen.max_connection_age = HOUR.into();
        config.agent.kubernetes_api.listen.shutdown_grace_period = 12 * HOUR;
    });
    let _agent = world.agent(services()).await;
    let started = Instant::now();
    let mut watch = world.get("/agents/prod/kubernetes/watch").await.into_body();
    let mut seen = String::new();
    while let Some(frame) = watch.frame().await {
        seen += std::str::from_utf8(&frame.unwrap().into_data().unwrap()).unwrap();
        // Each event comes when it happens, and not with a later one.
        let minutes = u32::try_from(seen.lines().count()).unwrap();
        assert!(started.elapsed() < minutes * MINUTE + Duration::from_secs(1), "event {minutes}");
        if minutes % 90 == 0 {
            assert_eq!(text(world.get("/agents/prod/kubernetes/").await).await, "done");
        }
    }
    let all: String = (1..=360).map(|minute| format!("{minute}\n")).collect();
    assert_eq!(seen, all);
    // Its own tunnel ends with it: what is left are two that are younger than an hour.
    world.tunnels(2).await;
    assert_eq!(world.in_flight(), 0);
}

#[tokio::test(start_paused = true)]
async fn watch_is_cut_an_hour_after_its_tunnel_was_replaced() {
    let world = World::with(|config| {
        config.agent.listen.max_connection_age = HOUR.into();
        // Only a stopping replica has as little time.
        config.agent.kubernetes_api.listen.shutdown_grace_period = 5 * MINUTE;
    });
    let _agent = world.agent(services()).await;
    let started = Instant::now();
    let mut watch = world.get("/agents/prod/kubernetes/watch").await.into_body();
    let mut events = 0;
    let end = loop {
        match watch.frame().await {
            Some(Ok(_)) => events += 1,
            end => break end,
        }
    };
    // Cut, and not ended: a caller does not take a part for the whole.
    assert!(matches!(end, Some(Err(_))), "{end:?}");
    assert!((115..125).contains(&events), "{events}");
    assert!(started.elapsed() < 2 * HOUR + 5 * MINUTE, "{:?}", started.elapsed());
    let mut again = world.get("/agents/prod/kubernetes/watch").await.into_body();
    assert_eq!(again.frame().await.unwrap().unwrap().into_data().unwrap(), "1\n");
}

/// A cluster whose responses do not end.
fn endless_cluster() -> Services {
    Services::new().with_fn("kubernetes", async |request: Request<Body>| {
        if request.headers().contains_key("upgrade") {
            return uppercase_upgrade("event");
        }
        Response::new(endless("event"))
    })
}

/// Opens a watch by an upgrade, as browsers do, and waits for its first bytes.
async fn upgraded_watch(world: &World) -> DuplexStream {
    let mut caller = world.connect();
    let head = format!(
        "GET /agents/prod/kubernetes/api/v1/pods?watch=1 HTTP/1.1\r\nHost: kas\r\n{}\r\n\
         Connection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\r\n",
        world.authorization()
    );
    caller.write_all(head.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    while !answer.ends_with(b"event") {
        answer.push(caller.read_u8().await.unwrap());
    }
    assert!(answer.starts_with(b"HTTP/1.1 101 "), "{}", String::from_utf8_lossy(&answer));
    caller
}

/// Asserts that `front` has two watches that end and a log that goes on when `stop` is called.
async fn only_watches_end(front: &World, stop: impl FnOnce()) {
    let watch = front.get("/agents/prod/kubernetes/api/v1/pods?watch=1").await;
    let mut upgraded = upgraded_watch(front).await;
    let log = front.get("/agents/prod/kubernetes/api/v1/namespaces/a/pods/b/log?follow=true").await;
    let mut log = log.into_body();
    assert_eq!(log.frame().await.unwrap().unwrap().into_data().unwrap(), "event");
    let stopped = Instant::now();
    stop();
    assert_eq!(text(watch).await, "event");
    let after = stopped.elapsed().as_secs();
    assert!((2..=5).contains(&after), "after the agents have other tunnels: {after} s");
    // An upgrade has no other end than that of its connection.
    let rest = timeout(Duration::from_secs(6), upgraded.read(&mut [0; 16])).await;
    assert_eq!(rest.expect("the upgrade has ended").unwrap_or_default(), 0);
    assert!(timeout(MINUTE, log.frame()).await.is_err(), "the log goes on");
    assert_eq!(front.in_flight(), 1);
}

/// One watch would hold a replica for its whole grace period.
#[tokio::test(start_paused = true)]
async fn stopping_replica_ends_watches_and_waits_for_logs() {
    let world = World::new();
    let _agent = world.agent(endless_cluster()).await;
    only_watches_end(&world, || world.kas.callers.connections.group.draining.cancel()).await;
}

#[tokio::test(start_paused = true)]
async fn stopping_replica_ends_watches_of_callers_at_other_replicas() {
    let fleet = TestFleet::new(2);
    let _agent = fleet.agent(1, endless_cluster()).await;
    let owner = &fleet.replicas[1].kas.callers;
    only_watches_end(&fleet.replicas[0], || owner.connections.group.draining.cancel()).await;
}
