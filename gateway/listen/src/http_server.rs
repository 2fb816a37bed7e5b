//! Serves the routes of the internal listeners over HTTP/1.1 and HTTP/2.

use std::{net::SocketAddr, pin::pin, sync::Arc, time::Duration};

use axum::{Router, extract::ConnectInfo};
use futures_util::FutureExt as _;
use http::Request;
use hyper::body::Incoming;
use hyper_util::{rt::TokioIo, service::TowerToHyperService};
use strangers::Stranger;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    time::timeout,
};
use tower::{ServiceExt as _, service_fn};
use tunnel::{CountedBody, OverheadStream};

use crate::{
    hold_open::HoldOpen,
    http_limits::{HttpLimits, RequestCount},
};

/// The routes of a listener, and the limits of its connections. Cheap to clone.
#[derive(Clone, Debug)]
pub struct HttpServer {
    /// The name of the listener in logs.
    pub name: &'static str,
    /// The endpoints.
    pub routes: Router,
    /// The time that a client may take for the head of a request, or leave its connection idle.
    pub header_read_timeout: Duration,
}

impl HttpServer {
    /// Serves one connection. Handlers get `peer` as [`ConnectInfo`], and the `stranger` as an extension: they admit it once a request
    /// has a credential. The first bytes of the client select HTTP/1.1 or HTTP/2.
    ///
    /// `axum::serve` would set neither the timeouts nor the limits.
    pub async fn serve<T>(self, io: T, peer: SocketAddr, stranger: Arc<Stranger>)
    where
        T: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let limit = self.header_read_timeout;
        let requests = Arc::new(RequestCount::default());
        let counter = Arc::clone(&requests);
        let io = OverheadStream::of_client(io);
        let overhead = io.counter();
        let routes = service_fn(move |mut request: Request<Incoming>| {
            overhead.subtract_received_request(request.uri(), request.headers());
            request.extensions_mut().insert(ConnectInfo(peer));
            request.extensions_mut().insert(Arc::clone(&stranger));
            let request = request.map(|body| CountedBody::new(body, overhead.clone()));
            let guard = RequestGuard::new(&counter);
            let response = self.routes.clone().oneshot(request);
            response.inspect(move |response| {
                let hold =
                    response.as_ref().ok().and_then(|response| response.extensions().get::<HoldOpen>());
                if let Some(HoldOpen { until, at_most }) = hold.cloned() {
                    tokio::spawn(async move {
                        let _ = timeout(at_most, until.cancelled()).await;
                        drop(guard);
                    });
                }
            })
        });
        let builder = HttpLimits::internal(limit).builder();
        let mut connection =
            pin!(builder.serve_connection(TokioIo::new(io), TowerToHyperService::new(routes)));
        let result = tokio::select! {
            result = connection.as_mut() => result,
            () = requests.idle(limit) => {
                connection.as_mut().graceful_shutdown();
                // A client that does not read its last response must not keep the connection.
                timeout(limit, connection).await.unwrap_or(Ok(()))
            }
        };
        if let Err(error) = result {
            tracing::debug!(listener = self.name, %peer, %error, "connection failed");
        }
    }
}

/// Counts a request as in flight until its response has begun, or longer if the response says so.
struct RequestGuard(Arc<RequestCount>);

impl RequestGuard {
    fn new(count: &Arc<RequestCount>) -> Self {
        count.start();
        Self(Arc::clone(count))
    }
}

impl Drop for RequestGuard {
    fn drop(&mut self) {
        self.0.end();
    }
}

