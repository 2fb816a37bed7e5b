//! HTTP/2 attacks of callers.

use std::time::Duration;

use kas_testing::world::World;
use tokio::time::sleep;

use crate::{
    cluster::{ask, assert_serves, caller, services, streams},
    http2::{
        ACK, CANCEL, CONTINUATION, DATA, END_HEADERS, END_STREAM, ENHANCE_YOUR_CALM, HEADERS, PING, PRIORITY,
        PROTOCOL_ERROR, REFUSED_STREAM, RST_STREAM, SETTINGS, Sent, block, frame, goaway, headers, reset,
        settings_frame, string, window_update, with_size_updates,
    },
    memory::Memory,
};

/// SETTINGS_INITIAL_WINDOW_SIZE.
const INITIAL_WINDOW: u16 = 4;

async fn attacked() -> (World, impl Sized) {
    let world = World::new();
    let agent = world.agent(services()).await;
    (world, agent)
}

#[tokio::test(start_paused = true)]
async fn attack_01_rapid_reset_ends_the_connection() {
    let (world, _agent) = attacked().await;
    let memory = Memory::now();
    let mut attacker = caller(&world, &[]).await;
    let mut sent = Sent::All;
    let streams: Vec<u32> = streams(100_000).collect();
    for some in streams.chunks(100) {
        let pairs = some.iter().flat_map(|stream| {
            [ask(&world, *stream, END_STREAM, "/watch", &[]), reset(*stream, CANCEL)].concat()
        });
        sent = attacker.send(&pairs.collect::<Vec<u8>>()).await;
        if sent != Sent::All {
            break;
        }
    }
    assert_eq!(sent, Sent::Closed);
    assert_eq!(attacker.goaway().await, Some(ENHANCE_YOUR_CALM));
    assert_serves(&world).await;
    assert_eq!(world.in_flight(), 0);
    memory.assert_bounded();
}

