//! Agents that violate the protocol, flood kas, are silent, or are very many.

use std::time::Duration;

use http::StatusCode;
use http_body_util::BodyExt as _;
use kas_testing::world::World;
use proto::InstanceId;
use tokio::{
    io::AsyncWriteExt as _,
    time::{Instant, sleep, timeout},
};

use crate::{
    cluster::{assert_serves, services},
    http1::{read, status},
    http2::{
        CANCEL, DATA, END_STREAM, HEADERS, RST_STREAM, Sent, frame, headers, reset, settings_frame,
        window_update,
    },
    memory::Memory,
    tunnel_ends::{agent, agent_by, asked, asked_for, connect, switched, upgrade, upgrade_as},
};

/// The code of a reset (RFC 9113 section 7).
const FLOW_CONTROL_ERROR: u32 = 3;
/// The time for each step of opening a tunnel.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

#[tokio::test(start_paused = true)]
async fn attack_41_response_beyond_its_window_is_cut() {
    let world = World::new();
    let memory = Memory::now();
    let mut attacker = agent(&world, &[]).await;
    let (asking, stream) = asked_for(&world, &mut attacker, "/watch?watch=true").await;
    attacker.send(&headers(stream, 0, &[(":status", "200")])).await;
    let unread = asking.await.unwrap();
    // 256 MiB, where 4 MiB are allowed.
    assert_ne!(attacker.flood(&frame(DATA, 0, stream, &[7; 16 << 10]), 16 << 10).await, Sent::HeldBack);
    assert!(unread.into_body().collect().await.is_err(), "cut, not ended");
    assert_eq!(attacker.next_of(RST_STREAM).await.unwrap().code(), FLOW_CONTROL_ERROR);
    let _honest = world.start_agent(services());
    world.tunnels(3).await;
    drop(attacker);
    world.tunnels(2).await;
    assert_serves(&world).await;
    memory.assert_bounded();
}

#[tokio::test(start_paused = true)]
async fn attack_41_frames_of_unopened_streams_end_the_tunnel() {
    let world = World::new();
    for (name, bytes) in [
        ("an answer to nothing", headers(9, END_STREAM, &[(":status", "200")])),
        ("an answer on an even stream", headers(2, END_STREAM, &[(":status", "200")])),
        ("data of nothing", frame(DATA, 0, 9, b"x")),
        ("a window of nothing", window_update(9, 1)),
        ("a reset of nothing", reset(9, CANCEL)),
        ("an answer on the connection", headers(0, END_STREAM, &[(":status", "200")])),
        ("data on the connection", frame(DATA, 0, 0, b"x")),
        ("a window of 2^31", window_update(0, 0x7fff_ffff)),
        ("a frame of 16 MiB", frame(DATA, 0, 1, &[0; (16 << 20) - 1])),
    ] {
        let mut attacker = agent(&world, &[]).await;
        let (asking, stream) = asked(&world, &mut attacker).await;
        assert_eq!(stream, 1);
        attacker.send(&bytes).await;
        attacker.goaway().await;
        let (code, body) = timeout(Duration::from_secs(60), asking).await.expect(name).unwrap();
        assert!(code.is_server_error(), "{name}: {code} {body}");
        world.tunnels(0).await;
    }
    let _honest = world.agent(services()).await;
    assert_serves(&world).await;
}

#[tokio::test(start_paused = true)]
async fn attack_41_repeated_or_late_responses_do_not_affect_others() {
    let world = World::new();
    let mut agent = agent(&world, &[]).await;
    // In any order: each caller gets its own.
    let (first, one) = asked(&world, &mut agent).await;
    let (second, two) = asked(&world, &mut agent).await;
    for (stream, word) in [(two, b"two"), (one, b"one")] {
        agent.send(&headers(stream, 0, &[(":status", "200")])).await;
        agent.send(&frame(DATA, END_STREAM, stream, word)).await;
    }
    assert_eq!(first.await.unwrap(), (StatusCode::OK, "one".into()));
    assert_eq!(second.await.unwrap(), (StatusCode::OK, "two".into()));

    // To a caller who left, as happens to the best.
    let (left, stream) = asked(&world, &mut agent).await;
    left.abort();
    agent.next_of(RST_STREAM).await.unwrap();
    agent.send(&headers(stream, 0, &[(":status", "200")])).await;
    agent.send(&frame(DATA, END_STREAM, stream, b"too late")).await;

    // A second head breaks its own answer off; as trailers it is one that says nothing.
    let ok = [(":status", "200")];
    let (asking, stream) = asked_for(&world, &mut agent, "/twice").await;
    agent.send(&headers(stream, 0, &ok)).await;
    let answer = asking.await.unwrap();
    agent.send(&headers(stream, 0, &[(":status", "500"), ("etag", "forged")])).await;
    assert!(answer.into_body().collect().await.is_err());
    let (asking, stream) = asked(&world, &mut agent).await;
    agent.send(&headers(stream, END_STREAM, &[(":status", "204")])).await;
    assert_eq!(asking.await.unwrap().0, StatusCode::NO_CONTENT);
}

