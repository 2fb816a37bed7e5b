//! HTTP/1.1 of callers, byte by byte (RFC 9112).
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

use std::{sync::Arc, time::Duration};

use agentk_core::Services;
use bytes::Bytes;
use futures_util::stream::{self, StreamExt as _};
use gateway::test_support::TlsName;
use http::{Request, Response};
use http_body::Frame;
use http_body_util::{BodyExt as _, StreamBody};
use kas_testing::world::{World, endless};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, copy_bidirectional, duplex},
    sync::Notify,
    time::{Instant, sleep, timeout},
};
use tunnel::Body;

/// Longer than a response takes, and shorter than any limit.
pub(super) const SILENCE: Duration = Duration::from_secs(5);

fn sized(body: Bytes) -> Response<Body> {
    Response::builder().header("content-length", body.len()).body(Body::from(body)).unwrap()
}

pub(super) fn services() -> Services {
    Services::new().with_fn("kubernetes", async |request: Request<Body>| match request.uri().path() {
        "/echo" => {
            let said = request.into_body().collect().await.map(|body| body.to_bytes());
            sized(said.unwrap_or_default())
        }
        "/chunks" => {
            // Its head is there before all of it, whose length would be known.
            let late = stream::once(async {
                sleep(Duration::from_millis(1)).await;
                Ok::<_, std::io::Error>(Frame::data(Bytes::from_static(b"one,two")))
            });
            Response::new(Body::new(StreamBody::new(late)))
        }
        "/broken" => {
            let broken = stream::iter([Err(std::io::Error::other("the disk is gone"))]);
            let first = stream::iter([Ok(Frame::data(Bytes::from_static(b"half")))]);
            Response::new(Body::new(StreamBody::new(first.chain(broken))))
        }
        "/empty" => Response::builder().status(204).body(Body::empty()).unwrap(),
        "/unmodified" => {
            Response::builder().status(304).header("content-length", 4).body(Body::empty()).unwrap()
        }
        "/dated" => Response::builder().header("date", "long ago").body(Body::empty()).unwrap(),
        "/early" => sized("no, thanks".into()),
        "/watch" => Response::new(endless("watching")),
        "/never" => std::future::pending().await,
        path => sized(path.to_owned().into()),
    })
}

/// Returns the request line, `Host` and the credential.
pub(super) fn head(world: &World, line: &str) -> String {
    let (method, path) = line.split_once(' ').unwrap();
    let path = path.replacen('/', "/agents/prod/kubernetes/", 1);
    let version = if path.contains(" HTTP/") { "" } else { " HTTP/1.1" };
    format!("{method} {path}{version}\r\nHost: kas\r\n{}\r\n", world.authorization())
}

/// Reads until the connection is closed or silent.
async fn read(connection: &mut DuplexStream) -> String {
    let mut all = Vec::new();
    let mut some = [0; 4096];
    while let Ok(Ok(read @ 1..)) = timeout(SILENCE, connection.read(&mut some)).await {
        all.extend_from_slice(&some[..read]);
    }
    String::from_utf8_lossy(&all).into_owned()
}

/// Reads until the connection is closed. Returns `None` if it stays open.
pub(super) async fn read_to_end(connection: &mut DuplexStream) -> Option<String> {
    let mut all = Vec::new();
    timeout(SILENCE, connection.read_to_end(&mut all)).await.ok()?.ok()?;
    Some(String::from_utf8_lossy(&all).into_owned())
}

pub(super) async fn exchange(world: &World, request: &str) -> String {
    let mut connection = world.connect();
    connection.write_all(request.as_bytes()).await.unwrap();
    read(&mut connection).await
}

