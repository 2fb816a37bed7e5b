//! HTTP/1.1 of callers, and on the listener for agents.

use std::time::Duration;

use agentk_core::Services;
use gateway::config::AgentProtocol;
use http::{Request, Response};
use kas_testing::world::World;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    time::{Instant, sleep, timeout},
};
use tunnel::Body;

use crate::{
    cluster::{assert_serves, attacked, services},
    http1::{exchange, head, read, status},
    memory::Memory,
    tunnel_ends,
};

/// The default of the configuration.
const HEAD_TIMEOUT: Duration = Duration::from_secs(60);
const STALL_TIMEOUT: Duration = Duration::from_secs(300);
/// A constant of kas.
const AGENT_HEAD_TIMEOUT: Duration = Duration::from_secs(10);

#[tokio::test(start_paused = true)]
async fn attack_13_slow_head_times_out() {
    let (world, _seen, _agent) = attacked().await;
    for (mut attacker, limit) in
        [(world.connect(), HEAD_TIMEOUT), (tunnel_ends::connect(&world), AGENT_HEAD_TIMEOUT)]
    {
        let started = Instant::now();
        // `P` and `PR` could still become HTTP/2.
        for byte in b"PROPFIND / HTTP/1.1\r\nX-Slow: ".iter().chain(std::iter::repeat(&b'x')) {
            if attacker.write_all(&[*byte]).await.is_err() {
                break;
            }
            sleep(Duration::from_secs(1)).await;
        }
        let open = started.elapsed();
        assert!(open <= limit * 2 + Duration::from_secs(10), "{open:?}");
        assert_serves(&world).await;
    }
}

#[tokio::test(start_paused = true)]
async fn attack_14_stalled_body_releases_the_tunnel() {
    let world = World::with(|config| config.agent.kubernetes_api.limits.min_body_rate = 0);
    let _agent = world.agent(services()).await;
    let mut attacker = world.connect();
    let head = head(&world, "POST", "/kubernetes/collect");
    attacker.write_all(format!("{head}Content-Length: 100\r\n\r\nbegun").as_bytes()).await.unwrap();
    let started = Instant::now();
    let mut line = [0; 12];
    attacker.read_exact(&mut line).await.unwrap();
    assert_eq!(&line, b"HTTP/1.1 408");
    assert_eq!(started.elapsed().as_secs(), STALL_TIMEOUT.as_secs());
    let answer = read(&mut attacker).await;
    assert!(answer.contains("kas-error: body-timeout"), "{answer}");
    assert!(answer.contains("the caller has stopped sending the body"), "{answer}");
    assert_eq!(world.limit_count("write-stall-timeout"), 1.0);
    assert_serves(&world).await;
}

#[tokio::test(start_paused = true)]
async fn attack_14_slow_body_without_a_smallest_rate_does_not_time_out() {
    let world = World::with(|config| config.agent.kubernetes_api.limits.min_body_rate = 0);
    let _agent = world.agent(services()).await;
    let mut slow = world.connect();
    let head = head(&world, "POST", "/kubernetes/collect");
    slow.write_all(format!("{head}Content-Length: 10\r\n\r\n").as_bytes()).await.unwrap();
    for _ in 0..10 {
        sleep(STALL_TIMEOUT - Duration::from_secs(1)).await;
        slow.write_all(b"x").await.unwrap();
    }
    assert!(read(&mut slow).await.contains("10 bytes"));
}

#[tokio::test(start_paused = true)]
async fn attack_15_unread_pipelined_responses_close_the_connection() {
    let (world, seen, _agent) = attacked().await;
    let memory = Memory::now();
    let mut attacker = world.connect();
    let requests = format!("{}\r\n", head(&world, "GET", "/kubernetes/pipelined")).repeat(100);
    let flood = async {
        for _ in 0..1000 {
            if attacker.write_all(requests.as_bytes()).await.is_err() {
                return;
            }
        }
        panic!("all of it was taken");
    };
    timeout(STALL_TIMEOUT * 2, flood).await.expect("cut off");
    assert!(seen.all().len() < 10_000, "{} requests were answered into nothing", seen.all().len());
    assert_serves(&world).await;
    memory.assert_bounded();
}

