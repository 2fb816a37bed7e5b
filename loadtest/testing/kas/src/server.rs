//! An upstream server on a TCP socket, whose behaviour a test defines, and callers over HTTP/1.1 and HTTP/2.

use std::{future::Future, time::Duration};

use agentk_core::{Services, services::PrometheusService, upstream::UpstreamConfig};
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

/// The path of a query through kas.
pub const PATH: &str = "/agents/prod/prometheus/api/v1/query";
/// The timeout of operations that should complete immediately.
pub const SOON: Duration = Duration::from_secs(20);

/// Starts kas and an agent whose Prometheus is a server that handles connections with `serve`.
pub async fn world<F>(serve: impl Fn(TcpStream) -> F + Send + 'static) -> (World, impl Sized)
where
    F: Future<Output = ()> + Send + 'static,
{
    let (url, serving) = listen(serve).await;
    let world = World::new();
    let prometheus = PrometheusService::new(url.parse().unwrap(), UpstreamConfig::default(), None);
    let agent = world.agent(Services::new().with_handler("prometheus", prometheus)).await;
    (world, (agent, serving))
}

/// Starts a server that handles connections with `serve`. Returns its URL.
pub async fn listen<F>(serve: impl Fn(TcpStream) -> F + Send + 'static) -> (String, AbortOnDropHandle<()>)
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

/// Reads until these bytes or the end of the stream. Returns all bytes in lower case.
pub async fn read_until(stream: &mut (impl AsyncRead + Unpin), end: &str) -> String {
    let mut read = Vec::new();
    while !read.ends_with(end.as_bytes()) {
        match stream.read_u8().await {
            Ok(byte) => read.push(byte),
            Err(_) => break,
        }
    }
    String::from_utf8_lossy(&read).to_lowercase()
}

/// Reads the head of a request or response. Returns it in lower case.
pub async fn read_head(stream: &mut (impl AsyncRead + Unpin)) -> String {
    read_until(stream, "\r\n\r\n").await
}

/// Connects a caller over HTTP/2.
pub async fn http2(world: &World) -> http2::SendRequest<Body> {
    let (sender, connection) =
        http2::handshake(TokioExecutor::new(), TokioIo::new(world.connect())).await.unwrap();
    tokio::spawn(connection);
    sender
}

/// Sends the same request over HTTP/1.1 or HTTP/2.
pub async fn send_query(
    world: &World,
    over_http2: bool,
    edit: impl FnOnce(&mut Request<Body>),
) -> Response<Incoming> {
    let path = if over_http2 { format!("http://kas{PATH}") } else { PATH.to_owned() };
    let mut request = world.request(&path);
    edit(&mut request);
    let response = async {
        if over_http2 {
            request.headers_mut().remove("host");
            return http2(world).await.send_request(request).await.unwrap();
        }
        world.send(request).await
    };
    timeout(SOON, response).await.unwrap()
}

/// Turns a request into a POST with a body.
pub fn post(request: &mut Request<Body>, body: Body) {
    *request.method_mut() = http::Method::POST;
    *request.body_mut() = body;
}

/// Returns a body whose frames the test sends.
pub fn channel_body() -> (mpsc::UnboundedSender<Frame<bytes::Bytes>>, Body) {
    let (sender, frames) = mpsc::unbounded_channel();
    let frames = futures_util::stream::unfold(frames, async |mut frames| {
        let frame = mpsc::UnboundedReceiver::recv(&mut frames).await?;
        Some((Ok::<_, std::io::Error>(frame), frames))
    });
    (sender, Body::new(StreamBody::new(frames)))
}
