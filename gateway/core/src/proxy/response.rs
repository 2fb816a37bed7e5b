//! The response that the caller receives: its head, and its body, which holds the guards of the response and counts its bytes.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use access::RequestError;
use bytes::Bytes;
use cores::poll_on_wake;
use http::{HeaderMap, Response, StatusCode, Version, header::CONTENT_LENGTH};
use http_body::{Frame, SizeHint};
use hyper::upgrade::OnUpgrade;
use parking_lot::Mutex;
use proto::Reason;
use router::{RequestClass, RequestPermit};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tunnel::{Body, BodyError, StreamMonitor, end_at, upgrade};

use super::{
    AccessEnded,
    budget::{BudgetGuard, ResponseBudget},
    request::{ConcurrencyPermit, RequestContext, ResponseGuard},
    request_log::BodyBytes,
    upgrade::PendingUpgrade,
};
use crate::{
    destination::Destination,
    forward::{ForwardedResponse, agent_error},
    headers::{self, ResponsePolicy},
    request_hooks::Hop,
    timing::RequestTiming,
    tunnel_entry::TunnelEntry,
};

/// On HTTP/1.1 a response of at most this size is not counted in the budget.
const SMALL_RESPONSE: u64 = 64 << 10;

/// A response body that holds a [`ResponseGuard`] until the caller has the last byte or has closed the stream.
pub(super) struct GuardedBody {
    body: Body,
    bytes: Option<BodyBytes>,
    guard: GuardSlot,
    /// Held even if the budget cuts the response: the unread bytes stay until the connection ends.
    _permit: Option<ConcurrencyPermit>,
    budget: Option<BudgetGuard>,
    /// Completes when the response must not continue.
    cut: Option<AccessEnded>,
}

/// The owner of the guard of a response.
#[derive(Debug)]
enum GuardSlot {
    None,
    Body(ResponseGuard),
    /// The budget takes the guard when it cuts the response: a body that is not read is not dropped either.
    Shared(#[expect(dead_code, reason = "it is dropped")] Arc<Mutex<Option<ResponseGuard>>>),
}

/// Builds the response to the caller from the response of the agent.
///
/// The guards of the response, `permit` among them, move into its body, or into the task of the upgrade.
pub(super) async fn respond(
    context: Arc<RequestContext>,
    ended: AccessEnded,
    permit: ConcurrencyPermit,
    upgrade: Option<OnUpgrade>,
    forwarded: ForwardedResponse,
) -> Result<Response<GuardedBody>, RequestError> {
    let ForwardedResponse { mut response, request_permit, owner, sent } = forwarded;
    let (server, log) = (&context.server, &context.log);
    let access = log.access();
    if let Some(error) = agent_error(&response, access.destination.label()) {
        return Err(error);
    }

    // The memory of a response is that of its stream in the tunnel, whatever features make of it.
    let monitor = response.body().monitor();
    for hooks in &server.handling.hooks {
        response = hooks.on_response(log.request(), response)?;
    }
    context.body.set_answered();
    let timing = RequestTiming::new(log.started, sent, Instant::now(), response.headers());
    let upgraded = upgrade::take(&mut response);
    let policy = ResponsePolicy {
        upgraded: upgraded.is_some(),
        application: server.handling.types.of(&access.destination.service).is_application(access.uri.path()),
        extra: &server.config.extra_headers,
    };
    headers::to_caller(response.headers_mut(), policy, &log.id);
    headers::rewrite_addresses(response.headers_mut(), &access.prefix);
    // HTTP/2 clients treat a length without content as a protocol error (RFC 9110 section 8.6).
    if response.status() == StatusCode::NO_CONTENT {
        response.headers_mut().remove(CONTENT_LENGTH);
    }
    timing.write(response.headers_mut());
    let metrics = log.answered(&server.observers, response.status(), &timing, || {
        let local =
            |permit: &RequestPermit<TunnelEntry>| Hop::Tunnel(permit.tunnel(), permit.handle().hello());
        request_permit.as_ref().map(local).or_else(|| owner.map(Hop::Replica))
    });
    let guard = |status| {
        log.trace_response(status, &timing);
        ResponseGuard::new(Arc::clone(&context), Arc::clone(metrics), request_permit)
    };
    let Destination { service, class, .. } = &access.destination;
    let is_watch = server.handling.types.is_watch(service, *class, &log.method, &access.uri);
    // A replica that stops does not wait for watches, because their clients send them again.
    let ends = is_watch.then_some(&server.connections.watches);
    match (upgraded, upgrade) {
        (Some(upgraded), Some(outside)) => {
            let over_budget = CancellationToken::new();
            let release = over_budget.clone();
            let budget = server.connections.budget.add(upgraded.monitor(), move || release.cancel());
            let guard = guard(response.status());
            let ends = ends.cloned();
            PendingUpgrade { context, ended, ends, upgraded, outside, guard, permit, budget, over_budget }
                .spawn();
            Ok(response.map(GuardedBody::untracked))
        }
        _ if response.status() == StatusCode::SWITCHING_PROTOCOLS => Err(RequestError::new(
            Reason::AgentMisbehaved,
            "the agent switched protocols although the request did not ask for an upgrade",
        )),
        _ => {
            context.body.finish(context.version, response.headers_mut()).await;
            let guard = guard(response.status());
            if let Some(ends) = ends {
                response = end_at(response, ends.next());
            }
            let is_stream = *class == RequestClass::Streaming;
            Ok(track(response, &context, monitor, (ended, is_stream), guard, permit))
        }
    }
}

/// Moves the guards into the body of a response.
fn track(
    response: Response<Body>,
    context: &RequestContext,
    monitor: Option<StreamMonitor>,
    (ended, is_stream): (AccessEnded, bool),
    guard: ResponseGuard,
    permit: ConcurrencyPermit,
) -> Response<GuardedBody> {
    let may_grow = monitor.is_some() && (context.version == Version::HTTP_2 || may_grow(response.headers()));
    response.map(|body| {
        let tracked = GuardedBody::new(body, guard, permit);
        // A response that has arrived whole has no stream: it needs no budget, and its request has ended. A stream of kas itself has no
        // tunnel, and produces its parts when they are sent.
        let Some(monitor) = monitor else {
            return if is_stream { tracked.with_cut(ended) } else { tracked };
        };
        let tracked = tracked.with_cut(ended);
        if may_grow { tracked.with_budget(&context.server.connections.budget, monitor) } else { tracked }
    })
}

/// Returns whether an unread response may occupy much memory.
fn may_grow(headers: &HeaderMap) -> bool {
    let length = headers.get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse().ok());
    length.is_none_or(|length: u64| length > SMALL_RESPONSE)
}

