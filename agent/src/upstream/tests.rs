//! Against servers that speak raw TCP, so that what is on the wire is what is checked.

mod exchange;
mod lifetime;
mod server;
mod tls;
mod upgrade;

use std::{future::Future, io, time::Duration};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt as _, Empty, combinators::UnsyncBoxBody};
use hyper::body::Incoming;
use tokio::time::timeout;

use super::{Settings, Upstream, UpstreamError};

type Body = UnsyncBoxBody<Bytes, io::Error>;

fn upstream(url: &str, settings: Settings) -> Upstream<Body> {
    Upstream::new(url.parse().unwrap(), settings)
}

fn get(path: &str) -> Request<Body> {
    Request::get(path).body(Empty::new().map_err(|never| match never {}).boxed_unsync()).unwrap()
}

async fn text(response: Response<Incoming>) -> String {
    String::from_utf8(response.into_body().collect().await.unwrap().to_bytes().into()).unwrap()
}

async fn refused(upstream: &Upstream<Body>) -> UpstreamError {
    soon(upstream.send(get("/"))).await.unwrap_err()
}

/// The pool is told by the connection's task.
async fn idle(upstream: &Upstream<Body>, expected: usize) {
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