#[tokio::test(start_paused = true)]
async fn requests_that_come_together_are_answered_in_order() {
    let world = World::new();
    let _agent = world.agent(services()).await;
    let requests = format!(
        "{}\r\n{}Content-Length: 3\r\n\r\nabc{}\r\n{}Transfer-Encoding: chunked\r\n\r\n1\r\nx\r\n2\r\nyz\r\n0\r\n\r\n{}\r\n",
        head(&world, "GET /first"),
        head(&world, "POST /echo"),
        head(&world, "HEAD /second"),
        head(&world, "PUT /echo"),
        head(&world, "GET /third"),
    );
    // All at once, and in pieces that respect nothing.
    for step in [requests.len(), 1, 7, 100] {
        let mut connection = world.connect();
        for piece in requests.as_bytes().chunks(step) {
            connection.write_all(piece).await.unwrap();
            tokio::task::yield_now().await;
        }
        let answers = read(&mut connection).await;
        let bodies: Vec<&str> = answers.split("\r\n\r\n").skip(1).collect();
        let bodies: Vec<&str> = bodies.iter().map(|rest| rest.split("HTTP/1.1 ").next().unwrap()).collect();
        assert_eq!(bodies, ["/first", "abc", "", "xyz", "/third"], "{step}: {answers}");
        assert!(!answers.contains("connection: close"), "{answers}");
    }
}

