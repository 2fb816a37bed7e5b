//! HTTP/2 in a tunnel: agents that attack kas, and a kas that attacks agentk.

use std::{sync::atomic::Ordering::Relaxed, time::Duration};

use http::{Method, StatusCode};
use http_body_util::BodyExt as _;
use kas_testing::world::World;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream},
    task::JoinSet,
    time::{sleep, timeout},
};
use tunnel::{Body, CloseReason};

use crate::{
    cluster::{assert_serves, services, streams},
    http2::{
        CANCEL, CONTINUATION, DATA, END_HEADERS, END_STREAM, ENHANCE_YOUR_CALM, HEADERS, PING, PUSH_PROMISE,
        REFUSED_STREAM, RST_STREAM, Sent, block, frame, goaway, headers, reset, settings_frame,
        window_update, with_size_updates,
    },
    memory::Memory,
    tunnel_ends::{
        INITIAL_WINDOW, agent, ask, asked, asked_for, assert_agentk_serves, assert_failed, bomb, connect,
        counting_kas, kas, switched, upgrade,
    },
};

#[tokio::test(start_paused = true)]
async fn attack_01_rapid_reset_by_kas_is_cheap_for_agentk() {
    let memory = Memory::now();
    let (mut kas, _agentk) = kas(&[]).await;
    let streams: Vec<u32> = streams(100_000).collect();
    for some in streams.chunks(100) {
        let pairs = some
            .iter()
            .flat_map(|stream| [ask(*stream, END_STREAM, "/never", &[]), reset(*stream, CANCEL)].concat());
        assert_eq!(kas.send(&pairs.collect::<Vec<u8>>()).await, Sent::All, "callers come and go");
    }
    kas.send(&ask(200_001, END_STREAM, "/", &[])).await;
    assert_eq!(kas.body(200_001).await.unwrap(), b"answered");
    memory.assert_bounded();
}

#[tokio::test(start_paused = true)]
async fn attack_01_resets_in_the_read_of_their_headers_reach_no_handler() {
    let (mut kas, _agentk, handled) = counting_kas(&[], 1 << 20).await;
    let pairs = streams(300).flat_map(|stream| [ask(stream, 0, "/", &[]), reset(stream, CANCEL)].concat());
    assert_eq!(kas.send(&pairs.collect::<Vec<u8>>()).await, Sent::All);
    kas.send(&ask(601, END_STREAM, "/", &[])).await;
    assert_eq!(kas.body(601).await.unwrap(), b"answered");
    assert_eq!(handled.load(Relaxed), 1);
}

#[tokio::test(start_paused = true)]
async fn attack_01_resets_beyond_the_budget_end_the_connection() {
    let (mut kas, agentk, handled) = counting_kas(&[], 1 << 20).await;
    let pairs = streams(6000).flat_map(|stream| [ask(stream, 0, "/", &[]), reset(stream, CANCEL)].concat());
    kas.send(&pairs.collect::<Vec<u8>>()).await;
    assert_eq!(kas.goaway().await, Some(ENHANCE_YOUR_CALM));
    assert!(matches!(agentk.await.unwrap(), CloseReason::Protocol(_)));
    assert_eq!(handled.load(Relaxed), 0);
    assert_agentk_serves().await;
}

#[tokio::test(start_paused = true)]
async fn attack_02_provoked_resets_are_cheap_for_agentk() {
    let memory = Memory::now();
    let (mut kas, _agentk) = kas(&[]).await;
    kas.go_deaf();
    let mut sent = Sent::All;
    let streams: Vec<u32> = streams(200_000).collect();
    for some in streams.chunks(100) {
        let one = |stream: &u32| {
            let head = ask(*stream, 0, "/never", &[("content-length", "5")]);
            [head, frame(DATA, END_STREAM, *stream, b"six by")].concat()
        };
        sent = kas.send(&some.iter().flat_map(one).collect::<Vec<u8>>()).await;
        if sent != Sent::All {
            break;
        }
    }
    assert_ne!(sent, Sent::All);
    assert_agentk_serves().await;
    memory.assert_bounded();
}

