//! Both ends of a tunnel over an in-memory pipe.
#![allow(clippy::unwrap_used, reason = "test support: a failure is a panic")]

use std::{future::Future, time::Duration};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::BodyExt as _;
use tokio::{
    io::{AsyncRead, AsyncWrite, DuplexStream},
    task::JoinHandle,
};
use tunnel::{
    Body, CloseReason, DrainHandle, StallCounter, Tunnel, TunnelConfig,
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
