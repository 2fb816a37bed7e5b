//! The layers that every request passes, in the order in which [`super::stack`] builds them.
//!
//! A layer is a function from a service to a service. The services have no state of their own, so that they cost nothing to
//! clone: all that a layer needs is in the [`RequestContext`]. They are always ready, so that a layer calls the next one
//! without `poll_ready`.

use std::{convert::Infallible, future::ready, str::FromStr as _, sync::Arc, time::Duration};

use futures_util::future::Either;
use http::{HeaderValue, Response, Uri, Version, header::CONNECTION, uri::PathAndQuery};
use proto::{Reason, border};
use tower::{Service, service_fn};
use tracing::field::display;
use tunnel::Body;

use super::{
    context::{AuthorizedRequest, ProxyRequest, RequestContext, Route},
    exchange::Exchange,
    request_body,
    response_body::{ConcurrencyPermit, TrackedBody},
    validate::validate,
};
use crate::{
    access::{self, Access},
    failure::Failure,
    forward::{Answered, Destination},
    metrics::Limit,
    target::Target,
    traces::RequestTrace,
};

/// A request, and its place among those that its caller may have in flight.
pub(super) type PermittedRequest = (AuthorizedRequest, ConcurrencyPermit);

/// Refuses web pages of foreign origins, answers preflights, and lets listed origins read the response.
///
/// tower-http's layer passes requests of other origins on, and leaves their refusal to the browser: a request with side
/// effects would have been made by then.
pub(super) fn cors<S>(
    inner: S,
) -> impl Service<ProxyRequest, Response = Response<TrackedBody>, Error = Infallible, Future: Send> + Clone + Send
where
    S: Service<ProxyRequest, Response = Response<TrackedBody>, Error = Infallible, Future: Send>
        + Clone
        + Send,
{
    service_fn(move |request: ProxyRequest| {
        let mut inner = inner.clone();
        async move {
            let page = match request.context.callers.cors.admit(&request.head) {
                Ok(page) => page,
                Err(failure) => return Ok(Box::pin(refuse(&request.context, &failure)).await),
            };
            if let Some(response) = page.preflight(&request.head) {
                return Ok(response.map(TrackedBody::untracked));
            }

            let mut response = inner.call(request).await?;
            page.mark(response.headers_mut());
            Ok(response)
        }
    })
}

/// Begins the span of the request. It ends with the context.
pub(super) fn trace<S>(
    inner: S,
) -> impl Service<ProxyRequest, Response = S::Response, Error = S::Error, Future: Send> + Clone + Send
where
    S: Service<ProxyRequest, Future: Send> + Clone + Send,
{
    service_fn(move |request: ProxyRequest| {
        let context = &request.context;
        let traces = context.callers.traces.as_ref();
        if traces.is_some() {
            *context.trace.lock() = RequestTrace::begin(traces, &request.head, &context.id);
        }
        inner.clone().call(request)
    })
}

/// Renders failures in the dialect of the caller.
pub(super) fn render_failures<S>(
    inner: S,
) -> impl Service<ProxyRequest, Response = Response<TrackedBody>, Error = Infallible, Future: Send> + Clone + Send
where
    S: Service<ProxyRequest, Response = Response<TrackedBody>, Error = Failure, Future: Send> + Clone + Send,
{
    service_fn(move |request: ProxyRequest| {
        let mut inner = inner.clone();
        async move {
            let context = Arc::clone(&request.context);
            match inner.call(request).await {
                Ok(response) => Ok(response),
                // Boxed: most requests do not fail, and should not have room for it.
                Err(failure) => Ok(Box::pin(refuse(&context, &failure)).await),
            }
        }
    })
}

/// Refuses heads that two servers could read differently.
pub(super) fn check_head<S>(
    inner: S,
) -> impl Service<ProxyRequest, Response = S::Response, Error = Failure, Future: Send> + Clone + Send
where
    S: Service<ProxyRequest, Response: Send, Error = Failure, Future: Send> + Clone + Send,
{
    service_fn(move |request: ProxyRequest| match validate(&request.context.callers, &request.head) {
        Ok(()) => Either::Left(inner.clone().call(request)),
        Err(failure) => Either::Right(ready(Err(failure))),
    })
}

