//! The observability listener: `/liveness`, `/readiness`, `/metrics`, and `/agents` for operators.

use std::{convert::Infallible, sync::Arc, time::Duration};

use http::{HeaderValue, Request, Response, StatusCode, header::CONTENT_TYPE};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use parking_lot::Mutex;
use prometheus_client::registry::Registry;
use router::{Health, RouteStore};
use tokio::io::{AsyncRead, AsyncWrite};
use tunnel::Body;

use crate::{metrics, roster::Roster};

/// Whether this replica should be sent traffic.
#[derive(Clone, Debug, Default)]
pub struct Readiness(Arc<Mutex<State>>);

#[derive(Clone, Debug, Default)]
struct State {
    phase: Phase,
    /// Why other replicas do not reach this one, if they do not.
    unreachable: Option<Arc<str>>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Phase {
    #[default]
    Starting,
    Waiting,
    Ready,
    Leaving,
}

impl Readiness {
    /// It is, once Redis was reached.
    pub fn waiting(&self) {
        self.0.lock().phase = Phase::Waiting;
    }

    /// All listeners accept.
    pub fn ready(&self) {
        self.0.lock().phase = Phase::Ready;
    }

    /// The replica is about to stop.
    pub fn leaving(&self) {
        self.0.lock().phase = Phase::Leaving;
    }

    /// Why other replicas do not reach this one, if they do not.
    pub fn unreachable(&self, why: Option<Arc<str>>) {
        self.0.lock().unreachable = why;
    }

    /// What a probe is told. Degraded is ready: agents that are connected here are served.
    fn answer(&self, health: &Health) -> Response<Body> {
        let State { phase, unreachable } = self.0.lock().clone();
        let redis = match health {
            Health::Healthy => None,
            Health::Degraded { since, why } => Some((humantime::format_rfc3339_seconds(*since), why)),
        };
        let unavailable = |what: String| answer(StatusCode::SERVICE_UNAVAILABLE, TEXT, what);
        match phase {
            Phase::Starting => return unavailable("not ready: starting\n".to_owned()),
            Phase::Leaving => return unavailable("not ready: stopping\n".to_owned()),
            Phase::Waiting => {
                let why = redis.map(|(_, why)| format!(": {why}")).unwrap_or_default();
                return unavailable(format!("not ready: waiting for Redis (redis.wait_at_start){why}\n"));
            }
            Phase::Ready => {}
        }
        let mut body =
            if redis.is_none() && unreachable.is_none() { "ready\n" } else { "ready, degraded\n" }.to_owned();
        if let Some((since, why)) = redis {
            body +=
                &format!("redis since {since}: other replicas' agents are known from memory only: {why}\n");
        }
        if let Some(why) = unreachable {
            body += &format!("private_api: other replicas do not reach this one: {why}\n");
        }
        answer(StatusCode::OK, TEXT, body)
    }
}

const TEXT: &str = "text/plain; charset=utf-8";

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
            "/readiness" => self.readiness.answer(&self.store.health()),
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

fn text(status: StatusCode, body: &'static str) -> Response<Body> {
    answer(status, TEXT, body)
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

    fn degraded() -> Health {
        Health::Degraded { since: SystemTime::UNIX_EPOCH, why: "Redis refuses connections".into() }
    }

    async fn told(readiness: &Readiness, health: &Health) -> (u16, String) {
        let answer = readiness.answer(health);
        let status = answer.status().as_u16();
        let body = answer.into_body().collect().await.unwrap().to_bytes();
        (status, String::from_utf8(body.to_vec()).unwrap())
    }

    #[tokio::test]
    async fn degraded_is_ready_and_says_why() {
        let readiness = Readiness::default();
        readiness.ready();
        assert_eq!(told(&readiness, &Health::Healthy).await, (200, "ready\n".to_owned()));
        let redis = "ready, degraded\nredis since 1970-01-01T00:00:00Z: other replicas' agents are known from memory only: \
                     Redis refuses connections\n";
        assert_eq!(told(&readiness, &degraded()).await, (200, redis.to_owned()));
        readiness.unreachable(Some("a firewall".into()));
        let private = "private_api: other replicas do not reach this one: a firewall\n";
        assert_eq!(told(&readiness, &degraded()).await, (200, format!("{redis}{private}")));
        readiness.unreachable(None);
        assert_eq!(told(&readiness, &Health::Healthy).await, (200, "ready\n".to_owned()));
    }

    #[tokio::test]
    async fn who_is_not_ready_says_what_it_waits_for() {
        let readiness = Readiness::default();
        assert_eq!(told(&readiness, &Health::Healthy).await, (503, "not ready: starting\n".to_owned()));
        readiness.waiting();
        let (status, body) = told(&readiness, &degraded()).await;
        assert_eq!(
            (status, &*body),
            (503, "not ready: waiting for Redis (redis.wait_at_start): Redis refuses connections\n")
        );
        readiness.leaving();
        assert_eq!(told(&readiness, &degraded()).await, (503, "not ready: stopping\n".to_owned()));
    }
}
