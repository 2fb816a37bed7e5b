//! Finds the service of a request by its name.

use std::{
    collections::HashMap,
    future::poll_fn,
    panic::AssertUnwindSafe,
    sync::{Arc, OnceLock},
    task::Poll,
    time::Duration,
};

use futures_util::FutureExt as _;
use http::{HeaderValue, Request, Response};
use proto::{Reason, ServiceName, header};
use telemetry::{Trace, Tracer};
use tokio::time::Instant;
use tower::ServiceExt as _;
use tracing::field::display;
use tunnel::{Body, IncomingRequest};

use crate::{
    Failure, Services,
    handlers::control::Control,
    metrics::{Metrics, ServiceMetrics},
    policy::Permit,
    services::BoxService,
};

/// The services by name, with their metrics.
pub(crate) struct Dispatch {
    routes: HashMap<String, Route>,
    unknown: ServiceMetrics,
    control: ServiceMetrics,
    tracer: Option<Tracer>,
}

struct Route {
    service: BoxService,
    metrics: ServiceMetrics,
}

impl Dispatch {
    pub(crate) fn new(services: Services, metrics: &Metrics, tracer: Option<Tracer>) -> Self {
        let of = |name: &str| metrics.of(&name.parse().expect("a constant"));
        let routes = services.into_iter().map(|(name, service)| {
            let metrics = metrics.of(&name);
            (name.into(), Route { service, metrics })
        });
        Self { routes: routes.collect(), unknown: of("unknown"), control: of(ServiceName::CONTROL), tracer }
    }

    /// Answers one request, to the last byte, or until a new policy refuses it. A panic on the way ends this request
    /// only.
    pub(crate) async fn serve(self: Arc<Self>, incoming: IncomingRequest, control: Control) {
        let (target, metrics) = self.find(incoming.request(), control);
        let _in_flight = metrics.begin();
        let permit = OnceLock::new();
        // Ends with this function, which is when the last byte is on its way.
        let mut trace = self.trace(incoming.request(), &target);
        let trace = &mut trace;
        let answer = |mut request: Request<Body>| async {
            let service = request.headers_mut().remove(header::SERVICE);
            let id = request.headers().get(header::REQUEST_ID).cloned();
            trace.write(request.headers_mut());
            let asked = Instant::now();
            let mut response = target.respond(request).await;
            let took = asked.elapsed();
            metrics.answered(&response, took);
            // Ours alone: what an upstream says under this name was removed with all that begins like it.
            response.headers_mut().insert(header::UPSTREAM_TIME, micros(took));
            let failure = response.headers().get(header::ERROR).and_then(|reason| reason.to_str().ok());
            trace.event("response.head", Duration::ZERO);
            trace.answered(response.status(), failure);
            let (trace_id, status) = (trace.id().map(display), response.status().as_u16());
            tracing::debug!(request.id = ?id, trace_id, ?service, status, failure, ?took, "answered");
            if let Some(granted) = response.extensions_mut().remove::<Permit>() {
                // There is one answer.
                let _ = permit.set(granted);
            }
            response
        };
        let withdrawn = async {
            // Nobody has to wake us: it is there, if at all, once the answer below was polled, and we are polled next.
            let granted = poll_fn(|_| permit.get().map_or(Poll::Pending, Poll::Ready)).await;
            granted.clone().withdrawn().await;
        };
        tokio::select! {
            biased;
            () = incoming.answer(answer) => {}
            () = withdrawn => tracing::debug!("a stream was ended: the policy now refuses its request"),
        }
    }

    /// What kas asks for itself is nobody's request.
    fn trace(&self, request: &Request<Body>, target: &Target) -> Trace {
        let tracer = self.tracer.as_ref().filter(|_| !matches!(target, Target::Control(_)));
        let mut trace = Trace::begin(tracer, request, true);
        let named = |name| request.headers().get(name).and_then(|value: &HeaderValue| value.to_str().ok());
        if let Target::Service(_) = target {
            trace.of_service(named(header::SERVICE).unwrap_or_default(), request.method());
        }
        trace.set("kas.request.id", || named(header::REQUEST_ID).unwrap_or_default().to_owned().into());
        trace
    }

    fn find(&self, request: &Request<Body>, control: Control) -> (Target, &ServiceMetrics) {
        let name = request.headers().get(header::SERVICE).and_then(|name| name.to_str().ok());
        match name.map(|name| (name, self.routes.get(name))) {
            Some((_, Some(route))) => (Target::Service(route.service.clone()), &route.metrics),
            Some((ServiceName::CONTROL, None)) => (Target::Control(control), &self.control),
            Some((name, None)) => (Target::Unknown(format!("{name} is not served here")), &self.unknown),
            None => (Target::Unknown("the request names no service".to_owned()), &self.unknown),
        }
    }
}

fn micros(time: Duration) -> HeaderValue {
    HeaderValue::from(u64::try_from(time.as_micros()).unwrap_or(u64::MAX))
}

/// Where a request goes.
enum Target {
    Service(BoxService),
    Control(Control),
    /// No service has the name; with the reason.
    Unknown(String),
}

impl Target {
    async fn respond(self, request: Request<Body>) -> Response<Body> {
        match self {
            Self::Service(service) => {
                // A service owns the state that it changes, or shares it behind locks that do not poison.
                let responding = AssertUnwindSafe(async { service.oneshot(request).await }).catch_unwind();
                match responding.await {
                    Ok(Ok(response)) => response,
                    Err(_) => {
                        let what = "a defect of agentk; its log says more";
                        Failure::new(Reason::Internal, what).into_response()
                    }
                }
            }
            Self::Control(control) => control.answer(request).await,
            Self::Unknown(why) => Failure::new(Reason::UnknownService, why).into_response(),
        }
    }
}
