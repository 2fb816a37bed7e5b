//! HTTP/2 callers that stall.

use std::time::Duration;

use kas_testing::world::World;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    time::{Instant, sleep, timeout},
};

use crate::{
    cluster::{ask, assert_serves, caller, services},
    http2::{DATA, END_STREAM, HEADERS, PING, PREFACE, Sent, frame, settings_frame, window_update},
};

/// SETTINGS_INITIAL_WINDOW_SIZE.
const INITIAL_WINDOW: u16 = 4;

/// The defaults of the configuration.
const HEAD_TIMEOUT: Duration = Duration::from_secs(60);
const IDLE_TIMEOUT: Duration = Duration::from_secs(4200);
/// The silence before a PING, and the time for its response.
const PING_TIMEOUT: Duration = Duration::from_secs(30 + 20);
const STALL_TIMEOUT: Duration = Duration::from_secs(300);

async fn attacked() -> (World, impl Sized) {
    let world = World::new();
    let agent = world.agent(services()).await;
    (world, agent)
}

#[tokio::test(start_paused = true)]
async fn attack_06_unread_responses_end_the_connection() {
    let (world, _agent) = attacked().await;
    let before = world.kas.agents.metrics.connections.get();
    let mut attacker = caller(&world, &[]).await;
    attacker.go_deaf();
    assert_eq!(attacker.flood(&frame(PING, 0, 0, b"12345678").repeat(1000), 1000).await, Sent::HeldBack);
    assert_eq!(world.kas.agents.metrics.connections.get(), before + 1);
    sleep(STALL_TIMEOUT).await;
    assert_eq!(world.kas.agents.metrics.connections.get(), before);
}

#[tokio::test(start_paused = true)]
async fn attack_07_closed_window_releases_the_tunnel() {
    let (world, _agent) = attacked().await;
    let mut attacker = caller(&world, &[(INITIAL_WINDOW, 0)]).await;
    attacker.send(&ask(&world, 1, END_STREAM, "/large", &[])).await;
    attacker.send(&ask(&world, 3, END_STREAM, "/watch", &[])).await;
    attacker.next_of(HEADERS).await.unwrap();
    attacker.next_of(HEADERS).await.unwrap();
    assert_eq!(world.in_flight(), 2);
    sleep(STALL_TIMEOUT - Duration::from_secs(1)).await;
    assert_eq!(world.in_flight(), 2);
    sleep(Duration::from_secs(2)).await;
    assert_eq!(world.in_flight(), 0);
    assert_eq!(world.limit_count("write-stall-timeout"), 2.0);
    sleep(Duration::from_secs(10)).await;
    assert_eq!(world.limit_count("write-stall-timeout"), 2.0, "each is cut once");

    // The caller receives an abort, and not a clean end.
    attacker.send(&window_update(1, 1 << 30)).await;
    attacker.send(&window_update(0, 1 << 30)).await;
    assert!(attacker.body(1).await.is_err());
    assert_serves(&world).await;
}

#[tokio::test(start_paused = true)]
async fn attack_07_window_of_single_bytes_releases_the_tunnel() {
    let (world, _agent) = attacked().await;
    let mut attacker = caller(&world, &[(INITIAL_WINDOW, 0)]).await;
    attacker.send(&ask(&world, 1, END_STREAM, "/large", &[])).await;
    attacker.next_of(HEADERS).await.unwrap();
    for _ in 0..=STALL_TIMEOUT.as_secs() / 10 {
        assert_eq!(world.in_flight(), 1);
        attacker.send(&window_update(1, 1)).await;
        assert_eq!(attacker.next_of(DATA).await.unwrap().payload.len(), 1);
        sleep(Duration::from_secs(10)).await;
    }
    assert_eq!(world.in_flight(), 0);
    assert_serves(&world).await;
}

#[tokio::test(start_paused = true)]
async fn attack_10_unfinished_connection_is_closed() {
    let world = World::new();
    let with_settings = &[PREFACE, &settings_frame(&[])].concat()[..];
    for (begun, limit) in [
        (&b""[..], IDLE_TIMEOUT),
        (b"P", HEAD_TIMEOUT),
        (b"PRI * HT", HEAD_TIMEOUT),
        (PREFACE, PING_TIMEOUT),
        (with_settings, PING_TIMEOUT),
    ] {
        let started = Instant::now();
        let mut attacker = world.connect();
        attacker.write_all(begun).await.unwrap();
        let mut rest = Vec::new();
        let closed = timeout(limit * 2, attacker.read_to_end(&mut rest)).await;
        closed.expect("closed").unwrap();
        let after = started.elapsed();
        assert!((limit..limit + Duration::from_secs(20)).contains(&after), "{begun:?}: {after:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn attack_10_connection_with_only_pings_is_closed() {
    let (world, _agent) = attacked().await;
    let started = Instant::now();
    let mut attacker = caller(&world, &[]).await;
    attacker.send(&ask(&world, 1, END_STREAM, "/one", &[])).await;
    attacker.body(1).await.unwrap();
    assert_eq!(attacker.goaway().await, Some(0));
    let idle = started.elapsed();
    assert!((IDLE_TIMEOUT..IDLE_TIMEOUT + Duration::from_secs(20)).contains(&idle), "{idle:?}");
}
