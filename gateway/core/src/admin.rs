//! The observability listener: `/liveness`, `/readiness`, `/metrics`, and `/agents` and the routes of features for operators.

use std::{panic::resume_unwind, sync::Arc, time::Duration};

use axum::{
    Router,
    extract::{Request, State},
    middleware::{Next, from_fn_with_state},
    response::{IntoResponse, Response},
    routing::get,
};
use files::ReloadHealth;
use http::{HeaderMap, StatusCode, header::CONTENT_TYPE};
use kas_listen::http_server::HttpServer;
use parking_lot::Mutex;
use process::liveness::Liveness;
use prometheus_client::registry::Registry;
use store::{Store, StoreHealth};
use telemetry::ExpositionFormat;
use tokio::runtime::Handle;
use tokio_util::task::AbortOnDropHandle;

use crate::{agent_list::AgentLister, agent_metrics::AgentMonitor};
use access::kill_switch::KillSwitch;

/// The time that a probe may take to send the head of a request, or leave its connection idle.
const HEADER_READ_TIMEOUT: Duration = Duration::from_secs(10);

/// The readiness of this replica for the traffic of load balancers. Clones share the state.
#[derive(Clone, Debug, Default)]
pub struct Readiness(Arc<Mutex<ReadinessState>>);

#[derive(Clone, Debug, Default)]
struct ReadinessState {
    phase: Phase,
    /// The error with which other replicas do not reach this one, or refuse it.
    unreachable: Option<Arc<str>>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Phase {
    #[default]
    Starting,
    WaitingForRedis,
    Ready,
    Stopping,
}

impl Readiness {
    /// Sets the state of a replica that waits for its first connection to Redis.
    pub fn set_waiting_for_redis(&self) {
        self.0.lock().phase = Phase::WaitingForRedis;
    }

    /// Sets the state of a replica whose listeners accept.
    pub fn set_ready(&self) {
        self.0.lock().phase = Phase::Ready;
    }

    /// Sets the state of a replica that stops.
    pub fn set_stopping(&self) {
        self.0.lock().phase = Phase::Stopping;
    }

    /// Sets or removes the error with which other replicas do not reach this one, or refuse it.
    pub fn set_unreachable(&self, error: Option<Arc<str>>) {
        self.0.lock().unreachable = error;
    }

    /// Builds the response to a probe. A degraded replica is ready, because it serves the agents that are connected to it. A
    /// replica with rules of the kill switch is ready, because callers should receive the reason.
    fn response(&self, health: &StoreHealth, files: Vec<String>, disabled: &[String]) -> Response {
        let ReadinessState { phase, unreachable } = self.0.lock().clone();
        let redis = match health {
            StoreHealth::Healthy => None,
            StoreHealth::Degraded { since, reason: why } => {
                Some((humantime::format_rfc3339_seconds(*since), why))
            }
        };
        let unavailable = |what: String| (StatusCode::SERVICE_UNAVAILABLE, what).into_response();
        match phase {
            Phase::Starting => return unavailable("not ready: starting\n".to_owned()),
            Phase::Stopping => return unavailable("not ready: stopping\n".to_owned()),
            Phase::WaitingForRedis => {
                let why = redis.map(|(_, why)| format!(": {why}")).unwrap_or_default();
                return unavailable(format!("not ready: waiting for Redis (redis.wait_at_start){why}\n"));
            }
            Phase::Ready => {}
        }
        let redis = redis.map(|(since, why)| {
            format!("redis since {since}: other replicas' agents are known from memory only: {why}")
        });
        let unreachable = unreachable.map(|why| format!("private_api: {why}"));
        let problems: Vec<_> = redis.into_iter().chain(unreachable).chain(files).collect();
        let state = match (&*problems, disabled) {
            ([], []) => return "ready\n".into_response(),
            ([], _) => "disabled",
            (_, _) => "degraded",
        };
        let disabled = disabled.iter().map(|rule| format!("disabled: {rule}"));
        let lines: Vec<_> = problems.into_iter().chain(disabled).collect();
        format!("ready, {state}\n{}\n", lines.join("\n")).into_response()
    }
}

/// Serves probes, metrics and the list of agents.
#[derive(Debug)]
pub struct AdminServer {
    /// The heartbeats behind `/liveness`.
    pub liveness: Liveness,
    /// The state behind `/readiness`.
    pub readiness: Readiness,
    /// The metrics behind `/metrics`.
    pub registry: Registry,
    /// The files that are reloaded, whose health is a part of `/readiness`.
    pub files: ReloadHealth,
    /// The rules of the kill switch, which are a part of `/readiness`.
    pub kill_switch: Arc<KillSwitch>,
    /// The directory, whose health is a part of `/readiness`.
    pub store: Arc<dyn Store>,
    /// The routes of features.
    pub routes: Router,
    /// Creates the list of `/agents`.
    pub agent_lister: AgentLister,
    /// Counts the agents for `/metrics`.
    pub agent_monitor: AgentMonitor,
}

impl AdminServer {
    /// Returns a server for connections of the observability listener.
    ///
    /// The runtime of a connection runs only `/liveness`. The other requests may wait for locks and have much to render: they run
    /// on the runtime that calls this function, so that `/liveness` has a response even if that runtime is blocked.
    pub fn server(self: Arc<Self>) -> HttpServer {
        let routes = Router::new()
            .route("/readiness", get(readiness))
            .route("/metrics", get(metrics))
            .route("/agents", get(agents))
            .with_state(Arc::clone(&self))
            .merge(self.routes.clone())
            .layer(from_fn_with_state(Handle::current(), run_on))
            .route("/liveness", get(liveness).with_state(self))
            .method_not_allowed_fallback(async || {
                (StatusCode::METHOD_NOT_ALLOWED, "the methods are GET and HEAD\n")
            })
            .fallback(async || {
                (
                    StatusCode::NOT_FOUND,
                    "the paths are /liveness, /readiness, /metrics, /agents, /events, /environments and /deployments\n",
                )
            });
        HttpServer { name: "observability", routes, header_read_timeout: HEADER_READ_TIMEOUT }
    }
}

async fn run_on(State(runtime): State<Handle>, request: Request, next: Next) -> Response {
    match AbortOnDropHandle::new(runtime.spawn(next.run(request))).await {
        Ok(response) => response,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => resume_unwind(panic),
            Err(_) => (StatusCode::SERVICE_UNAVAILABLE, "stopping\n").into_response(),
        },
    }
}

