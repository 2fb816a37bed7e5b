//! A server in the cluster that does what a test says, on a real socket, since agentk dials it; and callers of both
//! versions of HTTP.

#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

use std::{future::Future, time::Duration};

use agent::{Services, handlers::prometheus::Prometheus, upstream::Settings};
use http::{Request, Response};
use http_body::Frame;
use http_body_util::StreamBody;
use hyper::{body::Incoming, client::conn::http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::{
    io::{AsyncRead, AsyncReadExt as _},
    net::{TcpListener, TcpStream},
    sync::mpsc,
    time::timeout,
};
use tokio_util::task::AbortOnDropHandle;
use tunnel::Body;

use crate::world::World;

pub(crate) const PATH: &str = "/agents/prod/prometheus/api/v1/query";
/// Nothing here waits by intention.
pub(crate) const SOON: Duration = Duration::from_secs(20);

/// A kas whose agent has a server that does to each connection what `serve` says.
pub(crate) async fn world<F>(serve: impl Fn(TcpStream) -> F + Send + 'static) -> (World, impl Sized)
where
    F: Future<Output = ()> + Send + 'static,
{
    let (url, serving) = listen(serve).await;
    let world = World::new();
    let prometheus = Prometheus::new(url.parse().unwrap(), Settings::default(), None);
    let agent = world.agent(Services::new().with("prometheus", prometheus)).await;
    (world, (agent, serving))
}

/// The server alone: its URL.
pub(crate) async fn listen<F>(
    serve: impl Fn(TcpStream) -> F + Send + 'static,
) -> (String, AbortOnDropHandle<()>)
where
    F: Future<Output = ()> + Send + 'static,
{
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let serving = tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(serve(stream));
        }
    });
    (url, AbortOnDropHandle::new(serving))
}

/// Reads up to these bytes, and returns all that came.
pub(crate) async fn until(stream: &mut (impl AsyncRead + Unpin), end: &str) -> String {
    let mut read = Vec::new();
    while !read.ends_with(end.as_bytes()) {
        match stream.read_u8().await {
            Ok(byte) => read.push(byte),
            Err(_) => break,
        }
    }
    String::from_utf8_lossy(&read).to_lowercase()
}

pub(crate) async fn head(stream: &mut (impl AsyncRead + Unpin)) -> String {
    until(stream, "\r\n\r\n").await
}

/// A caller over HTTP/2.
pub(crate) async fn http2(world: &World) -> http2::SendRequest<Body> {
    let (sender, connection) =
        http2::handshake(TokioExecutor::new(), TokioIo::new(world.connect())).await.unwrap();
    tokio::spawn(connection);
    sender
}

/// The same request over either version.
pub(crate) async fn ask(
    world: &World,
    over_http2: bool,
    edit: impl FnOnce(&mut Request<Body>),
) -> Response<Incoming> {
    let path = if over_http2 { format!("http://kas{PATH}") } else { PATH.to_owned() };
    let mut request = world.request(&path);
    edit(&mut request);
    let asking = async {
        if over_http2 {
            request.headers_mut().remove("host");
            return http2(world).await.send_request(request).await.unwrap();
        }
        world.send(request).await
    };
    timeout(SOON, asking).await.unwrap()
}

pub(crate) fn post(request: &mut Request<Body>, body: Body) {
    *request.method_mut() = http::Method::POST;
    *request.body_mut() = body;
}

/// A body that a test writes as it goes.
pub(crate) fn written() -> (mpsc::UnboundedSender<Frame<bytes::Bytes>>, Body) {
    let (sender, frames) = mpsc::unbounded_channel();
    let frames = futures_util::stream::unfold(frames, async |mut frames| {
        let frame = mpsc::UnboundedReceiver::recv(&mut frames).await?;
        Some((Ok::<_, std::io::Error>(frame), frames))
    });
    (sender, Body::new(StreamBody::new(frames)))
}