#[tokio::test(start_paused = true)]
async fn attack_41_data_before_the_head_is_dropped() {
    let world = World::new();
    let mut attacker = agent(&world, &[]).await;
    let (asking, stream) = asked(&world, &mut attacker).await;
    attacker.send(&frame(DATA, 0, stream, b"early")).await;
    attacker.send(&headers(stream, END_STREAM, &[(":status", "200")])).await;
    let (code, body) = asking.await.unwrap();
    assert!(code.is_server_error() && !body.contains("early"), "{code} {body}");
}

#[tokio::test(start_paused = true)]
async fn attack_42_handshake_flood_is_limited_per_agent() {
    let world = World::with(|config| {
        config.agent.listen.max_tunnels_per_agent = 4;
        config.agent.listen.connections_per_token_per_minute = 2000;
        config.agent.listen.connections_per_second = 2000;
    });
    let memory = Memory::now();
    let _honest = world.agent(services()).await;
    // The flood takes only permits of its own agent, and only during a handshake.
    let held = [switched(&world).await, switched(&world).await];
    for _ in 0..1000 {
        let mut attacker = connect(&world);
        attacker.write_all(upgrade(&world).as_bytes()).await.unwrap();
        let answer = read(&mut attacker).await;
        assert_eq!(status(&answer), 429, "{answer}");
        assert!(answer.contains("retry-after: 30"), "{answer}");
    }
    assert_eq!(world.limit_count("tunnels-per-agent"), 1000.0);
    assert_serves(&world).await;
    drop(held);
    sleep(HANDSHAKE_TIMEOUT).await;
    let again = agent(&world, &[]).await;
    drop(again);
    world.tunnels(2).await;
    memory.assert_bounded();
}

#[tokio::test(start_paused = true)]
async fn attack_42_repeated_handshakes_get_retry_after() {
    let world = World::with(|config| config.agent.listen.connections_per_token_per_minute = 6);
    let _honest = world.agent(services()).await;
    let mut refused = 0;
    for _ in 0..100 {
        let mut attacker = connect(&world);
        attacker.write_all(upgrade(&world).as_bytes()).await.unwrap();
        let answer = read(&mut attacker).await;
        if status(&answer) == 429 {
            refused += 1;
            let retry = answer.lines().find_map(|line| line.strip_prefix("retry-after: ")).unwrap();
            assert!((1..=11).contains(&retry.parse::<u64>().unwrap()), "{answer}");
        }
    }
    assert!(refused >= 90, "{refused}");
    assert!(world.limit_count("connections-per-token") >= 90.0);
    assert_serves(&world).await;
    sleep(Duration::from_secs(11)).await;
    let mut later = connect(&world);
    later.write_all(upgrade(&world).as_bytes()).await.unwrap();
    assert_eq!(status(&read(&mut later).await), 101, "one more every ten seconds");
}