async fn liveness(State(admin): State<Arc<AdminServer>>) -> Response {
    let problems = admin.liveness.problems();
    if problems.is_empty() {
        return "alive\n".into_response();
    }
    (StatusCode::SERVICE_UNAVAILABLE, format!("not alive\n{}\n", problems.join("\n"))).into_response()
}

async fn readiness(State(admin): State<Arc<AdminServer>>) -> Response {
    admin.readiness.response(&admin.store.health(), admin.files.problems(), &admin.kill_switch.lines())
}

async fn metrics(State(admin): State<Arc<AdminServer>>, headers: HeaderMap) -> impl IntoResponse {
    admin.agent_monitor.refresh().await;
    let format = ExpositionFormat::accepted(&headers);
    ([(CONTENT_TYPE, format.content_type())], format.render(&admin.registry))
}

async fn agents(State(admin): State<Arc<AdminServer>>) -> impl IntoResponse {
    let listing = serde_json::to_string_pretty(&admin.agent_lister.list().await);
    ([(CONTENT_TYPE, "application/json")], listing.expect("serializable") + "\n")
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use http_body_util::BodyExt as _;

    use super::*;

    fn degraded() -> StoreHealth {
        StoreHealth::Degraded { since: SystemTime::UNIX_EPOCH, reason: "Redis refuses connections".into() }
    }

    async fn response(readiness: &Readiness, health: &StoreHealth) -> (u16, String) {
        response_with(readiness, health, &ReloadHealth::default()).await
    }

    async fn response_with(
        readiness: &Readiness,
        health: &StoreHealth,
        files: &ReloadHealth,
    ) -> (u16, String) {
        let response = readiness.response(health, files.problems(), &[]);
        let status = response.status().as_u16();
        let body = response.into_body().collect().await.unwrap().to_bytes();
        (status, String::from_utf8(body.to_vec()).unwrap())
    }

    #[tokio::test]
    async fn degraded_is_ready_with_the_causes() {
        let readiness = Readiness::default();
        readiness.set_ready();
        assert_eq!(response(&readiness, &StoreHealth::Healthy).await, (200, "ready\n".to_owned()));
        let redis = "ready, degraded\nredis since 1970-01-01T00:00:00Z: other replicas' agents are known from memory only: \
                     Redis refuses connections\n";
        assert_eq!(response(&readiness, &degraded()).await, (200, redis.to_owned()));
        readiness.set_unreachable(Some("other replicas do not reach this one: a firewall".into()));
        let private = "private_api: other replicas do not reach this one: a firewall\n";
        assert_eq!(response(&readiness, &degraded()).await, (200, format!("{redis}{private}")));
        readiness.set_unreachable(None);
        assert_eq!(response(&readiness, &StoreHealth::Healthy).await, (200, "ready\n".to_owned()));
    }

    #[tokio::test]
    async fn refused_file_is_degraded() {
        let (readiness, files) = (Readiness::default(), ReloadHealth::default());
        readiness.set_ready();
        let identity = files.file("identity.file");
        identity.set_refused("id.yaml:1:1: bad", SystemTime::UNIX_EPOCH, tokio::time::Instant::now());
        let body = "ready, degraded\nidentity.file since 1970-01-01T00:00:00Z: the newest version is refused: \
                    id.yaml:1:1: bad\n";
        assert_eq!(response_with(&readiness, &StoreHealth::Healthy, &files).await, (200, body.to_owned()));
        identity.set_accepted();
        assert_eq!(
            response_with(&readiness, &StoreHealth::Healthy, &files).await,
            (200, "ready\n".to_owned())
        );
    }

    #[tokio::test]
    async fn disabled_is_ready_with_the_rules() {
        let readiness = Readiness::default();
        readiness.set_ready();
        for (health, state) in [(StoreHealth::Healthy, "disabled"), (degraded(), "degraded")] {
            let response = readiness.response(&health, Vec::new(), &["agent prod: drill".to_owned()]);
            assert_eq!(response.status(), 200);
            let body = response.into_body().collect().await.unwrap().to_bytes();
            let body = String::from_utf8(body.to_vec()).unwrap();
            assert!(body.starts_with(&format!("ready, {state}\n")), "{body}");
            assert!(body.ends_with("\ndisabled: agent prod: drill\n"), "{body}");
        }
    }

    #[tokio::test]
    async fn not_ready_has_the_cause() {
        let readiness = Readiness::default();
        assert_eq!(
            response(&readiness, &StoreHealth::Healthy).await,
            (503, "not ready: starting\n".to_owned())
        );
        readiness.set_waiting_for_redis();
        let (status, body) = response(&readiness, &degraded()).await;
        assert_eq!(
            (status, &*body),
            (503, "not ready: waiting for Redis (redis.wait_at_start): Redis refuses connections\n")
        );
        readiness.set_stopping();
        assert_eq!(response(&readiness, &degraded()).await, (503, "not ready: stopping\n".to_owned()));
    }
}
