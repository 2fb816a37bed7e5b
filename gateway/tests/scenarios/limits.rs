//! Each limit at N and at N + 1.

use std::time::Duration;

use agentk_core::Services;
use gateway::config::Config;
use http::{Request, Response, StatusCode};
use http_body_util::BodyExt as _;
use kas_testing::world::{World, endless, text};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    time::{Instant, timeout},
};
use tunnel::Body;

fn services() -> Services {
    Services::new().with_fn("kubernetes", async |request: Request<Body>| match request.uri().path() {
        "/watch" => Response::new(endless("watching")),
        "/large" => {
            let chunk = bytes::Bytes::from_static(&[7; 1 << 16]);
            let chunks = std::iter::repeat_n(chunk, 1 << 10);
            let frames = chunks.map(|data| Ok::<_, std::io::Error>(http_body::Frame::data(data)));
            Response::new(Body::new(http_body_util::StreamBody::new(futures_util::stream::iter(frames))))
        }
        _ => Response::new(Body::from("hello")),
    })
}

/// Opens three watches, of which the third exceeds the limit, and then ends one of the others.
async fn the_third_is_too_many(edit: impl FnOnce(&mut Config), whose: &str, limit: &str) {
    let world = World::with(edit);
    let _agent = world.agent(services()).await;
    let path = "/agents/prod/kubernetes/watch?watch=true";
    let first = world.get(path).await;
    let second = world.get(path).await;
    assert_eq!((first.status(), second.status()), (StatusCode::OK, StatusCode::OK));

    let third = world.get(path).await;
    assert_eq!(third.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(third.headers()["kas-error"], "too-many-requests");
    assert_eq!(third.headers()["retry-after"], "1");
    assert!(text(third).await.contains(whose));
    assert_eq!(world.limit_count(limit), 1.0);

    drop(first);
    // The caller's leaving travels to kas while the clock stands.
    tokio::time::sleep(Duration::from_millis(1)).await;
    assert_eq!(world.get(path).await.status(), StatusCode::OK);
}

#[tokio::test(start_paused = true)]
async fn requests_per_caller_are_limited() {
    the_third_is_too_many(
        |config| config.agent.kubernetes_api.limits.max_requests_per_caller = 2,
        "caller me",
        "requests-per-caller",
    )
    .await;
}

#[tokio::test(start_paused = true)]
async fn requests_per_agent_are_limited() {
    the_third_is_too_many(
        |config| config.agent.kubernetes_api.limits.max_requests_per_agent = 2,
        "agent prod",
        "requests-per-agent",
    )
    .await;
}

#[tokio::test(start_paused = true)]
async fn header_fields_are_limited() {
    let world = World::with(|config| config.agent.kubernetes_api.limits.max_headers = 20);
    let _agent = world.agent(services()).await;
    for (count, expected) in [(20, StatusCode::OK), (21, StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE)] {
        let mut request = world.request("/agents/prod/kubernetes/");
        for number in request.headers().len()..count {
            let name = format!("x-{number}").parse::<http::HeaderName>().unwrap();
            request.headers_mut().insert(name, "1".parse().unwrap());
        }
        assert_eq!(world.send(request).await.status(), expected, "{count} fields");
    }
    assert_eq!(world.limit_count("head"), 1.0);
}

#[tokio::test(start_paused = true)]
async fn head_bytes_are_limited() {
    let world = World::with(|config| config.agent.kubernetes_api.limits.max_head_bytes = 16 << 10);
    let _agent = world.agent(services()).await;
    for (length, expected) in
        [(15 << 10, StatusCode::OK), (17 << 10, StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE)]
    {
        let mut request = world.request("/agents/prod/kubernetes/");
        request.headers_mut().insert("x-large", "x".repeat(length).parse().unwrap());
        assert_eq!(world.send(request).await.status(), expected, "{length} bytes");
    }
    assert_eq!(world.limit_count("head"), 1.0);
}

#[tokio::test(start_paused = true)]
async fn connection_without_a_head_is_closed() {
    let world =
        World::with(|config| config.agent.kubernetes_api.limits.head_timeout = Duration::from_secs(7));
    let mut connection = world.connect();
    connection.write_all(b"GET / HTTP/1.1\r\nHost: ka").await.unwrap();
    let started = Instant::now();
    let mut rest = Vec::new();
    connection.read_to_end(&mut rest).await.unwrap();
    assert_eq!(started.elapsed().as_secs(), 7);
    assert_eq!(world.limit_count("head-timeout"), 1.0);
}

#[tokio::test(start_paused = true)]
async fn idle_connection_is_closed() {
    let world =
        World::with(|config| config.agent.kubernetes_api.limits.idle_timeout = Duration::from_secs(7));
    let _agent = world.agent(services()).await;
    let mut connection = world.connect();
    let request = format!(
        "GET /agents/prod/kubernetes/watch?watch=true HTTP/1.1\r\nHost: kas\r\n{}\r\n\r\n",
        world.authorization()
    );
    connection.write_all(request.as_bytes()).await.unwrap();
    let mut buffer = [0; 4096];
    let read = connection.read(&mut buffer).await.unwrap();
    assert!(buffer[..read].starts_with(b"HTTP/1.1 200"));
    // A watch may be silent for as long as it likes.
    assert!(timeout(Duration::from_secs(100), connection.read_to_end(&mut Vec::new())).await.is_err());

    let mut silent = world.connect();
    let started = Instant::now();
    silent.read_to_end(&mut Vec::new()).await.unwrap();
    let after = started.elapsed().as_secs();
    assert!((7..9).contains(&after), "{after} s");
    assert_eq!(world.limit_count("idle-timeout"), 1.0);
}

#[tokio::test(start_paused = true)]
async fn idle_connections_are_closed_early_only_beyond_80_percent() {
    let world = World::with(|config| config.agent.kubernetes_api.limits.max_connections = 10);
    let _agent = world.agent(services()).await;
    let watch = world.get("/agents/prod/kubernetes/watch?watch=true").await;
    let mut idle: Vec<_> = Vec::new();
    for _ in 0..7 {
        idle.push(world.connect());
        tokio::time::sleep(Duration::from_secs(10)).await;
    }
    tokio::time::sleep(Duration::from_secs(3600)).await;
    assert_eq!(world.metric("kas_connections"), 8.0);
    assert_eq!(world.limit_count("idle-connections"), 0.0);

    let _another = world.connect();
    tokio::time::sleep(Duration::from_secs(11)).await;
    assert_eq!(world.metric("kas_connections"), 8.0);
    assert_eq!((world.limit_count("idle-connections"), world.limit_count("idle-timeout")), (1.0, 0.0));
    let oldest = timeout(Duration::from_secs(1), idle[0].read(&mut [0])).await;
    assert_eq!(oldest.expect("the longest idle connection is closed").unwrap(), 0);
    assert_eq!(watch.status(), StatusCode::OK);
}

#[tokio::test(start_paused = true)]
async fn idle_http2_connection_has_no_head_timeout() {
    let world =
        World::with(|config| config.agent.kubernetes_api.limits.head_timeout = Duration::from_secs(7));
    let _agent = world.agent(services()).await;
    let io = hyper_util::rt::TokioIo::new(world.connect());
    let executor = hyper_util::rt::TokioExecutor::new();
    let (mut sender, connection) =
        hyper::client::conn::http2::handshake::<_, _, Body>(executor, io).await.unwrap();
    tokio::spawn(connection);
    for _ in 0..3 {
        let response =
            sender.send_request(world.request("http://kas/agents/prod/kubernetes/")).await.unwrap();
        assert_eq!(text(response).await, "hello");
        // kas sends a PING every 30 s, whose response are bytes without a head.
        tokio::time::sleep(Duration::from_secs(1000)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn callers_who_do_not_read_share_so_much_memory_and_no_more() {
    // Each answer may have a stream's window of 4 MiB unread: two of them are within, a third is beyond.
    let world = World::with(|config| config.agent.kubernetes_api.limits.max_bytes_in_flight = 2 * (4 << 20));
    let _agent = world.agent(services()).await;
    let mut answers = vec![
        world.get("/agents/prod/kubernetes/large").await,
        world.get("/agents/prod/kubernetes/large").await,
    ];
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(world.limit_count("bytes-in-flight"), 0.0);
    assert!(world.metric("kas_in_flight_bytes") > 6e6);

    answers.push(world.get("/agents/prod/kubernetes/large").await);
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(world.limit_count("bytes-in-flight"), 1.0);
    let mut whole = 0;
    for answer in answers {
        whole += usize::from(answer.into_body().collect().await.is_ok());
    }
    assert_eq!(whole, 2, "one was cut, the others go on");
}

#[tokio::test(start_paused = true)]
async fn tunnels_per_agent_are_limited() {
    for (limit, refused) in [(2, 0.0), (1, 1.0)] {
        let world = World::with(|config| config.agent.listen.max_tunnels_per_agent = limit);
        let _agent = world.start_agent(services());
        world.tunnels(i64::try_from(limit).unwrap()).await;
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(world.limit_count("tunnels-per-agent").min(1.0), refused, "{limit}");
        assert_eq!(text(world.get("/agents/prod/kubernetes/").await).await, "hello");
    }
}

#[tokio::test(start_paused = true)]
async fn tunnels_per_token_and_minute_are_limited() {
    // agentk gives some up, looking for another replica.
    for (limit, tunnels, refused) in [(100, 2, 0.0), (1, 1, 1.0)] {
        let world = World::with(|config| config.agent.listen.connections_per_token_per_minute = limit);
        let _agent = world.start_agent(services());
        world.tunnels(tunnels).await;
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(world.limit_count("connections-per-token").min(1.0), refused, "{limit}");
        assert_eq!(text(world.get("/agents/prod/kubernetes/").await).await, "hello");
    }
}

#[tokio::test(start_paused = true)]
async fn agents_that_come_at_once_are_let_in_one_after_the_other() {
    let world = World::with(|config| config.agent.listen.connections_per_second = 1);
    let _agent = world.start_agent(services());
    world.tunnels(2).await;
    assert!(world.limit_count("connection-rate") >= 1.0);
    assert_eq!(text(world.get("/agents/prod/kubernetes/").await).await, "hello");
}

#[tokio::test(start_paused = true)]
async fn connection_of_stalled_reader_is_closed() {
    let world = World::with(|config| {
        config.agent.kubernetes_api.limits.write_stall_timeout = Duration::from_secs(70)
    });
    let _agent = world.agent(services()).await;
    let answer = world.get("/agents/prod/kubernetes/large").await;
    tokio::time::sleep(Duration::from_secs(69)).await;
    assert_eq!(world.in_flight(), 1);
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(world.in_flight(), 0);
    let body = timeout(Duration::from_secs(1), answer.into_body().collect()).await.unwrap();
    assert!(body.is_err(), "cut in the middle");
    assert_eq!(world.limit_count("write-stall-timeout"), 1.0);
}
