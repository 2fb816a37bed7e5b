//! The request as the agent gets it, and the response as the caller gets it.

use std::sync::Arc;

use http::{HeaderMap, Request, Response, StatusCode, Version, header::CONTENT_LENGTH};
use hyper::upgrade::OnUpgrade;
use proto::Reason;
use router::Class;
use tokio::time::Instant;
use tunnel::{Body, upgrade};

use super::{
    context::{AuthorizedRequest, RequestContext, Route},
    request_body,
    response_body::{ConcurrencyPermit, ResponseGuard, TrackedBody},
    upgrade::PendingUpgrade,
};
use crate::{
    failure::Failure,
    forward::Answered,
    headers::{self, ProxyHeaders},
    metrics::{Limit, ServiceMetrics},
    promql::{self, Labels},
    timing::Stages,
};

/// A response of at most so many bytes is not watched for its memory on HTTP/1.1.
const SMALL: u64 = 64 << 10;

/// The state of a request while the agent answers it.
pub(super) struct Exchange {
    context: Arc<RequestContext>,
    route: Arc<Route>,
    permit: ConcurrencyPermit,
    metrics: Arc<ServiceMetrics>,
    /// The caller's connection, if the caller asks for another protocol.
    upgrade: Option<OnUpgrade>,
}

impl Exchange {
    /// Makes the caller's request the one that is sent to the agent.
    pub(super) async fn begin(
        request: AuthorizedRequest,
        permit: ConcurrencyPermit,
    ) -> Result<(Self, AuthorizedRequest<Body>), Failure> {
        let AuthorizedRequest { mut request, context, route } = request;
        if route.upgrading && context.version != Version::HTTP_11 {
            return Err(Failure::new(Reason::BadRequest, "an upgrade needs HTTP/1.1"));
        }
        let proxy_headers = ProxyHeaders {
            service: &route.destination.service,
            access_as: &route.grant.caller.access_as,
            request_id: &context.id,
            version: context.version,
            forwarded: &context.forwarded,
        };
        headers::to_agent(request.headers_mut(), proxy_headers)?;
        context.trace.lock().write(request.headers_mut());
        *request.uri_mut() = route.target.clone();
        let upgrade = route.upgrading.then(|| hyper::upgrade::on(&mut request));

        let metrics = Arc::clone(context.callers.forwarder.metrics.of(&route.destination.service));
        let request = request.map(|()| request_body::take(&context, &metrics));
        let request = match route.grant.caller.labels(&route.destination.service) {
            // Boxed: most requests do not pass here, and should not have room for it.
            Some(labels) => Box::pin(restrict(&context, request, labels)).await?,
            None => request,
        };
        let outgoing =
            AuthorizedRequest { request, context: Arc::clone(&context), route: Arc::clone(&route) };
        Ok((Self { context, route, permit, metrics, upgrade }, outgoing))
    }

    /// Makes the agent's response the one that the caller gets.
    pub(super) async fn respond(self, answered: Answered) -> Result<Response<TrackedBody>, Failure> {
        let Answered { mut response, lease, sent } = answered;
        let (context, route) = (&self.context, &self.route);
        if let Some(failure) = Failure::of_agent(&response, &route.destination) {
            return Err(failure);
        }

        let timing = Stages::of(context.started, sent, Instant::now(), response.headers());
        self.metrics.answered(response.status(), &timing);
        let upgraded = upgrade::take(&mut response);
        let extra = &context.callers.extra_headers;
        headers::to_caller(response.headers_mut(), upgraded.is_some(), extra, &context.id);
        timing.write(response.headers_mut());
        self.log(response.status(), &timing);
        let guard = |status| {
            context.trace.lock().answered(status, &timing);
            ResponseGuard::new(Arc::clone(context), Arc::clone(&self.metrics), lease)
        };
        match (upgraded, self.upgrade) {
            (Some(upgraded), Some(outside)) => {
                // Bytes of a body would be read as those of the new protocol (RFC 9110 section 7.8).
                if !Box::pin(request_body::drain(context)).await {
                    let cause = "a request that asks for another protocol cannot have a body";
                    return Err(Failure::new(Reason::BadRequest, cause));
                }
                let cut = route.grant.revoked.child_token();
                let release = cut.clone();
                let share = context.callers.budget.share(upgraded.monitor(), move || release.cancel());
                let guard = guard(response.status());
                let (context, permit) = (self.context, self.permit);
                PendingUpgrade { context, upgraded, outside, guard, permit, share, cut }.spawn();
                Ok(response.map(TrackedBody::untracked))
            }
            _ if response.status() == StatusCode::SWITCHING_PROTOCOLS => Err(Failure::new(
                Reason::AgentMisbehaved,
                "the agent switched protocols although the request did not ask for it",
            )),
            _ => {
                let guard = guard(response.status());
                Ok(track(response, context, route, guard, self.permit))
            }
        }
    }

    fn log(&self, status: StatusCode, timing: &Stages) {
        tracing::debug!(
            request.id = ?self.context.id,
            trace_id = self.context.trace_id().map(tracing::field::display),
            client = %self.context.forwarded.client,
            caller = self.route.grant.caller.name,
            agent.name = %self.route.destination.name,
            service = %self.route.destination.service,
            method = %self.route.method,
            path = self.route.target.path(),
            status = status.as_u16(),
            queue = ?timing.queue,
            tunnel = ?timing.tunnel,
            upstream = ?timing.upstream,
            "a request was answered"
        );
    }
}

/// Restricts the queries of a caller that sees only certain series.
async fn restrict(
    context: &RequestContext,
    request: Request<Body>,
    labels: &Labels,
) -> Result<Request<Body>, Failure> {
    let restricted = promql::enforce(labels, request, context.callers.limits.max_form_bytes).await;
    if let Err(Failure { reason: Reason::BodyTooLarge, .. }) = &restricted {
        context.callers.forwarder.metrics.limit(Limit::Form);
    }
    restricted
}

/// Wraps a response body, so that its guard lives as long as it does.
fn track(
    response: Response<Body>,
    context: &RequestContext,
    route: &Route,
    guard: ResponseGuard,
    permit: ConcurrencyPermit,
) -> Response<TrackedBody> {
    let may_grow = may_grow(response.headers());
    let multiplexed = context.version == Version::HTTP_2;
    let monitor = response.body().monitor().filter(|_| multiplexed || may_grow);
    // The response decides, not the request: the API server has more spellings of a watch than kas knows.
    let stays = route.destination.class == Class::Long || may_grow;
    response.map(|body| {
        let mut tracked = TrackedBody::new(body, guard, permit);
        if let Some(monitor) = monitor {
            tracked = tracked.with_budget(&context.callers.budget, monitor);
        }
        if stays { tracked.with_revocation(route.grant.revoked.clone()) } else { tracked }
    })
}

/// Returns whether an unread response may come to hold much memory.
fn may_grow(headers: &HeaderMap) -> bool {
    let length = headers.get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse().ok());
    length.is_none_or(|length: u64| length > SMALL)
}
