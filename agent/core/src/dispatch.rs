//! Dispatches each request to the service that it names.

use std::{
    collections::HashMap,
    future::poll_fn,
    panic::AssertUnwindSafe,
    sync::{Arc, OnceLock},
    task::Poll,
    time::Duration,
};

use cores::poll_on_wake;
use futures_util::FutureExt as _;
use http::{HeaderValue, Method, Request, Response, StatusCode};
use proto::{Reason, ServiceName, header, impersonation};
use telemetry::{RequestSpan, Tracer};
use tokio::time::Instant;
use tower::ServiceExt as _;
use tunnel::{Body, IncomingRequest, WatchEnds, end_at};

use crate::{
    ServiceError, Services,
    metrics::{AgentMetrics, ServiceMetrics},
    policy::PermittedRequest,
    services::{BoxService, control::ControlService, response::WatchResponse},
};

/// The services that pass requests on. The others respond to HEAD as to GET.
const FORWARDING: [&str; 2] = [ServiceName::KUBERNETES, ServiceName::PROMETHEUS];

/// The services by name, with their metrics.
pub struct Dispatcher {
    routes: HashMap<String, Route>,
    unknown: ServiceMetrics,
    control: ServiceMetrics,
    tracer: Option<Tracer>,
    /// Decides when watches end.
    watches: WatchEnds,
}

struct Route {
    service: BoxService,
    metrics: ServiceMetrics,
}

/// The service of one request.
enum DispatchTarget {
    Service(BoxService),
    Control(ControlService),
    /// No service has the name, for this reason.
    Unknown(String),
}

impl Dispatcher {
    pub(crate) fn new(
        services: Services,
        metrics: &AgentMetrics,
        tracer: Option<Tracer>,
        watches: WatchEnds,
    ) -> Self {
        let metrics_of = |name: &str| metrics.service(&name.parse().expect("a constant"));
        let routes = services.into_iter().map(|(name, service)| {
            let metrics = metrics.service(&name);
            (name.into(), Route { service, metrics })
        });
        Self {
            routes: routes.collect(),
            unknown: metrics_of("unknown"),
            control: metrics_of(ServiceName::CONTROL),
            tracer,
            watches,
        }
    }

    /// Serves one request until the last byte of its response is sent, or until a new policy refuses it. A panic of the
    /// service ends this request only.
    ///
    /// A [watch](WatchResponse) ends when agentk stops.
    pub async fn serve(self: Arc<Self>, incoming: IncomingRequest, control: ControlService) {
        let (target, metrics) = self.find(incoming.request(), control);
        let _in_flight = metrics.start_request();
        let (permitted, upgraded_watch) = (OnceLock::new(), OnceLock::new());
        // The span ends with this function.
        let mut trace = self.trace(incoming.request(), &target);
        let trace = &mut trace;
        let respond = |mut request: Request<Body>| async {
            let service = request.headers_mut().remove(header::SERVICE);
            let id = request.headers().get(header::REQUEST_ID).cloned();
            trace.inject(request.headers_mut());
            let started = Instant::now();
            let is_forwarded =
                service.as_ref().is_some_and(|name| FORWARDING.iter().any(|known| name == *known));
            // The response has the head of that to GET, and no body (RFC 9110 section 9.3.2).
            let without_body = request.method() == Method::HEAD && !is_forwarded;
            if without_body {
                *request.method_mut() = Method::GET;
            }
            let mut response = target.respond(request).await;
            if without_body {
                *response.body_mut() = Body::empty();
            }
            if response.extensions_mut().remove::<WatchResponse>().is_some() {
                response = end_at(response, self.watches.next());
                if response.status() == StatusCode::SWITCHING_PROTOCOLS {
                    // There is one response, so that the cell is empty.
                    let _ = upgraded_watch.set(());
                }
            }
            let duration = started.elapsed();
            // Headers of an upstream that begin with `kas-` were removed, so that this one is agentk's.
            response.headers_mut().insert(header::UPSTREAM_TIME, micros(duration));
            let error = response.headers().get(header::ERROR).and_then(|reason| reason.to_str().ok());
            metrics.record_response(response.status(), error.is_some(), duration);
            trace.add_event("response.head", Duration::ZERO);
            trace.set_response(response.status(), error);
            tracing::debug!(
                request.id = id.as_ref().and_then(|id| id.to_str().ok()),
                trace_id = trace.trace_id().map(display),
                service = service.as_ref().and_then(|name| name.to_str().ok()),
                status = response.status().as_u16(),
                error,
                ?duration,
                "request answered"
            );
            if let Some(request) = response.extensions_mut().remove::<PermittedRequest>() {
                // There is one response, so that the cell is empty.
                let _ = permitted.set(request);
            }
            response
        };
        let revoked = async {
            // This needs no waker: `select!` polls this future right after the one below, which sets the cell.
            let request = poll_fn(|_| permitted.get().map_or(Poll::Pending, Poll::Ready)).await;
            request.clone().revoked().await
        };
        let watch_ended = async {
            poll_fn(|_| upgraded_watch.get().map_or(Poll::Pending, |()| Poll::Ready(()))).await;
            poll_on_wake(self.watches.next()).await
        };
        tokio::select! {
            biased;
            () = incoming.respond(respond) => {}
            error = revoked => tracing::debug!(%error, "stream ended: a new version of the policy refuses its request"),
            () = watch_ended => {}
        }
    }