#[tokio::test(start_paused = true)]
async fn attack_42_invalid_hellos_take_no_permit() {
    let world = World::with(|config| config.agent.listen.max_tunnels_per_agent = 2);
    let good = upgrade(&world);
    let line = good.lines().find(|line| line.starts_with("kas-hello: ")).unwrap();
    let huge = format!("kas-hello: {}", "A".repeat(60 << 10));
    for hello in ["kas-hello:", "kas-hello: !", "kas-hello: e30", "x: y", &huge, &format!("{line}{line}")] {
        for _ in 0..20 {
            let mut attacker = connect(&world);
            attacker.write_all(good.replace(line, hello).as_bytes()).await.unwrap();
            let answer = read(&mut attacker).await;
            assert!(matches!(status(&answer), 400 | 431), "{}: {answer}", &hello[..hello.len().min(60)]);
        }
    }
    // A second one behind the first is of no interest to anybody.
    let twice = format!("{good}{good}");
    let mut attacker = connect(&world);
    attacker.write_all(twice.as_bytes()).await.unwrap();
    read(&mut attacker).await;
    sleep(HANDSHAKE_TIMEOUT).await;
    world.tunnels(0).await;
    let _honest = world.agent(services()).await;
    assert_serves(&world).await;
}

/// Frames that an agent may send between its responses, and that kas does not store.
#[tokio::test(start_paused = true)]
async fn attack_42_control_frames_between_responses_are_cheap() {
    let world = World::new();
    let memory = Memory::now();
    let mut attacker = agent(&world, &[]).await;
    let (asking, stream) = asked(&world, &mut attacker).await;
    for frames in [
        settings_frame(&[(4, 1 << 20)]),
        window_update(0, 1).repeat(10),
        window_update(stream, 1).repeat(10),
        frame(0x50, 0, stream, b"of an unknown type"),
        frame(0x50, 0, 0, &[0; 1000]),
    ] {
        assert_eq!(attacker.flood(&frames.repeat(10), 100).await, Sent::All);
    }
    attacker.send(&headers(stream, 0, &[(":status", "200")])).await;
    attacker.send(&frame(DATA, END_STREAM, stream, b"at last")).await;
    assert_eq!(asking.await.unwrap(), (StatusCode::OK, "at last".into()));
    memory.assert_bounded();
}

#[tokio::test(start_paused = true)]
async fn attack_43_unanswered_request_is_released_on_disconnect() {
    let world = World::new();
    let mut mute = agent(&world, &[]).await;
    let tasks = world.kas.agents.connections.tasks.len();
    let mut asking = Vec::new();
    for _ in 0..100 {
        asking.push(asked_for(&world, &mut mute, "/never").await);
    }
    // It answers pings, so that it is not dead; how long to wait is for the caller to say.
    sleep(Duration::from_secs(3600)).await;
    assert!(asking.iter().all(|(asking, _)| !asking.is_finished()));
    let held = world.kas.agents.tunnels.views();
    let services = held.first().unwrap().services().map(|(_, now)| now.short + now.long).sum::<u32>();
    assert_eq!(services, 100);

    for (asking, _) in &asking {
        asking.abort();
    }
    for _ in 0..100 {
        assert_eq!(mute.next_of(RST_STREAM).await.unwrap().code(), CANCEL);
    }
    sleep(Duration::from_secs(1)).await;
    let held = world.kas.agents.tunnels.views();
    let services = held.first().unwrap().services().map(|(_, now)| now.short + now.long).sum::<u32>();
    assert_eq!(services, 0, "places are freed");
    assert_eq!(world.kas.agents.connections.tasks.len(), tasks);
    assert!(world.kas.callers.connections.group.tasks.is_empty());
    assert_eq!(world.kas.callers.observers.metrics.connections.get(), 0);
}

#[tokio::test(start_paused = true)]
async fn attack_43_silent_connections_leave_no_task() {
    let world = World::new();
    let mut silent = Vec::new();
    for _ in 0..4 {
        silent.push(connect(&world));
        silent.push(switched(&world).await);
    }
    let mut half = connect(&world);
    half.write_all(b"GET / HTTP/1.1\r\nHost: kas\r\n").await.unwrap();
    silent.push(half);
    assert_eq!(world.kas.agents.connections.tasks.len(), 4);
    let started = Instant::now();
    for connection in &mut silent {
        read_to_end(connection).await;
    }
    assert!(started.elapsed() <= 3 * HANDSHAKE_TIMEOUT, "{:?}", started.elapsed());
    assert!(world.kas.agents.connections.tasks.is_empty());
    assert_eq!(world.kas.agents.metrics.tunnels.get(), 0);
    // And the places of its agent are free.
    let _honest = world.agent(services()).await;
    assert_serves(&world).await;
}

