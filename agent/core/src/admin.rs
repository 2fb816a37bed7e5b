//! The observability listener: `/liveness`, `/readiness`, `/metrics`.

use std::{panic::resume_unwind, sync::Arc, time::Duration};

use axum::{
    Router,
    extract::{Request, State},
    middleware::{Next, from_fn_with_state},
    response::{IntoResponse, Response},
    routing::get,
};
use http::{HeaderMap, StatusCode, header::CONTENT_TYPE};
use hyper::server::conn::http1;
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    service::TowerToHyperService,
};
use process::liveness::Liveness;
use prometheus_client::{metrics::counter::Counter, registry::Registry};
use telemetry::ExpositionFormat;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpListener,
    runtime::Handle,
};
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};

use crate::{health::AgentHealth, listen::LimitedListener};

/// The time that a client may take to send the head of a request, or leave its connection idle.
const HEADER_READ_TIMEOUT: Duration = Duration::from_secs(30);
/// The most connections. No client has a credential: a new connection replaces the oldest one of the address that has the most.
const MAX_CONNECTIONS: usize = 64;

/// Serves probes and scrapes.
#[derive(Debug)]
pub struct Admin {
    liveness: Liveness,
    health: Arc<AgentHealth>,
    registry: Registry,
}

impl Admin {
    /// Returns a server of this health and of the metrics in `registry`.
    pub fn new(liveness: Liveness, health: Arc<AgentHealth>, registry: Registry) -> Self {
        Self { liveness, health, registry }
    }

    /// Serves the connections of a listener. Never completes.
    ///
    /// The current runtime runs only `/liveness`. The other requests run on the runtime `main`, which may be blocked.
    pub async fn run(self, listener: std::net::TcpListener, main: Handle) {
        let listener = TcpListener::from_std(listener).expect("the system has resources for a listener");
        serve_routes(listener, self.routes(main)).await;
    }

    fn routes(self, main: Handle) -> Router {
        Router::new()
            .route("/readiness", get(readiness))
            .route("/metrics", get(metrics))
            .layer(from_fn_with_state(main, run_on))
            .route("/liveness", get(liveness))
            .method_not_allowed_fallback(async || (StatusCode::METHOD_NOT_ALLOWED, "only GET and HEAD\n"))
            .fallback(async || (StatusCode::NOT_FOUND, "try /liveness, /readiness or /metrics\n"))
            .with_state(Arc::new(self))
    }
}

/// Serves the connections of an observability listener. Never completes.
pub async fn serve_routes(listener: TcpListener, routes: Router) {
    let listener = LimitedListener::new("observability", listener, MAX_CONNECTIONS, Counter::default());
    let never = CancellationToken::new();
    let connections = listener.serve(&never, move |tcp, _, stranger| {
        let routes = routes.clone();
        async move {
            serve(routes, tcp).await;
            drop(stranger);
        }
    });
    connections.await.join_all().await;
}

/// Serves one connection. `axum::serve` would not set the timeout.
async fn serve(routes: Router, io: impl AsyncRead + AsyncWrite + Unpin) {
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_READ_TIMEOUT)
        .serve_connection(TokioIo::new(io), TowerToHyperService::new(routes));
    if let Err(error) = connection.await {
        tracing::debug!(%error, "a connection to the observability listener failed");
    }
}

async fn run_on(State(runtime): State<Handle>, request: Request, next: Next) -> Response {
    match AbortOnDropHandle::new(runtime.spawn(next.run(request))).await {
        Ok(response) => response,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => resume_unwind(panic),
            Err(_) => (StatusCode::SERVICE_UNAVAILABLE, "agentk is stopping\n").into_response(),
        },
    }
}

async fn liveness(State(admin): State<Arc<Admin>>) -> Response {
    let problems = admin.liveness.problems();
    if problems.is_empty() {
        return "alive\n".into_response();
    }
    (StatusCode::SERVICE_UNAVAILABLE, format!("not alive\n{}\n", problems.join("\n"))).into_response()
}

async fn readiness(State(admin): State<Arc<Admin>>) -> Response {
    let problems = admin.health.problems();
    if !problems.is_empty() {
        return (StatusCode::SERVICE_UNAVAILABLE, problems.join("\n") + "\n").into_response();
    }
    let (mut degraded, disabled) = (admin.health.files.problems(), admin.health.disabled.lines());
    degraded.extend(admin.health.scope.problems());
    degraded.extend(admin.health.features.lines());
    let state = match (&*degraded, &*disabled) {
        ([], []) => return "ready\n".into_response(),
        ([], _) => "disabled",
        (_, _) => "degraded",
    };
    let lines: Vec<_> = degraded.into_iter().chain(disabled).collect();
    format!("ready, {state}\n{}\n", lines.join("\n")).into_response()
}