    /// Begins the trace of a request. Requests of kas itself are not traced: they have no id. Those of a kas of GitLab have none either,
    /// and are all for the Kubernetes API.
    fn trace(&self, request: &Request<Body>, target: &DispatchTarget) -> RequestSpan {
        let Some(tracer) = &self.tracer else { return RequestSpan::default() };
        let text = |name| request.headers().get(name).and_then(|value: &HeaderValue| value.to_str().ok());
        if text(header::REQUEST_ID).is_none() && text(header::SERVICE) != Some(ServiceName::KUBERNETES) {
            return RequestSpan::default();
        }
        // Requests in a tunnel have the scheme `http`, whatever carries the tunnel.
        let mut trace = RequestSpan::start(Some(tracer), "http", request, true);
        if let DispatchTarget::Service(_) = target {
            trace.set_service(text(header::SERVICE).unwrap_or_default(), request.method());
        }
        trace.set_attribute("kas.request.id", || {
            text(header::REQUEST_ID).unwrap_or_default().to_owned().into()
        });
        trace
    }

    fn find(&self, request: &Request<Body>, control: ControlService) -> (DispatchTarget, &ServiceMetrics) {
        let name = request.headers().get(header::SERVICE).and_then(|name| name.to_str().ok());
        match name.map(|name| (name, self.routes.get(name))) {
            Some((_, Some(route))) => (DispatchTarget::Service(route.service.clone()), &route.metrics),
            Some((ServiceName::CONTROL, None)) => (DispatchTarget::Control(control), &self.control),
            Some((name, None)) => {
                (DispatchTarget::Unknown(format!("{name} is not served here")), &self.unknown)
            }
            None => (DispatchTarget::Unknown("the request names no service".to_owned()), &self.unknown),
        }
    }
}

impl DispatchTarget {
    async fn respond(self, request: Request<Body>) -> Response<Body> {
        match self {
            Self::Service(service) => {
                // No service trims a name: the API server would see another one than agentk.
                if let Err(error) = impersonation::check(request.headers()) {
                    return ServiceError::new(Reason::BadRequest, error.to_string()).into_response();
                }
                // Unwind-safe: a service owns the state that it changes, or shares it behind locks that do not poison.
                let responding = AssertUnwindSafe(async { service.oneshot(request).await }).catch_unwind();
                match responding.await {
                    Ok(Ok(response)) => response,
                    Err(_) => {
                        let what = "a defect of agentk; its log has the panic";
                        ServiceError::new(Reason::Internal, what).into_response()
                    }
                }
            }
            Self::Control(control) => control.respond(request).await,
            Self::Unknown(reason) => ServiceError::new(Reason::UnknownService, reason).into_response(),
        }
    }
}

fn micros(time: Duration) -> HeaderValue {
    HeaderValue::from(u64::try_from(time.as_micros()).unwrap_or(u64::MAX))
}
