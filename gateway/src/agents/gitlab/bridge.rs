//! The requests of an in-memory tunnel, which GitLab's agentk serves in its `Connect` streams.
//!
//! For the rest of kas, GitLab's agentk is one more agentk: this bridge receives what kas sends to agentk, and answers for it.

use std::{sync::Arc, time::Duration};

use gitlab_tunnel::encode_request;
use http::{
    HeaderValue, Request, Response, StatusCode,
    header::{ALLOW, CONTENT_LENGTH, UPGRADE},
};
use http_body::Body as _;
use http_body_util::{BodyExt as _, Limited};
use proto::{
    Delivery, Reason, ServiceName,
    control::{DRAIN_PATH, DrainRequest, MAX_BODY},
    header,
};
use request_info::prometheus::{self, AllowlistMatch};
use tokio::{sync::watch, time::timeout};
use tonic::{Code, Status};
use tunnel::{Body, IncomingRequest};

use super::{
    exchange::{Exchange, ExchangeError},
    metrics::RpcMetrics,
    pool::StreamPool,
};
use crate::config::ServicePath;

/// The time that a request waits for a stream. agentk opens ten at once when it has fewer than two.
const STREAM_TIMEOUT: Duration = Duration::from_secs(2);
/// The most streams that one request tries: agentk may end each at the moment at which the request is sent.
const MAX_TRIES: u32 = 3;
/// The error of GitLab's agentk for a request that impersonates twice.
const NESTED_IMPERSONATION: &str = "nested impersonation";

/// Serves the requests of one tunnel.
#[derive(Debug)]
pub(super) struct Bridge {
    pub(super) pool: StreamPool,
    /// The path of Prometheus behind the API server.
    pub(super) prometheus: Option<ServicePath>,
    /// The time for the requests in flight, once kas wants agentk to open another connection.
    pub(super) leaving: watch::Sender<Option<Duration>>,
    pub(super) metrics: RpcMetrics,
}

impl Bridge {
    /// Serves one request until the last byte of its response is sent.
    pub(super) async fn serve(self: Arc<Self>, incoming: IncomingRequest) {
        let service = incoming.request().headers().get(header::SERVICE).cloned();
        match service.as_ref().and_then(|name| name.to_str().ok()) {
            Some(ServiceName::KUBERNETES) => {
                incoming.try_respond(|request| self.exchange(request)).await;
            }
            Some(ServiceName::PROMETHEUS) => {
                incoming.try_respond(|request| self.query(request)).await;
            }
            Some(ServiceName::CONTROL) => incoming.respond(|request| self.control(request)).await,
            _ => {
                let what = "GitLab's agentk does not serve it";
                incoming.respond(async |_| error(Reason::UnknownService, what)).await;
            }
        }
    }

    /// Sends a request to the Kubernetes API.
    async fn exchange(&self, request: Request<Body>) -> Result<Response<Body>, Delivery> {
        let (head, mut body) = request.into_parts();
        let upgrading = head.headers.contains_key(UPGRADE);
        let length = match body.is_end_stream() || upgrading {
            true => 0,
            false => content_length(head.headers.get(CONTENT_LENGTH)),
        };
        let header = match encode_request(&head, length) {
            Ok(header) => header,
            Err(unsupported) => {
                let what = format!("GitLab's agentk cannot carry this request: {unsupported}");
                return Ok(error(Reason::BadRequest, &what));
            }
        };
        for _ in 0..MAX_TRIES {
            // No stream in time: another tunnel of the agent may have one.
            let Ok(Some(stream)) = timeout(STREAM_TIMEOUT, self.pool.take()).await else {
                return Err(Delivery::NotProcessed);
            };
            let exchange = match Exchange::start(stream, &header, body, upgrading, self.metrics.clone()) {
                Ok(exchange) => exchange,
                // agentk has just ended it.
                Err(unsent) => {
                    body = unsent;
                    continue;
                }
            };
            match exchange.response().await {
                Ok(response) => return Ok(response),
                Err(ExchangeError::NotProcessed(Some(whole))) => body = whole,
                Err(ExchangeError::NotProcessed(None)) => return Err(Delivery::NotProcessed),
                Err(ExchangeError::Lost) => return Err(Delivery::Unknown),
                Err(ExchangeError::Status(status)) => return Ok(error(reason(&status), status.message())),
                Err(ExchangeError::Protocol(what)) => {
                    let what = format!("GitLab's agentk breaks the protocol: {what}");
                    return Ok(error(Reason::AgentMisbehaved, &what));
                }
                // The caller has aborted it: the error does not reach it.
                Err(ExchangeError::Body(what)) => return Ok(error(Reason::BadRequest, &what)),
            }
        }
        Err(Delivery::NotProcessed)
    }

    /// Sends a request that only reads to Prometheus, through the API server.
    async fn query(&self, mut request: Request<Body>) -> Result<Response<Body>, Delivery> {
        let Some(prometheus) = &self.prometheus else {
            return Ok(error(
                Reason::UnknownService,
                "agent.gitlab_agentk.prometheus_service is not configured",
            ));
        };
        let (method, path) = (request.method(), request.uri().path());
        let listed = prometheus::check(method, path);
        if let Some(refusal) = listed.refusal(method, path) {
            return Ok(match listed {
                AllowlistMatch::WrongMethod(methods) => {
                    let mut response = error(Reason::MethodNotAllowed, &refusal);
                    response.headers_mut().insert(ALLOW, HeaderValue::from_static(methods));
                    response
                }
                _ => error(Reason::NotProxied, &refusal),
            });
        }
        let target = request.uri().path_and_query().map_or("", |target| target.as_str());
        let target = format!("{}{target}", prometheus.as_str());
        match target.parse() {
            Ok(uri) => *request.uri_mut() = uri,
            Err(_) => return Ok(error(Reason::BadRequest, "the path is too long")),
        }
        self.exchange(request).await
    }

    /// Answers the requests of kas to agentk itself.
    async fn control(&self, request: Request<Body>) -> Response<Body> {
        let (head, body) = request.into_parts();
        if head.uri.path() == DRAIN_PATH {
            let read = Limited::new(body, MAX_BODY).collect().await.map(|body| body.to_bytes());
            let drain = read.ok().and_then(|body| serde_json::from_slice::<DrainRequest>(&body).ok());
            let Some(DrainRequest { within, .. }) = drain else {
                return error(Reason::BadRequest, "the body is no drain request");
            };
            self.leaving.send_replace(Some(within));
        }
        // The owner of the cluster sees nothing of the kill switch: GitLab's agentk has no such message.
        let mut response = Response::new(Body::empty());
        *response.status_mut() = StatusCode::ACCEPTED;
        response
    }
}

fn content_length(header: Option<&HeaderValue>) -> i64 {
    header.and_then(|length| length.to_str().ok()?.parse().ok()).unwrap_or(-1)
}

/// Returns the reason for a request that agentk could not answer.
fn reason(status: &Status) -> Reason {
    match status.code() {
        // Its code is Unavailable.
        _ if status.message().contains(NESTED_IMPERSONATION) => Reason::NestedImpersonation,
        Code::DeadlineExceeded => Reason::ClusterTimeout,
        Code::Unavailable => Reason::ClusterUnreachable,
        Code::Unimplemented => Reason::UnknownService,
        Code::ResourceExhausted => Reason::TooManyRequests,
        _ => Reason::ClusterMisbehaved,
    }
}

/// Returns an error as agentk sends it to kas.
fn error(reason: Reason, message: &str) -> Response<Body> {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = reason.status();
    *response.headers_mut() = header::error(reason, message);
    response
}
