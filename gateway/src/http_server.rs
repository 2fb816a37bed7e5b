//! Serves the routes of the internal listeners over HTTP/1.1.

use std::{net::SocketAddr, time::Duration};

use axum::{Router, extract::ConnectInfo};
use http::Request;
use hyper::{body::Incoming, server::conn::http1};
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    service::TowerToHyperService,
};
use tokio::io::{AsyncRead, AsyncWrite};
use tower::util::MapRequest;

/// The most bytes of the head of a request. A token has a few hundred.
const MAX_HEAD: usize = 16 << 10;

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
    /// Serves one connection. Handlers get `peer` as [`ConnectInfo`].
    ///
    /// `axum::serve` would set neither the timeout nor the limit.
    pub async fn serve<T>(self, io: T, peer: SocketAddr)
    where
        T: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let routes = MapRequest::new(self.routes, move |mut request: Request<Incoming>| {
            request.extensions_mut().insert(ConnectInfo(peer));
            request
        });
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(self.header_read_timeout)
            .max_buf_size(MAX_HEAD)
            .serve_connection(TokioIo::new(io), TowerToHyperService::new(routes));
        if let Err(error) = connection.await {
            tracing::debug!(listener = self.name, %peer, %error, "connection failed");
        }
    }
}

#[cfg(test)]
mod tests {
    use axum::routing::get;
    use tokio::{
        io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream},
        time::Instant,
    };

    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(10);

    fn connect() -> DuplexStream {
        let (near, far) = tokio::io::duplex(64 << 10);
        let routes = Router::new()
            .route("/", get(async |ConnectInfo(peer): ConnectInfo<SocketAddr>| peer.to_string()));
        let server = HttpServer { name: "test", routes, header_read_timeout: TIMEOUT };
        tokio::spawn(server.serve(far, "192.0.2.1:7".parse().unwrap()));
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
    async fn head_above_limit_is_refused_at_once() {
        let request = format!("GET / HTTP/1.1\r\nHost: kas\r\nX: {}", "x".repeat(MAX_HEAD));
        let (response, took) = response_to(&request).await;
        assert!(response.starts_with("HTTP/1.1 431 "), "{response}");
        assert_eq!(took, Duration::ZERO);
    }
}