#[tokio::test(start_paused = true)]
async fn attack_02_malformed_responses_fail_only_their_requests() {
    let world = World::new();
    let mut agent = agent(&world, &[]).await;
    // More than the 1,024 resets for which h2 ends a connection by default.
    for _ in 0..1100 {
        let (asking, stream) = asked(&world, &mut agent).await;
        agent.send(&headers(stream, 0, &[(":status", "200"), ("content-length", "1")])).await;
        agent.send(&frame(DATA, END_STREAM, stream, b"too long")).await;
        // The head was fine; the body ends in an abort.
        assert!(asking.await.is_err());
    }
    let (asking, stream) = asked(&world, &mut agent).await;
    agent.send(&headers(stream, END_STREAM, &[(":status", "204")])).await;
    assert_eq!(asking.await.unwrap().0, StatusCode::NO_CONTENT);
}

#[tokio::test(start_paused = true)]
async fn attack_03_endless_head_of_kas_ends_the_tunnel() {
    let memory = Memory::now();
    let (mut kas, agentk) = kas(&[]).await;
    kas.send(&frame(HEADERS, 0, 1, &block(&[(":method", "GET")]))).await;
    assert_eq!(kas.flood(&frame(CONTINUATION, 0, 1, &block(&[("x", "y")])), 1 << 20).await, Sent::Closed);
    assert!(matches!(agentk.await.unwrap(), CloseReason::Protocol(_)));
    assert_agentk_serves().await;
    memory.assert_bounded();
}

#[tokio::test(start_paused = true)]
async fn attack_03_endless_head_of_agent_ends_its_tunnel() {
    let world = World::new();
    let memory = Memory::now();
    let mut attacker = agent(&world, &[]).await;
    let (asking, stream) = asked(&world, &mut attacker).await;
    attacker.send(&frame(HEADERS, 0, stream, &block(&[(":status", "200")]))).await;
    let more = frame(CONTINUATION, 0, stream, &block(&[("x", &"y".repeat(16_000))]));
    assert_eq!(attacker.flood(&more, 1 << 16).await, Sent::Closed);
    assert_failed(asking).await;
    world.tunnels(0).await;
    let _honest = world.agent(services()).await;
    assert_serves(&world).await;
    memory.assert_bounded();
}

#[tokio::test(start_paused = true)]
async fn attack_04_hpack_bomb_ends_the_tunnel() {
    let memory = Memory::now();
    let (mut kas, agentk) = kas(&[]).await;
    kas.send(&bomb(1, &[(":method", "GET"), (":scheme", "http"), (":path", "/")])).await;
    assert!(matches!(agentk.await.unwrap(), CloseReason::Protocol(_)));

    let world = World::new();
    let mut attacker = agent(&world, &[]).await;
    let (asking, stream) = asked(&world, &mut attacker).await;
    attacker.send(&bomb(stream, &[(":status", "200")])).await;
    assert_failed(asking).await;
    world.tunnels(0).await;
    memory.assert_bounded();
}