#[tokio::test(start_paused = true)]
async fn attack_16_smuggled_request_is_refused() {
    let (world, seen, _agent) = attacked().await;
    let first = head(&world, "POST", "/kubernetes/collect");
    let hidden = format!("{}\r\n", head(&world, "GET", "/kubernetes/smuggled"));
    let cl = hidden.len();
    let chunked = "Transfer-Encoding: chunked\r\n";
    let forms = [
        // RFC 9112 section 6.3: Transfer-Encoding wins, and the connection is closed after the response.
        ("CL.TE", 200, format!("{first}Content-Length: {}\r\n{chunked}\r\n0\r\n\r\n{hidden}", cl + 5)),
        ("TE.CL", 200, format!("{first}{chunked}Content-Length: {}\r\n\r\n0\r\n\r\n{hidden}", cl + 5)),
        ("two lengths", 400, format!("{first}Content-Length: 0\r\nContent-Length: {cl}\r\n\r\n{hidden}")),
        ("a list of lengths", 400, format!("{first}Content-Length: 0, {cl}\r\n\r\n{hidden}")),
        ("a signed length", 400, format!("{first}Content-Length: +{cl}\r\n\r\n{hidden}")),
        ("a negative length", 400, format!("{first}Content-Length: -1\r\n\r\n{hidden}")),
        ("a huge length", 400, format!("{first}Content-Length: 18446744073709551616\r\n\r\n{hidden}")),
        (
            "chunked, identity",
            400,
            format!("{first}Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n{hidden}"),
        ),
        ("gzip, chunked", 400, format!("{first}Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n")),
        ("chunked twice", 400, format!("{first}{chunked}{chunked}\r\n0\r\n\r\n")),
        ("xchunked", 400, format!("{first}Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n{hidden}")),
        ("a quoted coding", 400, format!("{first}Transfer-Encoding: \"chunked\"\r\n\r\n0\r\n\r\n{hidden}")),
        ("a vertical tab", 400, format!("{first}Transfer-Encoding:\u{b}chunked\r\n\r\n0\r\n\r\n{hidden}")),
        (
            "HTTP/1.0",
            400,
            format!("{first}{chunked}\r\n0\r\n\r\n{hidden}").replacen("HTTP/1.1", "HTTP/1.0", 1),
        ),
        ("a huge chunk", 400, format!("{first}{chunked}\r\nFFFFFFFFFFFFFFFFFF\r\n{hidden}")),
        ("a signed chunk", 400, format!("{first}{chunked}\r\n-1\r\n{hidden}")),
        ("a hexadecimal prefix", 400, format!("{first}{chunked}\r\n0x1\r\nx\r\n0\r\n\r\n{hidden}")),
        ("a chunk with a long end", 400, format!("{first}{chunked}\r\n1\r\nxy\r\n0\r\n\r\n{hidden}")),
        ("a long extension", 400, format!("{first}{chunked}\r\n1;{}\r\nx\r\n0\r\n\r\n", "x".repeat(1 << 20))),
        ("a line feed in an extension", 400, format!("{first}{chunked}\r\n1;a\nx\r\n0\r\n\r\n{hidden}")),
        ("a folded line", 400, format!("{first}Transfer-Encoding:\r\n chunked\r\n\r\n0\r\n\r\n{hidden}")),
        (
            "a space before the colon",
            400,
            format!("{first}Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n{hidden}"),
        ),
        ("a bare carriage return", 400, format!("{first}X: a\rTransfer-Encoding: chunked\r\n\r\n{hidden}")),
        ("a NUL", 400, format!("{first}X: a\0b\r\n\r\n{hidden}")),
        ("two hosts", 400, format!("{first}Host: other\r\n\r\n")),
    ];
    for (name, expected, form) in forms {
        let answer = exchange(&world, &form).await;
        assert_eq!(status(&answer), expected, "{name}: {answer}");
        assert!(seen.all().iter().all(|request| !request.contains("smuggled")), "{name}");
    }
    assert_serves(&world).await;
}

