//! Against servers that speak raw TCP, so that what is on the wire is what is checked.

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

use super::{ResponseBody, Settings, Upstream, UpstreamError, connection::Connection};

fn upstream(url: &str, settings: Settings) -> Upstream {
    Upstream::new(url.parse().unwrap(), settings)
}

/// A connection to `client` as if it had served a request before.
async fn pooled(upstream: &Upstream, client: impl AsyncRead + AsyncWrite + Send + Unpin + 'static) {
    let connection = Connection::new(client, Settings::default().write_timeout).await.unwrap();
    upstream.0.pools.here().lend(0, connection).give_back();
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

/// Waits until this many connections are idle. A task may still give one back.
async fn idle(upstream: &Upstream, expected: usize) {
    soon(async {
        while upstream.0.pools.here().idle() != expected {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

async fn soon<T>(future: impl Future<Output = T>) -> T {
    timeout(Duration::from_secs(10), future).await.expect("takes too long")
}