/// Authenticates the caller, and authorizes the request.
pub(super) fn authorize<S>(
    inner: S,
) -> impl Service<ProxyRequest, Response = S::Response, Error = Failure, Future: Send> + Clone + Send
where
    S: Service<AuthorizedRequest, Response: Send, Error = Failure, Future: Send> + Clone + Send,
{
    service_fn(move |request: ProxyRequest| match route(&request) {
        Ok(route) => {
            let ProxyRequest { head, context } = request;
            let request = AuthorizedRequest { request: head, context, route: Arc::new(route) };
            Either::Left(inner.clone().call(request))
        }
        Err(failure) => Either::Right(ready(Err(failure))),
    })
}

/// Limits the concurrent requests of one caller.
pub(super) fn limit_concurrency<S>(
    inner: S,
) -> impl Service<AuthorizedRequest, Response = S::Response, Error = Failure, Future: Send> + Clone + Send
where
    S: Service<PermittedRequest, Response: Send, Error = Failure, Future: Send> + Clone + Send,
{
    service_fn(move |request: AuthorizedRequest| match permit(&request) {
        Ok(permit) => Either::Left(inner.clone().call((request, permit))),
        Err(failure) => Either::Right(ready(Err(failure))),
    })
}

/// Makes the caller's request the agent's, and the agent's response the caller's, with guards in both bodies.
pub(super) fn guard_bodies<S>(
    inner: S,
) -> impl Service<PermittedRequest, Response = Response<TrackedBody>, Error = Failure, Future: Send> + Clone + Send
where
    S: Service<AuthorizedRequest<Body>, Response = Answered, Error = Failure, Future: Send> + Clone + Send,
{
    service_fn(move |(request, permit): PermittedRequest| {
        let mut inner = inner.clone();
        async move {
            let (exchange, request) = Exchange::begin(request, permit).await?;
            exchange.respond(inner.call(request).await?).await
        }
    })
}

/// Sends the request to a tunnel of its agent, at this replica or at another one.
pub(super) async fn forward(request: AuthorizedRequest<Body>) -> Result<Answered, Failure> {
    let AuthorizedRequest { request, context, route } = request;
    context.callers.forwarder.forward(&route.destination, request).await
}

fn route(request: &ProxyRequest) -> Result<Route, Failure> {
    let ProxyRequest { head, context } = request;
    let path = head.uri().path_and_query().cloned().unwrap_or_else(|| PathAndQuery::from_static("/"));
    let target = Target::parse(&path)?;
    let identity = context.callers.identities.load();
    let Access { grant, agent } = access::authorize(&identity, head.headers(), &target)?;
    let name = identity.name(agent).expect("authorized").clone();
    let upgrading = border::upgrade(head.headers()).is_some();
    let class = target.class(upgrading);
    let uri = Uri::from_str(target.path)
        .map_err(|_| Failure::new(Reason::BadRequest, "the path cannot be passed on"))?;
    let destination = Destination { agent, name, service: target.service, class };
    context.trace.lock().authorized(&destination, head.method());
    Ok(Route { destination, grant, method: head.method().clone(), target: uri, upgrading })
}

fn permit(request: &AuthorizedRequest) -> Result<ConcurrencyPermit, Failure> {
    let (callers, grant) = (&request.context.callers, &request.route.grant);
    ConcurrencyPermit::try_new(&grant.in_flight, callers.limits.max_requests_per_caller).ok_or_else(|| {
        callers.forwarder.metrics.limit(Limit::RequestsPerCaller);
        let cause = format!("caller {} has as many requests in flight as it may have (agent.kubernetes_api.limits.max_requests_per_caller)", grant.caller.name);
        Failure::new(Reason::TooManyRequests, cause).retry_after(Duration::from_secs(1))
    })
}

/// Answers a request that failed at kas, once the rest of a small body was read. With a body that is left unread, the
/// connection cannot be used again, and the response announces that (RFC 9112 section 9.6).
async fn refuse(context: &RequestContext, failure: &Failure) -> Response<TrackedBody> {
    let (callers, reason) = (&context.callers, failure.reason.as_str());
    context.trace.lock().failed(failure);
    let trace = context.trace_id();
    callers.forwarder.metrics.refused(reason);
    if let Some(suppressed) = callers.failures.admit(failure.reason, std::time::Instant::now()) {
        let (client, id) = (context.forwarded.client, &context.id);
        let trace_id = trace.map(display);
        tracing::info!(%client, request.id = ?id, trace_id, reason, suppressed, what = %failure, "a request failed");
    }
    let mut response = failure.render(&context.reader, &context.id, trace);
    if context.version < Version::HTTP_2 && !request_body::drain(context).await {
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    }
    response.map(TrackedBody::untracked)
}