/// RFC 9112 section 2.2 allows bare line feeds, and the tunnel has frames in place of lines.
#[tokio::test(start_paused = true)]
async fn attack_16_bare_line_feeds_are_normalized() {
    let (world, seen, _agent) = attacked().await;
    let plain = format!("{}X: y\r\n\r\n", head(&world, "GET", "/kubernetes/fed")).replace("\r\n", "\n");
    let answer = exchange(&world, plain).await;
    assert!(status(&answer) == 400 || seen.all() == ["GET /fed"], "{answer}");
}

#[tokio::test(start_paused = true)]
async fn attack_17_bytes_after_a_refused_upgrade_are_dropped() {
    let world = World::new();
    let services = Services::new().with_fn("kubernetes", async |request: Request<Body>| {
        use http_body_util::BodyExt as _;

        let upgrade = request.headers().contains_key("upgrade");
        let body = request.into_body().collect().await.unwrap().to_bytes();
        Response::builder().status(403).body(Body::from(format!("{upgrade} {} bytes", body.len()))).unwrap()
    });
    let _agent = world.agent(services).await;
    let head = head(&world, "POST", "/kubernetes/api/v1/namespaces/a/pods/b/exec");
    let upgrade = "Connection: Upgrade\r\nUpgrade: SPDY/3.1\r\n";
    for (framing, early, expected) in [
        ("", "\u{80}\u{3}raw", "true 0 bytes"),
        // A request with a body is no upgrade.
        ("Content-Length: 3\r\n", "raw", "false 3 bytes"),
        ("", "GET / HTTP/1.1\r\n\r\n", "true 0 bytes"),
    ] {
        let answer = exchange(&world, format!("{head}{upgrade}{framing}\r\n{early}")).await;
        assert_eq!(status(&answer), 403, "{answer}");
        assert!(answer.contains(expected), "{answer}");
        let later = answer.matches("HTTP/1.1").count();
        assert!(later == 1 || answer.contains("HTTP/1.1 4"), "{answer}");
    }
}

#[tokio::test(start_paused = true)]
async fn attack_11_h2c_upgrade_is_ignored() {
    let (world, _seen, _agent) = attacked().await;
    let head = head(&world, "GET", "/kubernetes/plain");
    let upgrade =
        "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n";
    let answer = exchange(&world, format!("{head}{upgrade}\r\nPRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")).await;
    assert_eq!(status(&answer), 200, "{answer}");
    assert!(answer.contains("GET /plain"));
    for name in ["upgrade:", "http2-settings:", "connection: upgrade"] {
        assert!(!answer.to_lowercase().contains(name), "{name}: {answer}");
    }
}

#[tokio::test(start_paused = true)]
async fn attack_11_http2_on_the_agents_listener_is_refused() {
    let world = World::with(|config| {
        config.agent.listen.protocols.remove(&AgentProtocol::Http2);
    });
    let mut attacker = tunnel_ends::connect(&world);
    attacker.write_all(crate::http2::PREFACE).await.unwrap();
    let answer = read(&mut attacker).await;
    assert!(answer.is_empty() || status(&answer) >= 400, "{answer}");
}

#[tokio::test(start_paused = true)]
async fn attack_18_large_heads_are_refused() {
    let (world, seen, _agent) = attacked().await;
    let memory = Memory::now();
    let many: String = (0..10_000).map(|number| format!("X-{number}: y\r\n")).collect();
    let fields = format!("{}{many}\r\n", head(&world, "GET", "/kubernetes/many"));
    assert_eq!(status(&exchange(&world, fields).await), 431);

    let path = format!("/kubernetes/{}", "x".repeat(1 << 20));
    let url = format!("{}\r\n", head(&world, "GET", &path));
    assert!(matches!(status(&exchange(&world, url).await), 414 | 431));

    let mut attacker = tunnel_ends::connect(&world);
    attacker.write_all(format!("GET / HTTP/1.1\r\n{many}\r\n").as_bytes()).await.ok();
    assert_eq!(status(&read(&mut attacker).await), 431);
    assert_eq!(seen.all(), Vec::<String>::new());
    assert_serves(&world).await;
    memory.assert_bounded();
}
