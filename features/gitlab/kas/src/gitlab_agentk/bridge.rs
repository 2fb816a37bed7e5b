//! The requests to GitLab's agentk, which it serves in its `Connect` streams.
//!
//! For the rest of kas, GitLab's agentk is one more agentk: this bridge answers for it what GitLab's protocol does not have.

use std::{borrow::Cow, sync::Arc, time::Duration};

use gitlab_tunnel::encode_request;
use http::{
    HeaderValue, Method, Request, Response, StatusCode, Uri,
    header::{ALLOW, CONNECTION, CONTENT_LENGTH, UPGRADE},
    request::Parts,
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
use tunnel::{Body, CallError, CallErrorKind};

use super::{
    GitlabConnection,
    config::ServicePath,
    exchange::{Exchange, ExchangeError, ResponseLimits},
    pool::StreamPool,
};

/// The time that a request waits for a stream. agentk opens ten at once when it has fewer than two.
const STREAM_TIMEOUT: Duration = Duration::from_secs(2);
/// The most streams that one request tries: agentk may end each at the moment at which the request is sent.
const MAX_TRIES: u32 = 3;
/// The error of GitLab's agentk for a request that impersonates twice.
const NESTED_IMPERSONATION: &str = "nested impersonation";

/// Serves the requests of one tunnel.
#[derive(Debug)]
pub(super) struct Bridge {
    pool: StreamPool,
    /// The path of Prometheus behind the API server.
    prometheus: Option<ServicePath>,
    /// The time for the requests in flight, once kas wants agentk to open another connection.
    leaving: watch::Sender<Option<Duration>>,
    limits: ResponseLimits,
}

impl Bridge {
    pub(super) fn new(connection: &GitlabConnection) -> Self {
        let (server, gitlab) = (&connection.server, &connection.gitlab);
        Self {
            pool: connection.pool.clone(),
            prometheus: gitlab.prometheus.clone(),
            leaving: connection.leaving.clone(),
            limits: ResponseLimits {
                max_header_bytes: server.settings.max_header_bytes as usize,
                metrics: gitlab.metrics.clone(),
            },
        }
    }

    /// Sends a request and waits for the head of its response, like [`tunnel::Tunnel::call`].
    pub(super) async fn call(self: Arc<Self>, request: Request<Body>) -> Result<Response<Body>, CallError> {
        let service = request.headers().get(header::SERVICE).and_then(|name| name.to_str().ok());
        match service {
            Some(ServiceName::KUBERNETES) => {
                let (head, body) = request.into_parts();
                self.exchange(head, body, None).await
            }
            Some(ServiceName::PROMETHEUS) => self.query(request).await,
            Some(ServiceName::CONTROL) => Ok(self.control(request).await),
            _ => Ok(error(Reason::UnknownService, "GitLab's agentk does not serve it")),
        }
    }

    /// Sends a request to the Kubernetes API, with `target` in place of its own if there is one.
    async fn exchange(
        &self,
        head: Parts,
        mut body: Body,
        target: Option<Uri>,
    ) -> Result<Response<Body>, CallError> {
        if head.method == Method::CONNECT {
            let what = "the method CONNECT is for forward proxies";
            return Err(failed(CallErrorKind::Unsupported(what), Delivery::NotProcessed, head, Some(body)));
        }
        let upgrading = head.headers.contains_key(UPGRADE);
        let bodyless = body.is_end_stream();
        if upgrading && !bodyless {
            let what = "a request with a body cannot become an upgrade, which would lose the body";
            return Err(failed(CallErrorKind::Unsupported(what), Delivery::NotProcessed, head, Some(body)));
        }
        let length = if bodyless { 0 } else { content_length(head.headers.get(CONTENT_LENGTH)) };
        let header = match encode_request(&sent_head(&head, target, upgrading), length) {
            Ok(header) => header,
            Err(unsupported) => {
                let what = format!("GitLab's agentk cannot carry this request: {unsupported}");
                return Ok(error(Reason::BadRequest, &what));
            }
        };
        let mut refusal = CallErrorKind::Refused;
        for _ in 0..MAX_TRIES {
            // No stream in time: another tunnel of the agent may have one.
            let stream = match timeout(STREAM_TIMEOUT, self.pool.take()).await {
                Ok(Some(stream)) => stream,
                Ok(None) => break,
                Err(_) => {
                    if self.pool.is_busy() {
                        refusal = CallErrorKind::Busy;
                    }
                    break;
                }
            };
            let exchange = match Exchange::start(stream, &header, body, upgrading, self.limits.clone()) {
                Ok(exchange) => exchange,
                // agentk has just ended it.
                Err(whole) => {
                    body = whole;
                    continue;
                }
            };
            let (kind, delivery, whole) = match exchange.response().await {
                Ok(response) => return Ok(response),
                Err(ExchangeError::NotProcessed(Some(whole))) => {
                    body = whole;
                    continue;
                }
                Err(ExchangeError::NotProcessed(None)) => {
                    (CallErrorKind::Refused, Delivery::NotProcessed, None)
                }
                Err(ExchangeError::Lost(whole)) => {
                    let kind = CallErrorKind::Reset(h2::Reason::INTERNAL_ERROR);
                    (kind, Delivery::Unknown, whole)
                }
                Err(ExchangeError::Body(cause)) => (CallErrorKind::Body(cause), Delivery::Unknown, None),
                Err(ExchangeError::Status(status)) => return Ok(error(reason(&status), status.message())),
                Err(ExchangeError::Protocol(what)) => {
                    let what = format!("GitLab's agentk breaks the protocol: {what}");
                    return Ok(error(Reason::AgentMisbehaved, &what));
                }
            };
            return Err(failed(kind, delivery, head, whole));
        }
        Err(failed(refusal, Delivery::NotProcessed, head, Some(body)))
    }

    /// Sends a request that only reads to Prometheus, through the API server.
    async fn query(&self, request: Request<Body>) -> Result<Response<Body>, CallError> {
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
        let Ok(target) = target.parse() else {
            return Ok(error(Reason::BadRequest, "the path is too long"));
        };
        let (head, body) = request.into_parts();
        self.exchange(head, body, Some(target)).await
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

/// Returns the head as agentk receives it. It is a copy if it differs, because a retry needs the original.
fn sent_head(head: &Parts, target: Option<Uri>, upgrading: bool) -> Cow<'_, Parts> {
    if target.is_none() && !upgrading {
        return Cow::Borrowed(head);
    }
    let mut sent = head.clone();
    sent.uri = target.unwrap_or(sent.uri);
    if upgrading {
        sent.headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
        sent.headers.remove(CONTENT_LENGTH);
    }
    Cow::Owned(sent)
}

/// Returns the error of a request without a response, with the request if its body is whole.
fn failed(kind: CallErrorKind, delivery: Delivery, head: Parts, whole: Option<Body>) -> CallError {
    CallError { kind, delivery, request: whole.map(|body| Box::new(Request::from_parts(head, body))) }
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
