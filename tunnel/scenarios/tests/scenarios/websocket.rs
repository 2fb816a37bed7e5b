//! `WebSocket` against tokio-tungstenite, in both roles, and below HTTP/2.
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

use std::{
    future::poll_fn,
    io::{self, IoSlice},
    pin::{Pin, pin},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::Bytes;
use futures_util::{SinkExt as _, StreamExt as _};
use http::{Request, Response};
use http_body_util::BodyExt as _;
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, ReadBuf},
    sync::Barrier,
    task::{JoinSet, coop},
    time::{Instant, sleep},
};
use tokio_tungstenite::{
    WebSocketStream,
    tungstenite::{Message, protocol::Role as TheirRole},
};
use tunnel::{
    Body, TunnelConfig,
    websocket::{Role, WebSocket},
};

use crate::support::{get, pair_over};

async fn ends(role: Role) -> (WebSocket<tokio::io::DuplexStream>, WebSocketStream<tokio::io::DuplexStream>) {
    let (ours, theirs) = tokio::io::duplex(4096);
    let their_role = match role {
        Role::Client => TheirRole::Server,
        Role::Server => TheirRole::Client,
    };
    (
        WebSocket::new(ours, Bytes::new(), role),
        WebSocketStream::from_raw_socket(theirs, their_role, None).await,
    )
}

#[tokio::test]
async fn bytes_of_any_message_size_arrive_in_both_directions() {
    for role in [Role::Client, Role::Server] {
        let (ours, theirs) = ends(role).await;
        let payload: Vec<u8> = (0..=255).cycle().take(300_000).collect();
        let expected = payload.clone();
        let (mut sink, mut stream) = theirs.split();
        let (mut reader, mut writer) = tokio::io::split(ours);

        let send = async {
            for size in [1, 125, 126, 65_535, 65_536, 100_000] {
                let rest = &expected[..size];
                sink.send(Message::binary(rest.to_vec())).await.unwrap();
                sink.send(Message::Ping(Bytes::from_static(b"there?"))).await.unwrap();
            }
        };
        let read = async {
            for size in [1, 125, 126, 65_535, 65_536, 100_000] {
                let mut bytes = vec![0; size];
                reader.read_exact(&mut bytes).await.unwrap();
                assert!(bytes == payload[..size], "{size} bytes as {role:?}");
            }
        };
        let write = async {
            for chunk in payload.chunks(70_001) {
                writer.write_all(chunk).await.unwrap();
                writer.flush().await.unwrap();
            }
            writer.shutdown().await.unwrap();
        };
        let receive = async {
            let (mut received, mut pongs, mut closed) = (Vec::new(), 0, false);
            while let Some(message) = stream.next().await {
                match message.unwrap() {
                    Message::Binary(bytes) => received.extend_from_slice(&bytes),
                    Message::Pong(_) => pongs += 1,
                    Message::Close(_) => closed = true,
                    other => panic!("{other:?}"),
                }
            }
            assert!(received == expected, "as {role:?}");
            assert!(pongs > 0, "pings are answered");
            assert!(closed, "a close frame is sent");
        };
        tokio::join!(send, read, async { tokio::join!(write, receive) });
    }
}

#[tokio::test]
async fn close_frame_ends_the_stream_and_is_answered() {
    let (mut ours, mut theirs) = ends(Role::Client).await;
    theirs.send(Message::binary(b"last words".to_vec())).await.unwrap();
    theirs.close(None).await.unwrap();

    let mut received = Vec::new();
    ours.read_to_end(&mut received).await.unwrap();
    assert_eq!(received, b"last words");
    assert!(matches!(theirs.next().await, Some(Ok(Message::Close(_)))));
}

#[tokio::test(start_paused = true)]
async fn close_frame_follows_the_pongs_to_an_end_that_did_not_read() {
    let (mut ours, theirs) = ends(Role::Server).await;
    let (mut sink, mut stream) = theirs.split();
    // Their pongs are longer than the queue may be, and then fill the buffer of tungstenite to the last byte but one.
    let send = async {
        for _ in 0..4000 {
            sink.send(Message::Ping(Bytes::from_static(&[7; 83]))).await.unwrap();
        }
    };
    tokio::select! {
        biased;
        _ = ours.read_u8() => panic!("no byte was sent"),
        () = send => {}
    }

    let receive = async {
        let mut is_closed = false;
        while let Some(message) = stream.next().await {
            is_closed |= matches!(message, Ok(Message::Close(_)));
        }
        is_closed
    };
    let (closed, is_closed) = tokio::join!(ours.shutdown(), receive);
    closed.unwrap();
    assert!(is_closed);
}

#[tokio::test]
async fn text_message_is_refused() {
    let (mut ours, mut theirs) = ends(Role::Server).await;
    theirs.send(Message::text("hello")).await.unwrap();
    let error = ours.read_u8().await.unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::InvalidData);
}

/// A byte stream that counts how often it is read and written.
struct CountedIo<T> {
    io: T,
    reads: Arc<AtomicUsize>,
    writes: Arc<AtomicUsize>,
}