impl GuardedBody {
    /// Wraps the body of a response that came through a tunnel.
    fn new(body: Body, guard: ResponseGuard, permit: ConcurrencyPermit) -> Self {
        let bytes = Some(guard.context.log.body_bytes(&guard.metrics));
        let guard = GuardSlot::Body(guard);
        Self { body, bytes, guard, _permit: Some(permit), budget: None, cut: None }
    }

    /// Wraps the body of a response of kas itself, which needs no guard.
    pub(super) fn untracked(body: Body) -> Self {
        Self { body, bytes: None, guard: GuardSlot::None, _permit: None, budget: None, cut: None }
    }

    /// Counts the response in the budget. When the budget cuts the response, the guard is released although the caller may
    /// never poll the body again.
    fn with_budget(mut self, budget: &Arc<ResponseBudget>, monitor: StreamMonitor) -> Self {
        if let GuardSlot::Body(guard) = std::mem::replace(&mut self.guard, GuardSlot::None) {
            let guard = Arc::new(Mutex::new(Some(guard)));
            let released = Arc::clone(&guard);
            self.budget = Some(budget.add(monitor, move || drop(released.lock().take())));
            self.guard = GuardSlot::Shared(guard);
        }
        self
    }

    /// Fails the body when `cut` completes.
    fn with_cut(mut self, cut: AccessEnded) -> Self {
        self.cut = Some(Box::pin(poll_on_wake(cut)));
        self
    }
}

impl http_body::Body for GuardedBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        if let Some(cut) = &mut self.cut
            && let Poll::Ready(error) = cut.as_mut().poll(cx)
        {
            return Poll::Ready(Some(Err(BodyError::Other(error.into()))));
        }
        let polled = Pin::new(&mut self.body).poll_frame(cx);
        if let (Poll::Ready(Some(Ok(frame))), Some(bytes)) = (&polled, &self.bytes)
            && let Some(data) = frame.data_ref()
        {
            bytes.add_response(data.len());
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
