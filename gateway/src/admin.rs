//! The observability listener: `/liveness`, `/readiness`, `/metrics`, and `/agents` for operators.

use std::{sync::Arc, time::Duration};

use axum::{
    Router,
    extract::State,
    response::{IntoResponse, Response},
    routing::get,
};
use http::{StatusCode, header::CONTENT_TYPE};
use parking_lot::Mutex;
use prometheus_client::registry::Registry;
use router::{Health, RouteStore};

use crate::{http_server::HttpServer, metrics, roster::Roster};

/// How long a probe may take to send a request's head, or leave its connection idle.
const HEADER_READ_TIMEOUT: Duration = Duration::from_secs(10);

/// Whether this replica should be sent traffic.
#[derive(Clone, Debug, Default)]
pub struct Readiness(Arc<Mutex<ReadinessState>>);

#[derive(Clone, Debug, Default)]
struct ReadinessState {
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

    /// Builds the response to a probe. Degraded is ready: agents that are connected here are served.
    fn response(&self, health: &Health) -> Response {
        let ReadinessState { phase, unreachable } = self.0.lock().clone();
        let redis = match health {
            Health::Healthy => None,
            Health::Degraded { since, why } => Some((humantime::format_rfc3339_seconds(*since), why)),
        };
        let unavailable = |what: String| (StatusCode::SERVICE_UNAVAILABLE, what).into_response();
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
        body.into_response()
    }
}

/// Serves probes, Prometheus and `kas agents`.
#[derive(Debug)]
pub struct Admin {
    /// The state behind `/readiness`.
    pub readiness: Readiness,
    /// The metrics behind `/metrics`.
    pub registry: Registry,
    /// The directory, whose health is a part of `/readiness`.
    pub store: Arc<dyn RouteStore>,
    /// The list behind `/agents`.
    pub roster: Roster,
}

impl Admin {
    /// Returns a server for connections of the observability listener.
    pub fn server(self: Arc<Self>) -> HttpServer {
        let routes = Router::new()
            .route("/liveness", get("alive\n"))
            .route("/readiness", get(readiness))
            .route("/metrics", get(metrics))
            .route("/agents", get(agents))
            .method_not_allowed_fallback(async || (StatusCode::METHOD_NOT_ALLOWED, "only GET and HEAD\n"))
            .fallback(async || {
                (StatusCode::NOT_FOUND, "there are /liveness, /readiness, /metrics and /agents\n")
            })
            .with_state(self);
        HttpServer { name: "observability", routes, header_read_timeout: HEADER_READ_TIMEOUT }
    }
}

async fn readiness(State(admin): State<Arc<Admin>>) -> Response {
    admin.readiness.response(&admin.store.health())
}

async fn metrics(State(admin): State<Arc<Admin>>) -> impl IntoResponse {
    let open_metrics = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    ([(CONTENT_TYPE, open_metrics)], metrics::render(&admin.registry))
}

async fn agents(State(admin): State<Arc<Admin>>) -> impl IntoResponse {
    let listing = serde_json::to_string_pretty(&admin.roster.list().await);
    ([(CONTENT_TYPE, "application/json")], listing.expect("it is plain data") + "\n")
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
        let response = readiness.response(health);
        let status = response.status().as_u16();
        let body = response.into_body().collect().await.unwrap().to_bytes();
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