#[cfg(test)]
mod tests {
    use axum::routing::get;
    use bytes::Bytes;
    use futures_util::StreamExt as _;
    use http_body_util::{BodyExt as _, Empty};
    use hyper::client::conn::http2;
    use hyper_util::rt::TokioExecutor;
    use tokio::{
        io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream},
        task::JoinHandle,
        time::{Instant, sleep},
    };

    use tokio_util::sync::CancellationToken;

    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(10);

    fn connect() -> DuplexStream {
        let (near, far) = tokio::io::duplex(64 << 10);
        let routes = Router::new()
            .route("/", get(async |ConnectInfo(peer): ConnectInfo<SocketAddr>| peer.to_string()));
        let server = HttpServer { name: "test", routes, header_read_timeout: TIMEOUT };
        tokio::spawn(server.serve(far, "192.0.2.1:7".parse().unwrap(), Arc::default()));
        near
    }

    async fn response_to(request: &str) -> (String, Duration) {
        let (mut io, start, mut response) = (connect(), Instant::now(), String::new());
        // Fails if the server has refused the request before its end.
        _ = io.write_all(request.as_bytes()).await;
        _ = io.read_to_string(&mut response).await;
        (response, start.elapsed())
    }

    #[tokio::test(start_paused = true)]
    async fn idle_connection_and_unfinished_head_are_closed_after_timeout() {
        let (response, took) = response_to("GET / HTTP/1.1\r\nHost: kas\r\n\r\n").await;
        assert!(response.ends_with("\r\n\r\n192.0.2.1:7"), "{response}");
        assert_eq!(took.as_secs(), TIMEOUT.as_secs());
        let (response, took) = response_to("GET / HTTP/1.1\r\nHost: k").await;
        assert_eq!((&*response, took.as_secs()), ("", TIMEOUT.as_secs()));
    }

    #[tokio::test(start_paused = true)]
    async fn connection_with_a_stream_is_not_idle() {
        let until = CancellationToken::new();
        let hold = HoldOpen { until: until.clone(), at_most: TIMEOUT * 10 };
        let stream = move || {
            let parts = futures_util::stream::unfold(0, |number| async move {
                sleep(TIMEOUT / 2).await;
                (number < 8).then(|| (Ok::<_, std::convert::Infallible>(Bytes::from("part ")), number + 1))
            });
            let mut response = axum::response::Response::new(axum::body::Body::from_stream(parts));
            response.extensions_mut().insert(hold.clone());
            response
        };
        let (mut near, far) = tokio::io::duplex(64 << 10);
        let routes = Router::new().route("/", get(async move || stream()));
        let server = HttpServer { name: "test", routes, header_read_timeout: TIMEOUT };
        tokio::spawn(server.serve(far, "192.0.2.1:7".parse().unwrap(), Arc::default()));
        near.write_all(b"GET / HTTP/1.1\r\nHost: kas\r\nConnection: close\r\n\r\n").await.unwrap();
        let mut response = String::new();
        near.read_to_string(&mut response).await.unwrap();
        assert_eq!(response.matches("part ").count(), 8, "{response}");
        until.cancel();
    }

    async fn http2() -> (http2::SendRequest<Empty<Bytes>>, JoinHandle<Result<(), hyper::Error>>) {
        let (sender, connection) =
            http2::handshake(TokioExecutor::new(), TokioIo::new(connect())).await.unwrap();
        (sender, tokio::spawn(connection))
    }

    #[tokio::test(start_paused = true)]
    async fn http2_is_served_until_the_connection_is_idle() {
        let (mut sender, connection) = http2().await;
        for _ in 0..3 {
            let request = Request::get("http://kas/").body(Empty::new()).unwrap();
            let response = sender.send_request(request).await.unwrap();
            assert_eq!(response.into_body().collect().await.unwrap().to_bytes(), "192.0.2.1:7");
            sleep(TIMEOUT / 3).await;
        }
        let start = Instant::now();
        connection.await.unwrap().unwrap();
        assert!(start.elapsed() <= TIMEOUT * 3 / 2, "{:?}", start.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn body_of_many_small_frames_that_is_read_is_not_cut() {
        const FRAMES: usize = 140_000;
        let (near, far) = tokio::io::duplex(64 << 10);
        let read = async |body: axum::body::Body| {
            let mut read = 0;
            let mut frames = body.into_data_stream();
            while let Some(Ok(data)) = frames.next().await {
                read += data.len();
            }
            read.to_string()
        };
        let routes = Router::new().route("/", axum::routing::post(read));
        let server = HttpServer { name: "test", routes, header_read_timeout: TIMEOUT };
        tokio::spawn(server.serve(far, "192.0.2.1:7".parse().unwrap(), Arc::default()));
        let (mut sender, connection) =
            http2::handshake(TokioExecutor::new(), TokioIo::new(near)).await.unwrap();
        tokio::spawn(connection);
        // Few of them wait to be read.
        let frames = futures_util::stream::iter(0..FRAMES).then(async |number| {
            if number % 200 == 0 {
                sleep(Duration::from_millis(1)).await;
            }
            Ok::<_, std::convert::Infallible>(http_body::Frame::data(Bytes::from_static(b"x")))
        });
        let request =
            Request::post("http://kas/").body(http_body_util::StreamBody::new(frames.boxed())).unwrap();
        let response = sender.send_request(request).await.unwrap();
        assert_eq!(response.into_body().collect().await.unwrap().to_bytes(), FRAMES.to_string());
    }

    #[tokio::test(start_paused = true)]
    async fn client_that_sends_half_of_the_preface_is_cut() {
        let (response, took) = response_to("PRI * HTTP/2.0\r\n").await;
        assert_eq!((&*response, took), ("", TIMEOUT));
    }

    #[tokio::test(start_paused = true)]
    async fn head_above_limit_is_refused_at_once() {
        let request = format!("GET / HTTP/1.1\r\nHost: kas\r\nX: {}", "x".repeat(16 << 10));
        let (response, took) = response_to(&request).await;
        assert!(response.starts_with("HTTP/1.1 431 "), "{response}");
        assert_eq!(took, Duration::ZERO);
    }
}
