//! Both ends of a tunnel over an in-memory pipe.
#![allow(clippy::unwrap_used, reason = "test support: a failure is a panic")]

use std::{
    future::{Future, poll_fn},
    time::Duration,
};

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::BodyExt as _;
use tokio::{
    io::{AsyncRead, AsyncWrite, DuplexStream},
    task::JoinHandle,
};
use tunnel::{
    Body, CloseReason, DrainHandle, StallCounter, Tunnel, TunnelConfig,
    upgrade::UpgradedConnection,
    websocket::{Role, WebSocket},
};

pub(crate) struct Pair {
    pub(crate) tunnel: Tunnel,
    pub(crate) drain: DrainHandle,
    /// Of both ends.
    pub(crate) stalls: StallCounter,
    pub(crate) kas: JoinHandle<CloseReason>,
    pub(crate) agent: JoinHandle<CloseReason>,
}

/// Opens a tunnel whose agent responds with `handler`.
pub(crate) async fn pair<H, F>(handler: H) -> Pair
where
    H: Fn(Request<Body>) -> F + Clone + Send + 'static,
    F: Future<Output = Response<Body>> + Send + 'static,
{
    let (kas, agent) = tokio::io::duplex(64 << 10);
    pair_over(kas, agent, handler).await
}

pub(crate) async fn pair_over<A, B, H, F>(kas: A, agent: B, handler: H) -> Pair
where
    A: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    B: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    H: Fn(Request<Body>) -> F + Clone + Send + 'static,
    F: Future<Output = Response<Body>> + Send + 'static,
{
    let config = TunnelConfig::default();
    let kas = WebSocket::new(kas, Bytes::new(), Role::Server);
    let agent = WebSocket::new(agent, Bytes::new(), Role::Client);
    let (tunnel, driver) = tunnel::open(kas, &config).await.unwrap();
    let kas = tokio::spawn(driver.run());
    let (server, drain) = tunnel::accept(agent, &config);
    let agent = tokio::spawn(server.run(move |request| {
        let handler = handler.clone();
        tokio::spawn(request.respond(handler));
    }));
    tunnel.ready().await;

    Pair { tunnel, drain, stalls: config.stalls, kas, agent }
}

pub(crate) fn get(path: &str) -> Request<Body> {
    Request::get(path).body(Body::empty()).unwrap()
}

pub(crate) async fn text(response: Response<Body>) -> String {
    let bytes = response.into_body().collect().await.unwrap().to_bytes();
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// Creates a body of `count` equal chunks, each of which is created when it is polled.
pub(crate) fn chunks(chunk: &'static [u8], count: usize) -> Body {
    use futures_util::stream::{self, StreamExt as _};
    let frames = stream::iter(0..count)
        .map(move |_| Ok::<_, std::io::Error>(http_body::Frame::data(Bytes::from_static(chunk))));
    Body::new(http_body_util::StreamBody::new(frames))
}

/// The number of bytes of [`send_single_bytes`].
pub(crate) const SINGLE_BYTES: usize = 540_000;

/// Sends bytes as fast as flow control allows.
pub(crate) async fn send_bytes(stream: &mut h2::SendStream<Bytes>, count: usize) {
    const CHUNK: usize = 16 << 10;
    for _ in 0..count / CHUNK {
        wait_capacity(stream, CHUNK).await;
        stream.send_data(Bytes::from_static(&[7; CHUNK]), false).unwrap();
    }
}

/// Sends frames of one byte. h2 counts 138 MB for them as long as they are not read, which is more than it allows.
pub(crate) async fn send_single_bytes(stream: &mut h2::SendStream<Bytes>) {
    const BATCH: usize = 20_000;
    for _ in 0..SINGLE_BYTES / BATCH {
        wait_capacity(stream, BATCH).await;
        for number in 0..BATCH {
            stream.send_data(Bytes::copy_from_slice(&[number as u8]), false).unwrap();
        }
        // Longer than the interval at which the receiver joins the frames.
        tokio::time::sleep(Duration::from_millis(300)).await;
    }
}

/// Accepts upgrades, and does not read their input.
pub(crate) async fn unread_exec(request: Request<Body>) -> Response<Body> {
    let mut response = Response::new(Body::empty());
    if request.headers().contains_key("upgrade") {
        let (near, unread) = tokio::io::duplex(1024);
        tokio::spawn(async move {
            tokio::time::sleep(Duration::from_secs(60)).await;
            drop(unread);
        });
        *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
        response.headers_mut().insert("upgrade", "SPDY/3.1".parse().unwrap());
        response.extensions_mut().insert(UpgradedConnection::new(near));
    }
    response
}

/// Sends single bytes as the input of an exec after `before` other bytes, and checks that the connection still serves requests.
pub(crate) async fn send_unread_input(
    io: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
    before: usize,
) {
    let (mut client, connection) = h2::client::handshake(io).await.unwrap();
    tokio::spawn(connection);
    let other = || Request::get("http://kas/").body(()).unwrap();
    let (response, _) = client.send_request(other(), true).unwrap();
    assert_eq!(response.await.unwrap().status(), StatusCode::OK);

    let mut exec = Request::builder().method("CONNECT").uri("http://kas/exec").body(()).unwrap();
    exec.extensions_mut().insert(h2::ext::Protocol::from_static("SPDY/3.1"));
    let (response, mut input) = client.send_request(exec, false).unwrap();
    let _output = response.await.unwrap();
    send_bytes(&mut input, before).await;
    send_single_bytes(&mut input).await;

    let (response, _) = client.send_request(other(), true).unwrap();
    assert_eq!(response.await.unwrap().status(), StatusCode::OK);
}

async fn wait_capacity(stream: &mut h2::SendStream<Bytes>, bytes: usize) {
    stream.reserve_capacity(bytes);
    while stream.capacity() < bytes {
        poll_fn(|cx| stream.poll_capacity(cx)).await.expect("the stream is open").unwrap();
    }
}

/// Creates a body that stays pending after its first chunk.
pub(crate) fn endless(first: &'static str) -> Body {
    use futures_util::stream::{self, StreamExt as _};
    let frames = stream::once(async move {
        Ok::<_, std::io::Error>(http_body::Frame::data(Bytes::from_static(first.as_bytes())))
    })
    .chain(stream::pending());
    Body::new(http_body_util::StreamBody::new(frames))
}

/// Creates a pipe, and a token that stops it without closing either end.
pub(crate) fn breakable() -> (DuplexStream, DuplexStream, tokio_util::sync::CancellationToken) {
    let (kas, mut left) = tokio::io::duplex(64 << 10);
    let (agent, mut right) = tokio::io::duplex(64 << 10);
    let cut = tokio_util::sync::CancellationToken::new();
    let cutting = cut.clone();
    tokio::spawn(async move {
        tokio::select! {
            _ = tokio::io::copy_bidirectional(&mut left, &mut right) => {}
            () = cutting.cancelled() => {
                // Both ends stay open and silent.
                tokio::time::sleep(Duration::MAX).await;
            }
        }
    });
    (kas, agent, cut)
}