/// The updates are overhead of the tunnel: the head of an interim response has 14 kB of them.
#[tokio::test(start_paused = true)]
async fn attack_04_flood_of_table_size_updates_of_agent_ends_its_tunnel() {
    let world = World::new();
    let memory = Memory::now();
    let mut attacker = agent(&world, &[]).await;
    let (asking, stream) = asked(&world, &mut attacker).await;
    let updates = with_size_updates(&headers(stream, 0, &[(":status", "103")]));
    assert_eq!(attacker.flood(&updates, 10_000).await, Sent::Closed);
    assert_failed(asking).await;
    assert_eq!(world.metric(r#"kas_tunnel_lifetime_seconds_count{reason="flooded"}"#), 1.0);
    let _honest = world.agent(services()).await;
    assert_serves(&world).await;
    memory.assert_bounded();
}

#[tokio::test(start_paused = true)]
async fn attack_05_tiny_unread_data_ends_the_tunnel() {
    let memory = Memory::now();
    let (mut kas, agentk) = kas(&[]).await;
    kas.send(&ask(1, 0, "/never", &[])).await;
    assert_eq!(kas.flood(&frame(DATA, 0, 1, b"x").repeat(1000), 4000).await, Sent::Closed);
    assert_eq!(kas.goaway().await, Some(ENHANCE_YOUR_CALM));
    assert!(matches!(agentk.await.unwrap(), CloseReason::Protocol(_)));
    assert_agentk_serves().await;
    // `DATA_FRAME_BUDGET`, twice because of the allocator.
    memory.assert_below(2 * (128 << 20));
}

#[tokio::test(start_paused = true)]
async fn attack_05_empty_data_of_agent_ends_its_tunnel() {
    let world = World::new();
    let mut attacker = agent(&world, &[]).await;
    let (asking, stream) = asked(&world, &mut attacker).await;
    attacker.send(&headers(stream, 0, &[(":status", "200")])).await;
    assert_eq!(attacker.flood(&frame(DATA, 0, stream, b"").repeat(100), 1000).await, Sent::Closed);
    assert!(asking.await.is_err(), "aborted, not ended");
    world.tunnels(0).await;
    let _honest = world.agent(services()).await;
    assert_serves(&world).await;
}

#[tokio::test(start_paused = true)]
async fn attack_06_control_frames_with_unread_responses_are_held_back() {
    let floods = [settings_frame(&[(INITIAL_WINDOW, 1)]), frame(PING, 0, 0, b"12345678")];
    for one in &floods {
        let memory = Memory::now();
        let (mut kas, _agentk) = kas(&[]).await;
        kas.go_deaf();
        assert_ne!(kas.flood(&one.repeat(1000), 1000).await, Sent::All);
        assert_agentk_serves().await;
        memory.assert_bounded();

        let world = World::new();
        let mut attacker = agent(&world, &[]).await;
        attacker.go_deaf();
        assert_ne!(attacker.flood(&one.repeat(1000), 1000).await, Sent::All);
        // kas's keepalive finds the tunnel dead, once what the attacker sent before is read.
        sleep(Duration::from_secs(600)).await;
        world.tunnels(0).await;
        let _honest = world.agent(services()).await;
        assert_serves(&world).await;
        memory.assert_bounded();
    }
}

/// Sends requests with heads of 60 kB, each on a new connection.
fn ask_with_large_heads(world: &World, count: usize) -> JoinSet<StatusCode> {
    let ask = |_| {
        let mut request = world.request("/agents/prod/kubernetes/");
        *request.method_mut() = Method::POST;
        request.headers_mut().insert("x-large", "x".repeat(60_000).parse().unwrap());
        let caller = world.clone();
        async move { caller.send(request).await.status() }
    };
    (0..count).map(ask).collect()
}

fn world_with_large_heads() -> World {
    World::with(|config| {
        config.agent.kubernetes_api.limits.max_head_bytes = 128 << 10;
        config.agent.tunnel.reconnect_wait = Duration::ZERO;
    })
}

/// A reset frees the slot of its stream. The head, which still waits for the socket, must go as well.
#[tokio::test(start_paused = true)]
async fn attack_06_stalled_agent_with_resets_needs_no_memory() {
    let memory = Memory::now();
    let world = world_with_large_heads();
    let mut attacker = agent(&world, &[]).await;
    attacker.go_deaf();
    let mut first = 1;
    for _ in 0..50 {
        let mut callers = ask_with_large_heads(&world, 50);
        sleep(Duration::from_millis(100)).await;
        let resets = (0..50).flat_map(|number| reset(first + 2 * number, CANCEL));
        attacker.send(&resets.collect::<Vec<u8>>()).await;
        first += 100;
        while let Some(status) = callers.join_next().await {
            assert!(status.unwrap().is_server_error());
        }
    }
    // The heads were 150 MB.
    memory.assert_bounded();

    sleep(Duration::from_secs(60)).await;
    world.tunnels(0).await;
    let _honest = world.agent(services()).await;
    assert_serves(&world).await;
}

#[tokio::test(start_paused = true)]
async fn attack_06_stalled_agent_with_pings_loses_its_tunnel() {
    let world = world_with_large_heads();
    let mut attacker = agent(&world, &[]).await;
    attacker.go_deaf();
    let mut callers = ask_with_large_heads(&world, 50);
    for _ in 0..9 {
        sleep(Duration::from_secs(3)).await;
        // The keepalive takes it for a sign of life.
        assert_eq!(attacker.send(&window_update(0, 1)).await, Sent::All);
    }
    world.tunnels(1).await;
    sleep(Duration::from_secs(5)).await;
    world.tunnels(0).await;
    assert_eq!(world.limit_count("tunnel-write-stall-timeout"), 1.0);
    while let Some(status) = callers.join_next().await {
        assert_eq!(status.unwrap(), StatusCode::BAD_GATEWAY);
    }
    let _honest = world.agent(services()).await;
    assert_serves(&world).await;
}

#[tokio::test(start_paused = true)]
async fn attack_06_silent_agent_loses_its_tunnel() {
    let world = World::new();
    let mut attacker = agent(&world, &[]).await;
    attacker.go_deaf();
    // A sign of life now and then, often in the middle of kas's wait for its answer.
    for _ in 0..20 {
        assert_eq!(attacker.send(&window_update(0, 1)).await, Sent::All);
        sleep(Duration::from_secs(22)).await;
    }
    sleep(Duration::from_secs(60)).await;
    world.tunnels(0).await;
}

#[tokio::test(start_paused = true)]
async fn attack_07_unread_upload_is_released_on_disconnect() {
    let world = World::new();
    let mut attacker = agent(&world, &[(INITIAL_WINDOW, 0)]).await;
    let mut request = world.request("/agents/prod/kubernetes/upload");
    *request.method_mut() = Method::POST;
    *request.body_mut() = Body::from("a body that waits for its window");
    let caller = world.clone();
    let asking = tokio::spawn(async move { caller.send(request).await });
    let stream = attacker.next_of(HEADERS).await.unwrap().stream;
    sleep(Duration::from_secs(30)).await;
    assert!(!asking.is_finished());
    asking.abort();
    let left = attacker.next_of(RST_STREAM).await.unwrap();
    assert_eq!((left.stream, left.code()), (stream, CANCEL));
}

/// 300,000 frames with one byte each in four tunnels: 1.2 MB that would cost 360 MB, which `max_bytes_in_flight` does not count.
#[tokio::test(start_paused = true)]
async fn attack_05_tiny_frames_of_unread_responses_cost_little_more_than_their_payload() {
    let world = World::new();
    let (mut attackers, mut unread) = (Vec::new(), Vec::new());
    for _ in 0..4 {
        let mut attacker = agent(&world, &[]).await;
        let (asking, stream) = asked_for(&world, &mut attacker, "/log?follow=1").await;
        attacker.send(&headers(stream, 0, &[(":status", "200")])).await;
        unread.push(asking.await.unwrap());
        // Fills the buffers of the connection to the caller.
        attacker.send(&frame(DATA, 0, stream, &[7; 16 << 10]).repeat(64)).await;
        sleep(Duration::from_secs(1)).await;
        attackers.push((attacker, stream));
        // The next request gets the next tunnel, which is the least loaded one.
    }
    let memory = Memory::now();
    let bytes = || (0..10_000u32).map(|number| number as u8);
    for _ in 0..30 {
        for (attacker, stream) in &mut attackers {
            let tiny: Vec<u8> = bytes().flat_map(|byte| frame(DATA, 0, *stream, &[byte])).collect();
            assert_eq!(attacker.send(&tiny).await, Sent::All);
        }
        // Longer than the period of the budget's check.
        sleep(Duration::from_millis(300)).await;
    }
    memory.assert_bounded();
    assert_eq!(world.limit_count("bytes-in-flight"), 0.0);
    let expected: Vec<u8> = std::iter::repeat_n(7, 1 << 20).chain((0..30).flat_map(|_| bytes())).collect();
    for (response, (mut attacker, stream)) in unread.into_iter().zip(attackers) {
        attacker.send(&frame(DATA, END_STREAM, stream, b"")).await;
        let body = response.into_body().collect().await.unwrap().to_bytes();
        assert!(body == expected, "{} of {} bytes", body.len(), expected.len());
    }
}

#[tokio::test(start_paused = true)]
async fn attack_08_goaway_of_agent_loses_no_request() {
    let world = World::new();
    let mut leaving = agent(&world, &[]).await;
    let (first, finished) = asked(&world, &mut leaving).await;
    let (second, _) = asked(&world, &mut leaving).await;
    let _honest = {
        let agent = world.start_agent(services());
        world.tunnels(3).await;
        agent
    };
    leaving.send(&goaway(finished, 0)).await;
    leaving.send(&settings_frame(&[(INITIAL_WINDOW, 0)])).await;
    leaving.send(&headers(finished, END_STREAM, &[(":status", "204")])).await;
    assert_eq!(first.await.unwrap().0, StatusCode::NO_CONTENT);
    let (status, body) = second.await.unwrap();
    assert_eq!(status, StatusCode::OK, "what the agent did not look at is sent again");
    assert!(body.starts_with("GET /attacked"));
    assert_serves(&world).await;
}

#[tokio::test(start_paused = true)]
async fn attack_08_the_last_stream_id_of_a_tunnel_is_served() {
    let (mut kas, _agentk) = kas(&[]).await;
    let last = (1 << 31) - 1;
    kas.send(&ask(last, END_STREAM, "/", &[])).await;
    assert_eq!(kas.body(last).await.unwrap(), b"answered");
    kas.send(&ask(1, END_STREAM, "/", &[])).await;
    assert!(kas.goaway().await.is_some_and(|code| code != 0));
}

#[tokio::test(start_paused = true)]
async fn attack_09_streams_beyond_agentks_limit_are_refused_one_by_one() {
    let memory = Memory::now();
    let (mut kas, _agentk) = kas(&[]).await;
    for stream in streams(4096 + 100) {
        assert_eq!(kas.send(&ask(stream, END_STREAM, "/never", &[])).await, Sent::All);
    }
    for _ in 0..100 {
        assert_eq!(kas.next_of(RST_STREAM).await.unwrap().code(), REFUSED_STREAM);
    }
    memory.assert_bounded();
}

#[tokio::test(start_paused = true)]
async fn attack_10_silent_handshake_times_out() {
    let world = World::new();
    let silent = switched(&world).await;
    assert!(hung_up(silent).await, "after the 101");

    let mut half = connect(&world);
    half.write_all(&upgrade(&world).as_bytes()[..40]).await.unwrap();
    assert!(hung_up(half).await, "in the middle of its head");
    assert_eq!(world.kas.agents.metrics.tunnels.get(), 0);
}

async fn hung_up(mut connection: DuplexStream) -> bool {
    let mut rest = Vec::new();
    timeout(Duration::from_secs(30), connection.read_to_end(&mut rest)).await.is_ok()
}

#[tokio::test(start_paused = true)]
async fn attack_12_malformed_responses_reach_no_caller() {
    let world = World::new();
    let abuses: [(&str, &[(&str, &str)]); 8] = [
        ("no status", &[("content-type", "text/plain")]),
        ("two statuses", &[(":status", "200"), (":status", "200")]),
        ("a status of two digits", &[(":status", "99")]),
        ("a status of four digits", &[(":status", "1000")]),
        ("upper case", &[(":status", "200"), ("Upper", "case")]),
        ("connection", &[(":status", "200"), ("connection", "close")]),
        ("a line feed", &[(":status", "200"), ("x", "a\nb")]),
        ("101", &[(":status", "101")]),
    ];
    for (name, fields) in abuses {
        let mut attacker = agent(&world, &[]).await;
        let (asking, stream) = asked(&world, &mut attacker).await;
        attacker.send(&headers(stream, END_STREAM, fields)).await;
        timeout(Duration::from_secs(60), assert_failed(asking)).await.expect(name);
        drop(attacker);
        world.tunnels(0).await;
    }
}

#[tokio::test(start_paused = true)]
async fn attack_12_server_push_ends_the_tunnel() {
    let world = World::new();
    let mut attacker = agent(&world, &[]).await;
    let (asking, stream) = asked(&world, &mut attacker).await;
    let promised = [&2u32.to_be_bytes()[..], &block(&[(":method", "GET"), (":path", "/")])].concat();
    attacker.send(&frame(PUSH_PROMISE, END_HEADERS, stream, &promised)).await;
    assert_failed(asking).await;
    world.tunnels(0).await;
}

#[tokio::test(start_paused = true)]
async fn attack_23_flood_of_interim_responses_of_agent_ends_its_tunnel() {
    let world = World::new();
    let memory = Memory::now();
    let mut attacker = agent(&world, &[]).await;
    let (asking, stream) = asked(&world, &mut attacker).await;
    let hints = headers(stream, 0, &[(":status", "103"), ("link", &"x".repeat(1000))]);
    assert_eq!(attacker.flood(&hints.repeat(100), 2000).await, Sent::Closed);
    assert_failed(asking).await;
    assert_eq!(world.metric(r#"kas_tunnel_lifetime_seconds_count{reason="flooded"}"#), 1.0);
    let _honest = world.agent(services()).await;
    assert_serves(&world).await;
    memory.assert_bounded();
}

#[tokio::test(start_paused = true)]
async fn attack_23_interim_responses_of_agent_are_dropped() {
    let world = World::new();
    let memory = Memory::now();
    let mut attacker = agent(&world, &[]).await;
    let (asking, stream) = asked(&world, &mut attacker).await;
    let hints = headers(stream, 0, &[(":status", "103"), ("link", &"x".repeat(1000))]);
    assert_eq!(attacker.flood(&hints.repeat(10), 100).await, Sent::All);
    attacker.send(&headers(stream, 0, &[(":status", "200")])).await;
    attacker.send(&frame(DATA, END_STREAM, stream, b"at last")).await;
    assert_eq!(asking.await.unwrap(), (StatusCode::OK, "at last".to_owned()));
    memory.assert_bounded();
}
