//! The observability listener: `/liveness`, `/readiness`, `/metrics`.

use std::{
    convert::Infallible,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use http::{HeaderValue, Request, Response, StatusCode, header::CONTENT_TYPE};
use hyper::{server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use prometheus_client::registry::Registry;
use tokio::io::{AsyncRead, AsyncWrite};
use tunnel::Body;

use crate::metrics;

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

/// Serves probes and Prometheus.
#[derive(Debug)]
pub struct Admin {
    /// What `/readiness` answers.
    pub readiness: Readiness,
    /// What `/metrics` answers.
    pub registry: Registry,
}

impl Admin {
    /// Serves one connection.
    pub async fn serve<T>(self: Arc<Self>, io: T)
    where
        T: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let service = service_fn(|request| {
            let answer = self.answer(&request);
            async { Ok::<_, Infallible>(answer) }
        });
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(Duration::from_secs(10))
            .serve_connection(TokioIo::new(io), service);
        if let Err(error) = connection.await {
            tracing::debug!(%error, "a probe's connection failed");
        }
    }

    fn answer<B>(&self, request: &Request<B>) -> Response<Body> {
        match request.uri().path() {
            "/liveness" => text(StatusCode::OK, "alive\n"),
            "/readiness" if self.readiness.0.load(Relaxed) => text(StatusCode::OK, "ready\n"),
            "/readiness" => text(StatusCode::SERVICE_UNAVAILABLE, "not ready: starting or stopping\n"),
            "/metrics" => {
                let mut answer = text(StatusCode::OK, metrics::render(&self.registry));
                let open_metrics = "application/openmetrics-text; version=1.0.0; charset=utf-8";
                answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(open_metrics));
                answer
            }
            _ => text(StatusCode::NOT_FOUND, "there are /liveness, /readiness and /metrics\n"),
        }
    }
}

fn text(status: StatusCode, body: impl Into<Body>) -> Response<Body> {
    let mut answer = Response::new(body.into());
    *answer.status_mut() = status;
    answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    answer
}