#[tokio::test(start_paused = true)]
async fn attack_02_provoked_resets_end_the_connection() {
    let (world, _agent) = attacked().await;
    let zero = |stream| window_update(stream, 0);
    let too_much = |stream| frame(DATA, END_STREAM, stream, b"six by");
    type Provocation<'a> = Box<dyn Fn(u32) -> Vec<u8> + 'a>;
    let provocations: [(&str, u32, Provocation<'_>); 3] = [
        // Fatal at once.
        (
            "malformed",
            PROTOCOL_ERROR,
            Box::new(|stream| ask(&world, stream, 0, "/never", &[("UPPER", "case")])),
        ),
        (
            "zero",
            PROTOCOL_ERROR,
            Box::new(|stream| [ask(&world, stream, 0, "/never", &[]), zero(stream)].concat()),
        ),
        (
            "content-length",
            ENHANCE_YOUR_CALM,
            Box::new(|stream| {
                [ask(&world, stream, 0, "/never", &[("content-length", "5")]), too_much(stream)].concat()
            }),
        ),
    ];
    for (name, code, provocation) in provocations {
        let memory = Memory::now();
        let mut attacker = caller(&world, &[]).await;
        let mut sent = Sent::All;
        for stream in streams(20_000) {
            sent = attacker.send(&provocation(stream)).await;
            if sent != Sent::All {
                break;
            }
        }
        assert_eq!(sent, Sent::Closed, "{name}");
        assert_eq!(attacker.goaway().await, Some(code), "{name}");
        assert_serves(&world).await;
        memory.assert_bounded();
    }
    assert_eq!(world.in_flight(), 0);
}

#[tokio::test(start_paused = true)]
async fn attack_03_endless_head_ends_the_connection() {
    let (world, _agent) = attacked().await;
    let memory = Memory::now();
    for size in [1, 16 << 10] {
        let mut attacker = caller(&world, &[]).await;
        let padding = "x".repeat(size);
        let more = frame(CONTINUATION, 0, 1, &block(&[("x", &padding[..size.min(16_000)])]));
        attacker.send(&frame(HEADERS, 0, 1, &block(&[(":method", "GET")]))).await;
        assert_eq!(attacker.flood(&more, 1 << 20).await, Sent::Closed);
        assert!(attacker.goaway().await.is_some_and(|code| code != 0));
    }
    assert_serves(&world).await;
    memory.assert_bounded();
}

#[tokio::test(start_paused = true)]
async fn attack_04_hpack_bomb_is_refused() {
    let (world, _agent) = attacked().await;
    let memory = Memory::now();
    let mut attacker = caller(&world, &[]).await;
    // A field of 4000 bytes enters the table (RFC 7541 section 6.2.1) and is then named by one byte each.
    let mut bomb = block(&[(":method", "GET"), (":scheme", "http"), (":authority", "kas"), (":path", "/")]);
    bomb.push(0x40);
    string(&mut bomb, b"x");
    string(&mut bomb, &[b'x'; 4000]);
    bomb.resize(16_000, 0x80 | 62);
    attacker.send(&frame(HEADERS, END_HEADERS | END_STREAM, 1, &bomb)).await;
    assert!(attacker.goaway().await.is_some_and(|code| code != 0));

    // A little over the limit of 64 KiB is refused by itself.
    let mut attacker = caller(&world, &[]).await;
    let large = "x".repeat(15_000);
    let mut fields = block(&[(":method", "GET"), (":scheme", "http"), (":authority", "kas"), (":path", "/")]);
    let mut head = frame(HEADERS, END_STREAM, 1, &fields);
    for number in 0..5 {
        fields = block(&[(&format!("x-{number}"), &large)]);
        let end = if number == 4 { END_HEADERS } else { 0 };
        head.extend_from_slice(&frame(CONTINUATION, end, 1, &fields));
    }
    attacker.send(&head).await;
    let answer = attacker.next_of(HEADERS).await.unwrap();
    assert!(answer.ends_stream());
    attacker.send(&ask(&world, 3, END_STREAM, "/small", &[])).await;
    assert!(attacker.body(3).await.unwrap().starts_with(b"GET /small"));
    assert_serves(&world).await;
    memory.assert_bounded();
}

/// 7,000 updates in each of 40 heads. h2 accepts them before the first field only, and each of them is cheap.
#[tokio::test(start_paused = true)]
async fn attack_04_updates_of_the_table_size_are_cheap() {
    let (world, _agent) = attacked().await;
    let memory = Memory::now();
    let mut attacker = caller(&world, &[]).await;
    for stream in streams(40) {
        let head = with_size_updates(&ask(&world, stream, END_STREAM, "/small", &[]));
        assert_eq!(attacker.send(&head).await, Sent::All);
        assert!(attacker.body(stream).await.unwrap().starts_with(b"GET /small"));
        if stream % 100 == 1 {
            assert_serves(&world).await;
        }
    }
    // The same head with an update behind its fields.
    let late = [ask(&world, 2001, END_STREAM, "/small", &[])[9..].to_vec(), vec![0x20]].concat();
    attacker.send(&frame(HEADERS, END_HEADERS | END_STREAM, 2001, &late)).await;
    assert!(attacker.goaway().await.is_some_and(|code| code != 0));
    assert_serves(&world).await;
    memory.assert_bounded();
}

#[tokio::test(start_paused = true)]
async fn attack_05_tiny_data_ends_the_connection() {
    let world = World::with(|config| config.agent.tunnel.reconnect_wait = Duration::from_secs(3600));
    let memory = Memory::now();
    for (name, data) in [("empty", &b""[..]), ("a byte", b"x")] {
        let mut attacker = caller(&world, &[]).await;
        // The body of a request that waits for its agent is not read.
        attacker.send(&ask(&world, 1, 0, "/", &[])).await;
        assert_eq!(attacker.flood(&frame(DATA, 0, 1, data).repeat(1000), 1000).await, Sent::Closed, "{name}");
        // The limit on frames without effect sends no GOAWAY.
        assert!(attacker.goaway().await.is_none_or(|code| code == ENHANCE_YOUR_CALM), "{name}");
    }
    let _agent = world.agent(services()).await;
    assert_serves(&world).await;
    memory.assert_bounded();
}

#[tokio::test(start_paused = true)]
async fn attack_05_unread_tiny_data_needs_little_memory() {
    let (world, _agent) = attacked().await;
    let memory = Memory::now();
    let mut attacker = caller(&world, &[]).await;
    attacker.send(&ask(&world, 1, 0, "/never", &[])).await;
    assert_eq!(attacker.flood(&frame(DATA, 0, 1, b"x").repeat(1000), 100).await, Sent::All);
    assert_serves(&world).await;
    memory.assert_bounded();
}

#[tokio::test(start_paused = true)]
async fn attack_06_unread_control_responses_are_held_back() {
    let (world, _agent) = attacked().await;
    let floods = [
        ("SETTINGS", settings_frame(&[(INITIAL_WINDOW, 1)]), Sent::HeldBack),
        ("PING", frame(PING, 0, 0, b"12345678"), Sent::HeldBack),
        // These have no answer, and cost the connection.
        ("PRIORITY", frame(PRIORITY, 0, 1, &[0, 0, 0, 0, 1]), Sent::Closed),
        ("an answer to no SETTINGS", frame(SETTINGS, ACK, 0, b""), Sent::Closed),
        ("an answer to no PING", frame(PING, ACK, 0, b"12345678"), Sent::Closed),
    ];
    for (name, one, expected) in floods {
        let memory = Memory::now();
        let mut attacker = caller(&world, &[]).await;
        attacker.go_deaf();
        assert_eq!(attacker.flood(&one.repeat(1000), 1000).await, expected, "{name}");
        assert_serves(&world).await;
        memory.assert_bounded();
    }
}

#[tokio::test(start_paused = true)]
async fn attack_08_settings_after_goaway_are_harmless() {
    let (world, _agent) = attacked().await;
    let mut attacker = caller(&world, &[]).await;
    attacker.send(&ask(&world, 1, END_STREAM, "/before", &[])).await;
    attacker.send(&goaway(0, 0)).await;
    attacker.send(&settings_frame(&[(INITIAL_WINDOW, 0), (INITIAL_WINDOW, 1 << 20)])).await;
    attacker.send(&goaway(0, 0)).await;
    assert!(attacker.body(1).await.unwrap().starts_with(b"GET /before"), "what was begun is finished");
    assert_serves(&world).await;
}

#[tokio::test(start_paused = true)]
async fn attack_08_last_stream_ids_are_served() {
    let (world, _agent) = attacked().await;
    let mut attacker = caller(&world, &[]).await;
    let last = (1 << 31) - 1;
    attacker.send(&ask(&world, last, END_STREAM, "/last", &[])).await;
    assert!(attacker.body(last).await.unwrap().starts_with(b"GET /last"));
    attacker.send(&ask(&world, 1, END_STREAM, "/wrapped", &[])).await;
    assert_eq!(attacker.goaway().await, Some(PROTOCOL_ERROR));
    assert_serves(&world).await;
}

#[tokio::test(start_paused = true)]
async fn attack_09_streams_beyond_the_limit_are_refused_one_by_one() {
    let (world, _agent) = attacked().await;
    let mut attacker = caller(&world, &[]).await;
    // The limit holds from when the caller has heard of it.
    sleep(Duration::from_secs(1)).await;
    for stream in streams(300) {
        attacker.send(&ask(&world, stream, END_STREAM, "/watch", &[])).await;
    }
    for _ in 0..50 {
        let refused = attacker.next_of(RST_STREAM).await.unwrap();
        assert_eq!(refused.code(), REFUSED_STREAM);
        assert!(refused.stream > 500);
    }
    sleep(Duration::from_secs(1)).await;
    assert_eq!(world.in_flight(), 250);
    assert_serves(&world).await;
}

#[tokio::test(start_paused = true)]
async fn attack_12_invalid_pseudo_headers_are_refused() {
    let (world, _agent) = attacked().await;
    let path = "/agents/prod/kubernetes/abused";
    let honest = [(":method", "GET"), (":scheme", "http"), (":authority", "kas"), (":path", path)]
        .map(|field| vec![field]);
    let base: Vec<(&str, &str)> = honest.concat();
    let with = |more: &[(&'static str, &'static str)]| [&base[..], more].concat();
    let abuses = [
        ("twice the path", with(&[(":path", "/agents/prod/kubernetes/other")])),
        ("a pseudo-header after a field", [&[("x", "y")], &base[..]].concat()),
        ("an unknown pseudo-header", with(&[(":user", "root")])),
        ("a status", with(&[(":status", "200")])),
        ("upper case", with(&[("Upper", "case")])),
        ("another host", with(&[("host", "elsewhere")])),
        ("two hosts", with(&[("host", "kas"), ("host", "kas")])),
        ("a carriage return", with(&[("x", "a\r\nx-forwarded-for: 1")])),
        ("a NUL", with(&[("x", "a\0b")])),
        ("a name with a line feed", with(&[("x\ny", "a")])),
        ("connection", with(&[("connection", "close")])),
        ("transfer-encoding", with(&[("transfer-encoding", "chunked")])),
        ("upgrade", with(&[("upgrade", "h2c")])),
        ("te", with(&[("te", "gzip")])),
        ("no path", base[..3].to_vec()),
        ("an empty path", [&base[..3], &[(":path", "")]].concat()),
        ("a protocol", [&[(":method", "CONNECT"), (":protocol", "websocket")], &base[1..]].concat()),
        ("a tunnel to somewhere", vec![(":method", "CONNECT"), (":authority", "10.0.0.1:443")]),
    ];
    for (name, fields) in abuses {
        let bearer = ask_bearer(&world);
        let mut fields = fields;
        fields.push(("authorization", &bearer));
        let mut attacker = caller(&world, &[]).await;
        attacker.send(&headers(1, END_STREAM, &fields)).await;
        match attacker.body(1).await {
            Err(code) => assert_eq!(code, PROTOCOL_ERROR, "{name}"),
            Ok(body) => {
                let body = String::from_utf8_lossy(&body).into_owned();
                assert!(!body.starts_with("GET /"), "{name} reached the cluster: {body}");
            }
        }
    }
    assert_serves(&world).await;
}

fn ask_bearer(world: &World) -> String {
    use secrecy::ExposeSecret as _;

    format!("Bearer {}", world.caller_token.expose_secret())
}