async fn read_to_end(connection: &mut tokio::io::DuplexStream) {
    use tokio::io::AsyncReadExt as _;

    let mut rest = Vec::new();
    timeout(6 * HANDSHAKE_TIMEOUT, connection.read_to_end(&mut rest)).await.expect("hung up").ok();
}

/// The limit includes both ends of each tunnel, the pipe between them and the frames that the test stores.
#[tokio::test(start_paused = true)]
async fn attack_44_hundreds_of_idle_tunnels_need_little_memory() {
    const TUNNELS: u64 = 400;
    const EACH: u64 = 256 << 10;

    let world = World::with(|config| {
        config.agent.listen.max_tunnels_per_agent = 2000;
        config.agent.listen.connections_per_token_per_minute = 2000;
        config.agent.listen.connections_per_second = 2000;
    });
    let memory = Memory::now();
    let mut idle = Vec::new();
    for _ in 0..TUNNELS {
        let upgrade = upgrade_as(&world.agent_token, InstanceId::random());
        idle.push(agent_by(&world, &upgrade, &[]).await);
    }
    // Through several rounds of keepalive, whose buffers must not stay.
    sleep(Duration::from_secs(300)).await;
    world.tunnels(i64::try_from(TUNNELS).unwrap()).await;
    println!("{} KiB for each idle tunnel, with both of its ends", memory.grown() / TUNNELS / 1024);
    memory.assert_below(TUNNELS * EACH);
    let some = idle.pop().unwrap();
    drop(idle);
    world.tunnels(1).await;
    let mut some = some;
    let (asking, stream) = asked(&world, &mut some).await;
    some.send(&headers(stream, END_STREAM, &[(":status", "204")])).await;
    assert_eq!(asking.await.unwrap().0, StatusCode::NO_CONTENT);
    assert!(timeout(Duration::from_secs(1), some.next_of(HEADERS)).await.is_err());
}

/// Frames that an agent may not send (RFC 6455 section 5), as bytes after the handshake.
#[tokio::test(start_paused = true)]
async fn attack_84_invalid_websocket_frames_end_the_tunnel() {
    let memory = Memory::now();
    let world = World::new();
    let _honest = world.agent(services()).await;
    let huge = [&[0x82, 0xff][..], &(1u64 << 62).to_be_bytes(), &[0; 4]].concat();
    let negative = [&[0x82, 0xff][..], &u64::MAX.to_be_bytes(), &[0; 4]].concat();
    for (name, bytes) in [
        ("no mask", &b"\x82\x05bytes"[..]),
        ("a length of 2^62", &huge),
        ("a length of 2^64 - 1", &negative),
        ("a reserved bit", &b"\xc2\x80\0\0\0\0"[..]),
        ("a reserved opcode", &b"\x83\x80\0\0\0\0"[..]),
        ("a control frame in fragments", &b"\x09\x80\0\0\0\0"[..]),
        ("a continuation of nothing", &b"\x80\x80\0\0\0\0"[..]),
        ("text", &b"\x81\x80\0\0\0\0"[..]),
    ] {
        let mut attacker = switched(&world).await;
        attacker.write_all(bytes).await.unwrap();
        let started = Instant::now();
        read_to_end(&mut attacker).await;
        assert_eq!(started.elapsed(), Duration::ZERO, "{name}");
        world.tunnels(2).await;
    }
    assert_serves(&world).await;
    memory.assert_bounded();
}

/// Its messages have lengths of 64 bits, although they are short.
#[tokio::test(start_paused = true)]
async fn attack_84_agent_without_settings_gets_no_request() {
    let world = World::new();
    let mut attacker = switched(&world).await;
    let ping = frame(6, 0, 0, b"12345678");
    for _ in 0..10 {
        let length = u64::try_from(ping.len()).unwrap().to_be_bytes();
        let message = [&[0x82, 0xff][..], &length, &[0; 4], &ping].concat();
        if attacker.write_all(&message).await.is_err() {
            break;
        }
        sleep(Duration::from_secs(3)).await;
    }
    world.tunnels(0).await;
    let answer = world.get("/agents/prod/kubernetes/").await;
    assert_eq!(answer.headers()["kas-error"], "agent-not-connected");
}
