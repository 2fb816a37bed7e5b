//! Tests against servers that read and write raw TCP, so that they check the bytes on the wire.

mod exchange;
mod lifetime;
mod parser;
mod retry;
mod server;
mod stalls;
mod tls;
mod upgrade;

use std::{future::Future, time::Duration};

use http::{Request, Response};
use http_body_util::BodyExt as _;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    time::timeout,
};
use tunnel::Body;

use super::{ResponseBody, Upstream, UpstreamConfig, UpstreamError, connection::UpstreamConnection};

fn upstream(url: &str, config: UpstreamConfig) -> Upstream {
    Upstream::new(url.parse().unwrap(), config)
}

/// Adds a connection over `client` to the pool, as if it had served a request before.
async fn pooled(upstream: &Upstream, client: impl AsyncRead + AsyncWrite + Send + Unpin + 'static) {
    let connection = UpstreamConnection::new(client, UpstreamConfig::default().write_timeout).await.unwrap();
    upstream.0.pools.current().add(0, connection).release();
}

fn get(path: &str) -> Request<Body> {
    Request::get(path).body(Body::empty()).unwrap()
}

async fn text(response: Response<ResponseBody>) -> String {
    String::from_utf8(response.into_body().collect().await.unwrap().to_bytes().into()).unwrap()
}

async fn refused(upstream: &Upstream) -> UpstreamError {
    soon(upstream.send(get("/"))).await.unwrap_err()
}

/// Waits until this many connections are idle: a task may have to release one.
async fn idle(upstream: &Upstream, expected: usize) {
    soon(async {
        while upstream.0.pools.current().idle() != expected {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

async fn soon<T>(future: impl Future<Output = T>) -> T {
    timeout(Duration::from_secs(10), future).await.expect("takes too long")
}
