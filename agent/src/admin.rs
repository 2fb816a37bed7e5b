//! The observability listener: `/liveness`, `/readiness`, `/metrics`.

use std::{convert::Infallible, sync::Arc, time::Duration};

use http::{HeaderValue, Method, Request, Response, StatusCode, header::CONTENT_TYPE};
use http_body_util::Full;
use hyper::{body::Bytes, server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use prometheus_client::registry::Registry;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpListener,
    time::sleep,
};

use crate::{health::Health, metrics};

/// For a request's headers, and between two requests.
const PATIENCE: Duration = Duration::from_secs(30);
/// After an accept that failed, most likely for want of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
const OPENMETRICS: HeaderValue =
    HeaderValue::from_static("application/openmetrics-text; version=1.0.0; charset=utf-8");
const TEXT: HeaderValue = HeaderValue::from_static("text/plain; charset=utf-8");

/// Answers about one process.
#[derive(Debug)]
pub struct Admin {
    health: Arc<Health>,
    registry: Registry,
}

impl Admin {
    /// `registry` holds what `/metrics` shows.
    pub fn new(health: Arc<Health>, registry: Registry) -> Self {
        Self { health, registry }
    }

    /// Serves everybody who connects, for ever.
    pub async fn run(self, listener: TcpListener) {
        let admin = Arc::new(self);
        loop {
            match listener.accept().await {
                Ok((stream, _)) => drop(tokio::spawn(Arc::clone(&admin).serve(stream))),
                Err(error) => {
                    tracing::warn!(%error, "a connection to the observability listener was not accepted");
                    sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }

    /// Serves one connection.
    pub async fn serve(self: Arc<Self>, io: impl AsyncRead + AsyncWrite + Unpin) {
        let service = service_fn(|request| {
            let answer = self.answer(&request);
            async { Ok::<_, Infallible>(answer) }
        });
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(PATIENCE)
            .serve_connection(TokioIo::new(io), service);
        if let Err(error) = connection.await {
            tracing::debug!(%error, "a connection to the observability listener failed");
        }
    }

    fn answer<B>(&self, request: &Request<B>) -> Response<Full<Bytes>> {
        if !matches!(*request.method(), Method::GET | Method::HEAD) {
            return text(StatusCode::METHOD_NOT_ALLOWED, "only GET\n".to_owned());
        }
        match request.uri().path() {
            "/liveness" => text(StatusCode::OK, "alive\n".to_owned()),
            "/readiness" => match self.health.problems() {
                problems if problems.is_empty() => text(StatusCode::OK, "ready\n".to_owned()),
                problems => text(StatusCode::SERVICE_UNAVAILABLE, problems.join("\n") + "\n"),
            },
            "/metrics" => {
                let mut response = text(StatusCode::OK, metrics::render(&self.registry));
                response.headers_mut().insert(CONTENT_TYPE, OPENMETRICS);
                response
            }
            _ => text(StatusCode::NOT_FOUND, "try /liveness, /readiness or /metrics\n".to_owned()),
        }
    }
}

fn text(status: StatusCode, text: String) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::from(text));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, TEXT);
    response
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt as _;

    use super::*;
    use crate::{Telemetry, health::Check, metrics::Metrics};

    async fn get(admin: &Admin, path: &str) -> (u16, String) {
        let response = admin.answer(&Request::get(path).body(()).unwrap());
        let status = response.status().as_u16();
        let body = response.into_body().collect().await.unwrap().to_bytes();
        (status, String::from_utf8(body.to_vec()).unwrap())
    }

    #[tokio::test]
    async fn readiness_names_each_problem_in_a_line() {
        let mut registry = Registry::default();
        let telemetry = Telemetry { metrics: Metrics::register(&mut registry), ..Telemetry::default() };
        let admin = Admin::new(Arc::clone(&telemetry.health), registry);
        assert_eq!(get(&admin, "/liveness").await.0, 200);
        let (status, problems) = get(&admin, "/readiness").await;
        assert_eq!((status, problems.lines().count()), (503, 2));

        let _up = telemetry.tunnel_up();
        telemetry.cluster_checked(Check::Up { version: None });
        assert_eq!(get(&admin, "/readiness").await, (200, "ready\n".to_owned()));
        let (_, metrics) = get(&admin, "/metrics").await;
        assert!(metrics.contains("agentk_tunnels 1\n"), "{metrics}");
        assert!(metrics.contains("agentk_cluster_up 1\n"), "{metrics}");
        assert_eq!(get(&admin, "/").await.0, 404);
    }
}