impl<T> CountedIo<T> {
    fn new(io: T) -> Self {
        Self { io, reads: Arc::default(), writes: Arc::default() }
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for CountedIo<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.reads.fetch_add(1, Relaxed);
        Pin::new(&mut self.io).poll_read(cx, buf)
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for CountedIo<T> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
        self.writes.fetch_add(1, Relaxed);
        Pin::new(&mut self.io).poll_write(cx, data)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}

#[tokio::test(start_paused = true)]
async fn each_end_polls_its_connection_twice_for_a_request() {
    const REQUESTS: usize = 20;
    let (kas, agent) = tokio::io::duplex(1 << 20);
    let (kas, agent) = (CountedIo::new(kas), CountedIo::new(agent));
    let reads = [Arc::clone(&kas.reads), Arc::clone(&agent.reads)];
    let pair = pair_over(kas, agent, |_| async { Response::new(Body::from("short")) }).await;
    let before = reads.each_ref().map(|reads| reads.load(Relaxed));
    for _ in 0..REQUESTS {
        let response = pair.tunnel.call(Request::new(Body::empty())).await.unwrap();
        assert_eq!(response.into_body().collect().await.unwrap().to_bytes(), "short");
    }
    for (reads, before) in reads.iter().zip(before) {
        // One of both polls finds bytes, and then reads again.
        let reads = reads.load(Relaxed) - before;
        assert!(reads <= 3 * REQUESTS + 2, "{reads} reads for {REQUESTS} requests");
    }
}

/// A byte stream that uses up the budget of the task with each read of bytes, as 128 reads of a socket do.
struct CostlyReads<T>(T);

impl<T: AsyncRead + Unpin> AsyncRead for CostlyReads<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        ready!(Pin::new(&mut self.0).poll_read(cx, buf))?;
        while coop::has_budget_remaining() {
            let _ = pin!(coop::consume_budget()).poll(cx);
        }
        Poll::Ready(Ok(()))
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for CostlyReads<T> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, data)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}

#[tokio::test(start_paused = true)]
async fn request_arrives_at_once_after_one_that_used_up_the_budget() {
    let (kas, agent) = tokio::io::duplex(1 << 20);
    let both = Arc::new(Barrier::new(2));
    // No response wakes the connection before the second request has arrived.
    let handler = move |_: Request<Body>| {
        let both = Arc::clone(&both);
        async move {
            both.wait().await;
            Response::new(Body::empty())
        }
    };
    let pair = pair_over(kas, CostlyReads(agent), handler).await;
    let started = Instant::now();
    let later = async {
        // The agent has received the first request then, and sleeps.
        sleep(Duration::from_secs(1)).await;
        pair.tunnel.call(get("/second")).await
    };
    let (first, second) = tokio::join!(pair.tunnel.call(get("/first")), later);
    assert!(first.is_ok() && second.is_ok());
    // The next ping, after 20 s, would wake the connection, too.
    assert!(started.elapsed() < Duration::from_secs(2), "{:?}", started.elapsed());
}

#[tokio::test(start_paused = true)]
async fn responses_that_are_ready_together_are_written_together() {
    const RESPONSES: usize = 8;
    let (kas, agent) = tokio::io::duplex(1 << 20);
    let agent = CountedIo::new(agent);
    let count = Arc::clone(&agent.writes);
    let config = TunnelConfig::default();
    let socket = WebSocket::new(kas, Bytes::new(), Role::Server);
    let (tunnel, driver) = tunnel::open(socket, &config).await.unwrap();
    let (server, _drain) = tunnel::accept(WebSocket::new(agent, Bytes::new(), Role::Client), &config);
    let all = Arc::new(Barrier::new(RESPONSES));
    tokio::spawn(driver.run());
    tokio::spawn(server.run(move |request| {
        let all = Arc::clone(&all);
        tokio::spawn(request.respond(|_| async move {
            all.wait().await;
            Response::new(Body::from(Bytes::from_static(&[7; 1000])))
        }));
    }));
    tunnel.ready().await;

    let before = count.load(Relaxed);
    let calls: JoinSet<_> = (0..RESPONSES)
        .map(|_| {
            let tunnel = tunnel.clone();
            async move {
                let response = tunnel.call(Request::new(Body::empty())).await.unwrap();
                response.into_body().collect().await.unwrap().to_bytes()
            }
        })
        .collect();
    assert!(calls.join_all().await.iter().all(|body| **body == [7; 1000]));
    let writes = count.load(Relaxed) - before;
    assert!(writes <= 2, "{writes} writes for {RESPONSES} responses");
}

#[tokio::test]
async fn frames_are_written_although_the_other_end_never_pauses() {
    // Each eight of these bytes are a masked message.
    let io = tokio::io::join(tokio::io::repeat(0x82), tokio::io::sink());
    let io = CountedIo::new(io);
    let count = Arc::clone(&io.writes);
    let mut socket = WebSocket::new(io, Bytes::new(), Role::Server);
    let end_of_turn = poll_fn(|cx| {
        let slices = [IoSlice::new(&[0; 9]), IoSlice::new(&[7; 300])];
        let written = ready!(Pin::new(&mut socket).poll_write_vectored(cx, &slices)).unwrap();
        assert_eq!(written, 309);
        ready!(Pin::new(&mut socket).poll_flush(cx)).unwrap();
        let mut bytes = [0; 1024];
        while Pin::new(&mut socket).poll_read(cx, &mut ReadBuf::new(&mut bytes)).is_ready() {}
        Poll::Ready(())
    });
    end_of_turn.await;
    assert_eq!(count.load(Relaxed), 1);
}