#[tokio::test(start_paused = true)]
async fn response_framing_depends_on_the_version() {
    let world = World::new();
    let _agent = world.agent(services()).await;
    let chunked = "7\r\none,two\r\n0\r\n\r\n";
    for (line, fields, expected, end, closed) in [
        ("GET /fixed", "", &["content-length: 6\r\n"][..], "\r\n\r\n/fixed", false),
        ("GET /chunks", "", &["transfer-encoding: chunked\r\n"], chunked, false),
        ("GET /chunks HTTP/1.0", "", &["HTTP/1.0 200 OK\r\n"], "\r\n\r\none,two", true),
        ("GET /chunks HTTP/1.0", "Connection: keep-alive\r\n", &[], "\r\n\r\none,two", true),
        ("GET /fixed HTTP/1.0", "", &["content-length: 6\r\n"], "\r\n\r\n/fixed", true),
        (
            "GET /fixed HTTP/1.0",
            "Connection: Keep-Alive\r\n",
            &["HTTP/1.0 200 OK\r\n", "content-length: 6\r\n", "connection: keep-alive\r\n"],
            "\r\n\r\n/fixed",
            false,
        ),
        ("GET /fixed", "Connection: x, Close\r\n", &["connection: close\r\n"], "\r\n\r\n/fixed", true),
        (
            "GET /fixed",
            "Connection: close\r\nConnection: keep-alive\r\n",
            &["connection: close\r\n"],
            "/fixed",
            true,
        ),
        ("HEAD /chunks", "", &["HTTP/1.1 200 OK\r\n"], "\r\n\r\n", false),
        ("GET /empty", "", &["HTTP/1.1 204 No Content\r\n"], "\r\n\r\n", false),
        ("GET /unmodified", "", &["HTTP/1.1 304 Not Modified\r\n"], "\r\n\r\n", false),
        ("GET /dated", "", &["date: long ago\r\n", "content-length: 0\r\n"], "\r\n\r\n", false),
    ] {
        let mut connection = world.connect();
        connection.write_all(format!("{}{fields}\r\n", head(&world, line)).as_bytes()).await.unwrap();
        let answer = match read_to_end(&mut connection).await {
            Some(answer) => {
                assert!(closed, "{line} {fields}: {answer}");
                answer
            }
            None => {
                assert!(!closed, "{line} {fields} stays open");
                exchange(&world, &format!("{}{fields}\r\n", head(&world, line))).await
            }
        };
        assert!(expected.iter().all(|line| answer.contains(line)), "{line} {fields}: {answer}");
        assert!(answer.ends_with(end), "{line} {fields}: {answer}");
        assert_eq!(answer.matches("\r\ndate: ").count(), 1, "{answer}");
        let framed = answer.matches("content-length").count() + answer.matches("transfer-encoding").count();
        assert!(framed <= 1, "{answer}");
        if end == "\r\n\r\n" && !line.contains("dated") {
            assert_eq!(framed, 0, "{answer}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn truncated_response_closes_the_connection() {
    let world = World::new();
    let _agent = world.agent(services()).await;
    let mut connection = world.connect();
    connection.write_all(format!("{}\r\n", head(&world, "GET /broken")).as_bytes()).await.unwrap();
    let answer = read_to_end(&mut connection).await.expect("closed");
    assert!(answer.contains("4\r\nhalf\r\n") && !answer.ends_with("0\r\n\r\n"), "{answer}");
}

#[tokio::test(start_paused = true)]
async fn http2_is_known_by_its_first_bytes_however_they_come() {
    let world = World::new();
    let _agent = world.agent(services()).await;
    for step in [1, 23, 1 << 16] {
        // A pipe that holds no more: no read gets more than that.
        let (near, mut left) = duplex(1 << 16);
        let (mut right, far) = duplex(step);
        tokio::spawn(async move { copy_bidirectional(&mut left, &mut right).await });
        let kas = Arc::clone(&world.kas);
        tokio::spawn(async move {
            kas.callers.serve(far, kas_testing::world::CALLER, TlsName::Irrelevant, Arc::default()).await
        });
        let executor = hyper_util::rt::TokioExecutor::new();
        let handshake = hyper::client::conn::http2::handshake(executor, hyper_util::rt::TokioIo::new(near));
        let (mut sender, connection) = handshake.await.unwrap();
        tokio::spawn(connection);
        let mut request = world.request("http://kas/agents/prod/kubernetes/second");
        *request.version_mut() = http::Version::HTTP_2;
        request.headers_mut().remove("host");
        let answer = sender.send_request(request).await.unwrap();
        assert_eq!(answer.version(), http::Version::HTTP_2);
        assert_eq!(kas_testing::world::text(answer).await, "/second", "{step}");
    }
}

#[tokio::test(start_paused = true)]
async fn disconnect_cancels_a_pending_or_running_request() {
    let world = World::new();
    let (noticed, reached) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (seen, asked) = (Arc::clone(&noticed), Arc::clone(&reached));
    let services = Services::new().with_fn("kubernetes", move |request: Request<Body>| {
        let guard = OnDrop(Arc::clone(&seen));
        asked.notify_one();
        async move {
            if request.uri().path() == "/never" {
                std::future::pending::<()>().await;
            }
            let body = endless("watching").map_frame(move |frame| {
                let _ = &guard;
                frame
            });
            Response::new(Body::new(body))
        }
    });
    let _agent = world.agent(services).await;
    for path in ["GET /never", "GET /watch"] {
        // Gone, or only silent from now on: a caller who waits for an answer does neither.
        for half in [false, true] {
            let mut caller = world.connect();
            caller.write_all(format!("{}\r\n", head(&world, path)).as_bytes()).await.unwrap();
            reached.notified().await;
            if path.ends_with("watch") {
                caller.read_u8().await.unwrap();
            }
            let kept = if half {
                caller.shutdown().await.unwrap();
                Some(caller)
            } else {
                drop(caller);
                None
            };
            timeout(Duration::from_millis(50), noticed.notified()).await.expect("noticed");
            drop(kept);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn unread_body_is_drained() {
    let world = World::new();
    let _agent = world.agent(services()).await;
    let refused = head(&world, "POST /echo").replacen("/agents/prod", "/nowhere", 1);
    let next = format!("{}\r\n", head(&world, "GET /next"));
    for body in [
        "Content-Length: 5\r\n\r\nhello",
        "Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\nA: b\r\n\r\n",
    ] {
        let answers = exchange(&world, &format!("{refused}{body}{next}")).await;
        assert!(answers.starts_with("HTTP/1.1 404") && answers.ends_with("\r\n\r\n/next"), "{answers}");
    }
    // The rest of the body is not parsed as a request.
    let mut connection = world.connect();
    connection
        .write_all(format!("{refused}Content-Length: {}\r\n\r\n", next.len()).as_bytes())
        .await
        .unwrap();
    let answer = read_to_end(&mut connection).await.expect("closed");
    assert!(answer.starts_with("HTTP/1.1 404") && answer.contains("\r\nconnection: close\r\n"), "{answer}");
    connection.write_all(next.as_bytes()).await.ok();
    assert_eq!(read(&mut connection).await, "");
}

/// The agent is not connected, so that the request fails after kas has taken its body.
#[tokio::test(start_paused = true)]
async fn unread_body_of_an_unanswered_request_is_drained_or_announced() {
    let world = World::new();
    let post = head(&world, "POST /echo");
    let next = format!("{}\r\n", head(&world, "GET /next"));
    let small = exchange(&world, &format!("{post}Content-Length: 5\r\n\r\nhello{next}")).await;
    assert_eq!(small.matches("HTTP/1.1 503").count(), 2, "{small}");
    assert!(!small.contains("connection: close"), "{small}");

    let large = format!("{post}Content-Length: 100000\r\n\r\n{}", "x".repeat(100_000));
    let expecting = format!("{post}Expect: 100-continue\r\nContent-Length: 5\r\n\r\n");
    for request in [large, expecting] {
        let mut connection = world.connect();
        let (mut reading, mut writing) = tokio::io::split(&mut connection);
        let mut answer = String::new();
        let (sent, received) =
            tokio::join!(writing.write_all(request.as_bytes()), reading.read_to_string(&mut answer));
        sent.unwrap();
        received.unwrap();
        assert!(answer.starts_with("HTTP/1.1 503"), "{answer}");
        assert!(answer.contains("\r\nconnection: close\r\n"), "{answer}");
    }
}

/// The answer of the cluster, of agentk or of kas may come before a small body has. The connection serves the next request
/// nevertheless, or its end is announced.
#[tokio::test(start_paused = true)]
async fn early_answer_to_late_small_body_keeps_connection_or_announces_close() {
    let world = World::new();
    let _agent = world.agent(services()).await;
    let early = head(&world, "PATCH /early");
    let of_agent = early.replacen("/kubernetes/", "/control/", 1);
    let of_kas = early.replacen("/agents/prod", "/nowhere", 1);
    let next = format!("{}\r\n", head(&world, "GET /next"));
    for request in [early, of_agent, of_kas] {
        for (delay, kept) in [(0, true), (1, true), (100, true), (1000, false)] {
            let mut connection = world.connect();
            let head = format!("{request}Content-Length: 5\r\n\r\n");
            connection.write_all(head.as_bytes()).await.unwrap();
            sleep(Duration::from_millis(delay)).await;
            // Fails if the connection is closed already.
            let _ = connection.write_all(format!("hello{next}").as_bytes()).await;
            let answers = read(&mut connection).await;
            assert_eq!(answers.ends_with("\r\n\r\n/next"), kept, "after {delay} ms: {answers}");
            assert_eq!(answers.contains("\r\nconnection: close\r\n"), !kept, "after {delay} ms: {answers}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn response_arrives_during_the_upload() {
    let world = World::new();
    let _agent = world.agent(services()).await;
    for line in ["POST /early", "POST /refused"] {
        let line = head(&world, line).replacen("/kubernetes/refused", "/control/x", 1);
        let (mut reading, mut writing) = tokio::io::split(world.connect());
        let uploading = tokio::spawn(async move {
            writing.write_all(format!("{line}Content-Length: 1000000000\r\n\r\n").as_bytes()).await.unwrap();
            let mut sent = 0;
            while writing.write_all(&[0; 10_000]).await.is_ok() {
                sent += 10_000;
                sleep(Duration::from_millis(1)).await;
            }
            sent
        });
        let mut answer = Vec::new();
        timeout(SILENCE, reading.read_to_end(&mut answer)).await.expect("an answer").unwrap();
        let answer = String::from_utf8(answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 200") || answer.starts_with("HTTP/1.1 404"), "{answer}");
        assert!(answer.contains("\r\nconnection: close\r\n"), "{answer}");
        let sent = timeout(SILENCE, uploading).await.expect("hung up").unwrap();
        assert!(sent > 10_000, "it was not reset at once, so that the answer could be read");
    }
}

#[tokio::test(start_paused = true)]
async fn head_timeout_begins_with_the_first_byte_of_a_head() {
    let world =
        World::with(|config| config.agent.kubernetes_api.limits.head_timeout = Duration::from_secs(30));
    let _agent = world.agent(services()).await;
    let mut connection = world.connect();
    let request = format!("{}\r\n", head(&world, "GET /x"));
    for _ in 0..3 {
        sleep(Duration::from_secs(300)).await;
        let (first, rest) = request.split_at(10);
        connection.write_all(first.as_bytes()).await.unwrap();
        sleep(Duration::from_secs(29)).await;
        connection.write_all(rest.as_bytes()).await.unwrap();
        assert!(read(&mut connection).await.ends_with("/x"));
    }
    let started = Instant::now();
    connection.write_all(b"GET /").await.unwrap();
    sleep(Duration::from_secs(20)).await;
    // Further bytes do not extend the time.
    connection.write_all(b"x").await.unwrap();
    connection.read_to_end(&mut Vec::new()).await.unwrap();
    assert_eq!(started.elapsed().as_secs(), 30);
    assert_eq!((world.limit_count("head-timeout"), world.limit_count("idle-timeout")), (1.0, 0.0));
}

#[tokio::test(start_paused = true)]
async fn head_timeout_does_not_apply_to_bodies_and_to_the_wait_for_a_response() {
    let world = World::with(|config| {
        config.agent.kubernetes_api.limits.head_timeout = Duration::from_secs(30);
        config.agent.kubernetes_api.limits.min_body_rate = 0;
    });
    let _agent = world.agent(services()).await;
    let mut connection = world.connect();
    let request = format!("{}Content-Length: 4\r\n\r\nha", head(&world, "POST /echo"));
    connection.write_all(request.as_bytes()).await.unwrap();
    sleep(Duration::from_secs(100)).await;
    connection.write_all(b"lf").await.unwrap();
    assert!(read(&mut connection).await.ends_with("half"));
    sleep(Duration::from_secs(100)).await;
    assert_eq!(exchange_on(&mut connection, &format!("{}\r\n", head(&world, "GET /x"))).await, "/x");
}

#[tokio::test(start_paused = true)]
async fn idle_timeout_closes_a_kept_connection() {
    let world =
        World::with(|config| config.agent.kubernetes_api.limits.idle_timeout = Duration::from_secs(30));
    let _agent = world.agent(services()).await;
    let mut connection = world.connect();
    assert_eq!(exchange_on(&mut connection, &format!("{}\r\n", head(&world, "GET /x"))).await, "/x");
    let started = Instant::now();
    connection.read_to_end(&mut Vec::new()).await.unwrap();
    let idle = (started.elapsed() + SILENCE).as_secs();
    assert!((30..=35).contains(&idle), "{idle} s");
    assert_eq!((world.limit_count("head-timeout"), world.limit_count("idle-timeout")), (0.0, 1.0));
}

#[tokio::test(start_paused = true)]
async fn draining_replica_finishes_requests_in_flight() {
    let world = World::new();
    let _agent = world.agent(services()).await;
    let (mut idle, mut half, mut busy) = (world.connect(), world.connect(), world.connect());
    assert_eq!(exchange_on(&mut idle, &format!("{}\r\n", head(&world, "GET /x"))).await, "/x");
    half.write_all(b"GET /").await.unwrap();
    busy.write_all(format!("{}Content-Length: 4\r\n\r\nha", head(&world, "POST /echo")).as_bytes())
        .await
        .unwrap();
    sleep(Duration::from_secs(1)).await;

    world.kas.callers.connections.group.draining.cancel();
    assert_eq!(read_to_end(&mut idle).await.as_deref(), Some(""));
    busy.write_all(b"lf").await.unwrap();
    let answer = read_to_end(&mut busy).await.expect("closed after the answer");
    assert!(answer.contains("\r\nconnection: close\r\n") && answer.ends_with("half"), "{answer}");
    // A head that has begun may still become a request: it has a few seconds.
    let closed = timeout(SILENCE * 2, half.read_to_end(&mut Vec::new())).await;
    assert_eq!(closed.expect("closed").unwrap(), 0);
}

async fn exchange_on(connection: &mut DuplexStream, request: &str) -> String {
    connection.write_all(request.as_bytes()).await.unwrap();
    let answer = read(connection).await;
    answer.split_once("\r\n\r\n").unwrap().1.to_owned()
}

/// Notifies when it is dropped.
struct OnDrop(Arc<Notify>);

impl Drop for OnDrop {
    fn drop(&mut self) {
        self.0.notify_one();
    }
}
