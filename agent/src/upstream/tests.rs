//! Against servers that speak raw TCP, so that what is on the wire is what is checked.

mod exchange;
mod lifetime;
mod server;
mod tls;
mod upgrade;

use std::{future::Future, time::Duration};

use http::{Request, Response};
use http_body_util::BodyExt as _;
use tokio::time::timeout;
use tunnel::Body;

use super::{Answer, Settings, Upstream, UpstreamError};

fn upstream(url: &str, settings: Settings) -> Upstream {
    Upstream::new(url.parse().unwrap(), settings)
}

fn get(path: &str) -> Request<Body> {
    Request::get(path).body(Body::empty()).unwrap()
}

async fn text(response: Response<Answer>) -> String {
    String::from_utf8(response.into_body().collect().await.unwrap().to_bytes().into()).unwrap()
}

async fn refused(upstream: &Upstream) -> UpstreamError {
    soon(upstream.send(get("/"))).await.unwrap_err()
}

/// A connection may come back by a task, or go by one.
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
