//! The observability listener: `/liveness`, `/readiness`, `/metrics`, and `/agents` for operators.

use std::{
    convert::Infallible,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use http::{HeaderValue, Request, Response, StatusCode, header::CONTENT_TYPE};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use prometheus_client::registry::Registry;
use router::{Health, RouteStore};
use tokio::io::{AsyncRead, AsyncWrite};
use tunnel::Body;

use crate::{metrics, roster::Roster};

/// Whether this replica should be sent traffic.
#[derive(Clone, Debug, Default)]
pub struct Readiness(Arc<AtomicBool>);

impl Readiness {
    /// All listeners accept.
    pub fn ready(&self) {
        self.0.store(true, Relaxed);
    }

    /// The replica is about to stop.
    pub fn leaving(&self) {
        self.0.store(false, Relaxed);
    }
}

/// Serves probes, Prometheus and `kas agents`.
#[derive(Debug)]
pub struct Admin {
    /// What `/readiness` answers.
    pub readiness: Readiness,
    /// What `/metrics` answers.
    pub registry: Registry,
    /// How the directory fares is a part of what `/readiness` answers.
    pub store: Arc<dyn RouteStore>,
    /// What `/agents` answers.
    pub roster: Roster,
}

impl Admin {
    /// Serves one connection.
    pub async fn serve<T>(self: Arc<Self>, io: T)
    where
        T: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let service = service_fn(|request: Request<Incoming>| {
            let admin = Arc::clone(&self);
            async move { Ok::<_, Infallible>(admin.answer(request.uri().path()).await) }
        });
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(Duration::from_secs(10))
            .serve_connection(TokioIo::new(io), service);
        if let Err(error) = connection.await {
            tracing::debug!(%error, "a probe's connection failed");
        }
    }

    async fn answer(&self, path: &str) -> Response<Body> {
        match path {
            "/liveness" => text(StatusCode::OK, "alive\n"),
            "/readiness" if self.readiness.0.load(Relaxed) => ready(&self.store.health()),
            "/readiness" => text(StatusCode::SERVICE_UNAVAILABLE, "not ready: starting or stopping\n"),
            "/metrics" => {
                let open_metrics = "application/openmetrics-text; version=1.0.0; charset=utf-8";
                answer(StatusCode::OK, open_metrics, metrics::render(&self.registry))
            }
            "/agents" => {
                let listing = serde_json::to_string_pretty(&self.roster.list().await);
                let json = listing.expect("it is plain data") + "\n";
                answer(StatusCode::OK, "application/json", json)
            }
            _ => text(StatusCode::NOT_FOUND, "there are /liveness, /readiness, /metrics and /agents\n"),
        }
    }
}

/// Degraded is ready: agents that are connected here are served.
fn ready(health: &Health) -> Response<Body> {
    match health {
        Health::Healthy => text(StatusCode::OK, "ready\n"),
        Health::Degraded { since, why } => {
            let since = humantime::format_rfc3339_seconds(*since);
            let body = format!(
                "ready, degraded since {since}: other replicas' agents are known from memory only: {why}\n"
            );
            answer(StatusCode::OK, "text/plain; charset=utf-8", body)
        }
    }
}

fn text(status: StatusCode, body: &'static str) -> Response<Body> {
    answer(status, "text/plain; charset=utf-8", body)
}

fn answer(status: StatusCode, kind: &'static str, body: impl Into<Body>) -> Response<Body> {
    let mut answer = Response::new(body.into());
    *answer.status_mut() = status;
    answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    answer
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use http_body_util::BodyExt as _;

    use super::*;

    #[tokio::test]
    async fn degraded_is_ready_and_says_why() {
        let why = "Redis refuses connections".into();
        let since = SystemTime::UNIX_EPOCH;
        for (health, expected) in [
            (Health::Healthy, "ready\n"),
            (
                Health::Degraded { since, why },
                "ready, degraded since 1970-01-01T00:00:00Z: other replicas' agents are known from memory only: Redis \
                 refuses connections\n",
            ),
        ] {
            let answer = ready(&health);
            assert_eq!(answer.status(), StatusCode::OK);
            assert_eq!(answer.into_body().collect().await.unwrap().to_bytes(), expected);
        }
    }
}
