//! The probes and the metrics of the webhook.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering::Relaxed},
};

use agentk_core::policy::PolicyEnforcer;
use axum::{Router, routing::get};
use files::ReloadHealth;
use http::{HeaderMap, StatusCode, header::CONTENT_TYPE};
use prometheus_client::registry::Registry;
use telemetry::ExpositionFormat;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

/// The state that `/readiness` shows.
pub(super) struct WebhookHealth {
    files: ReloadHealth,
    policy: Arc<PolicyEnforcer>,
    /// The labels of namespaces have been known, or the policy has not needed them.
    has_begun: AtomicBool,
}

impl WebhookHealth {
    pub(super) fn new(files: ReloadHealth, policy: Arc<PolicyEnforcer>) -> Self {
        Self { files, policy, has_begun: AtomicBool::new(false) }
    }

    /// Returns the response of /readiness. A refused file does not stop the webhook, which decides by the last valid version. A pod without the labels
    /// that its policy needs is not ready at its start, so that an update keeps the pods that have them. Later, it refuses what depends on
    /// them, as all pods do.
    pub(super) fn readiness(&self, stopping: bool) -> (StatusCode, String) {
        let labels = self.policy.label_problem();
        if labels.is_none() {
            self.has_begun.store(true, Relaxed);
        }
        let problems: Vec<_> = self.files.problems().into_iter().chain(labels).collect();
        let (has_begun, lines) = (self.has_begun.load(Relaxed), problems.join("\n"));
        match &*problems {
            _ if stopping => (StatusCode::SERVICE_UNAVAILABLE, "agentk admission is stopping\n".to_owned()),
            _ if !has_begun => (StatusCode::SERVICE_UNAVAILABLE, format!("not ready\n{lines}\n")),
            [] => (StatusCode::OK, "ready\n".to_owned()),
            _ => (StatusCode::OK, format!("ready, degraded\n{lines}\n")),
        }
    }
}

/// Serves probes and scrapes. Never completes.
pub(super) async fn serve(
    listener: TcpListener,
    registry: Registry,
    health: WebhookHealth,
    shutdown: CancellationToken,
) {
    let (registry, health) = (Arc::new(registry), Arc::new(health));
    let readiness = async move || health.readiness(shutdown.is_cancelled());
    let metrics = async move |headers: HeaderMap| {
        let format = ExpositionFormat::accepted(&headers);
        ([(CONTENT_TYPE, format.content_type())], format.render(&registry))
    };
    let routes = Router::new()
        .route("/liveness", get(async || "alive\n"))
        .route("/readiness", get(readiness))
        .route("/metrics", get(metrics));
    agentk_core::admin::serve_routes(listener, routes).await;
}