async fn metrics(State(admin): State<Arc<Admin>>, headers: HeaderMap) -> impl IntoResponse {
    let format = ExpositionFormat::accepted(&headers);
    ([(CONTENT_TYPE, format.content_type())], format.render(&admin.registry))
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use axum::body::Body;
    use http::{Method, Request, header::ALLOW};
    use http_body_util::BodyExt as _;
    use process::{Notifier, liveness::LivenessThread};
    use proto::{
        TunnelId,
        control::{DisabledNotice, DisabledScope},
    };
    use tokio::time::Instant;
    use tower::ServiceExt as _;

    use super::*;
    use crate::{AgentMetrics, ClusterStatus, Observability};

    fn admin() -> (Observability, Router) {
        let mut registry = Registry::default();
        let observability =
            Observability { metrics: AgentMetrics::register(&mut registry), ..Observability::default() };
        let admin = Admin::new(Liveness::default(), Arc::clone(&observability.health), registry);
        (observability, admin.routes(Handle::current()))
    }

    async fn send(routes: &Router, method: Method, path: &str) -> Response {
        let request = Request::builder().method(method).uri(path).body(Body::empty()).unwrap();
        routes.clone().oneshot(request).await.unwrap()
    }

    async fn get(routes: &Router, path: &str) -> (u16, String) {
        let response = send(routes, Method::GET, path).await;
        let status = response.status().as_u16();
        let body = response.into_body().collect().await.unwrap().to_bytes();
        (status, String::from_utf8(body.to_vec()).unwrap())
    }

    #[tokio::test]
    async fn readiness_has_a_line_for_each_problem() {
        let (observability, routes) = admin();
        assert_eq!(get(&routes, "/liveness").await.0, 200);
        let (status, problems) = get(&routes, "/readiness").await;
        assert_eq!((status, problems.lines().count()), (503, 2));

        let _up = observability.tunnel_opened();
        observability.cluster_probed(ClusterStatus::Up { version: None });
        assert_eq!(get(&routes, "/readiness").await, (200, "ready\n".to_owned()));
        let token = observability.health.files.file("--token-file");
        token.set_refused("it is a named pipe", SystemTime::UNIX_EPOCH, Instant::now());
        let degraded = "ready, degraded\n--token-file since 1970-01-01T00:00:00Z: the newest version is refused: it is a \
                        named pipe\n";
        assert_eq!(get(&routes, "/readiness").await, (200, degraded.to_owned()));
        observability.health.features.add(|| None);
        observability.health.features.add(|| Some("audit: the disk is full".to_owned()));
        let degraded = format!("{degraded}audit: the disk is full\n");
        assert_eq!(get(&routes, "/readiness").await, (200, degraded));
        let (_, metrics) = get(&routes, "/metrics").await;
        assert!(metrics.contains("agentk_tunnels 1\n"), "{metrics}");
        assert!(metrics.contains("agentk_cluster_up 1\n"), "{metrics}");
        assert_eq!(get(&routes, "/").await.0, 404);
    }

    #[tokio::test]
    async fn agentk_that_kas_has_disabled_is_ready_with_the_reason() {
        let (observability, routes) = admin();
        let _up = observability.tunnel_opened();
        observability.cluster_probed(ClusterStatus::Up { version: None });
        let tunnel = observability.health.disabled.tunnel(TunnelId::random());
        let rule = DisabledScope { service: None, reason: "drill".to_owned(), until: None };
        tunnel.replace(DisabledNotice { rules: vec![rule] });
        let disabled = "ready, disabled\ndisabled by the operator of kas: all services: drill\n";
        assert_eq!(get(&routes, "/readiness").await, (200, disabled.to_owned()));
        tunnel.replace(DisabledNotice::default());
        assert_eq!(get(&routes, "/readiness").await, (200, "ready\n".to_owned()));
    }

    #[tokio::test]
    async fn liveness_names_the_thread_that_does_not_beat() {
        let liveness = Liveness::with_period(Duration::from_millis(1));
        let thread = LivenessThread::start(liveness.clone(), Notifier::default(), || {}).unwrap();
        let admin = Admin::new(liveness.clone(), Arc::default(), Registry::default());
        let routes = admin.routes(Handle::current());
        assert_eq!(get(&routes, "/liveness").await, (200, "alive\n".to_owned()));
        let blocked = liveness.heartbeat("core-1");
        let (status, body) = loop {
            let response = get(&routes, "/liveness").await;
            if response.0 != 200 {
                break response;
            }
        };
        assert_eq!(status, 503);
        assert!(body.starts_with("not alive\ncore-1: no heartbeat for "), "{body}");
        drop((blocked, thread));
        assert_eq!(get(&routes, "/liveness").await.0, 200);
    }

    #[tokio::test]
    async fn only_get_and_head_are_allowed() {
        let (_observability, routes) = admin();
        let refused = send(&routes, Method::POST, "/metrics").await;
        assert_eq!(
            (refused.status().as_u16(), &refused.headers()[ALLOW]),
            (405, &"GET,HEAD".parse().unwrap())
        );

        let head = send(&routes, Method::HEAD, "/metrics").await;
        assert_eq!(head.headers()[CONTENT_TYPE], "text/plain; version=0.0.4; charset=utf-8");
        assert_eq!(head.status(), StatusCode::OK);
        assert!(head.into_body().collect().await.unwrap().to_bytes().is_empty());
    }
}
