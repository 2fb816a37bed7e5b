//! The body of a response: it holds the guards of the response, and counts its bytes.

use std::{
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering::Relaxed},
    },
    task::{Context, Poll},
    time::Duration,
};

use access::{Grant, RequestError};
use bytes::Bytes;
use cores::poll_on_wake;
use http_body::{Frame, SizeHint};
use parking_lot::Mutex;
use proto::Reason;
use router::RequestPermit;
use tunnel::{Body, BodyError, StreamMonitor};

use super::{
    budget::{BudgetGuard, ResponseBudget},
    request::RequestContext,
    request_access::AccessEnded,
    request_log::BodyBytes,
    server::ProxyServer,
};
use telemetry::GaugeGuard;

use crate::{
    metrics::{Limit, ServiceMetrics},
    tunnel_entry::TunnelEntry,
};

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

/// The resources of a request until its response has ended: a stream of its tunnel, its connection and its span.
#[derive(Debug)]
pub(super) struct ResponseGuard {
    /// Metrics of the service.
    pub(super) metrics: Arc<ServiceMetrics>,
    context: Arc<RequestContext>,
    /// The stream in the tunnel, if the tunnel ends at this replica.
    _request_permit: Option<RequestPermit<TunnelEntry>>,
    _in_flight: GaugeGuard,
}

/// One of the requests that a caller may have in flight.
#[derive(Debug)]
pub struct ConcurrencyPermit(Arc<AtomicU32>);

impl ResponseGuard {
    pub(super) fn new(
        context: Arc<RequestContext>,
        metrics: Arc<ServiceMetrics>,
        request_permit: Option<RequestPermit<TunnelEntry>>,
    ) -> Self {
        let in_flight = GaugeGuard::new(&metrics.in_flight);
        Self { metrics, context, _request_permit: request_permit, _in_flight: in_flight }
    }
}

impl Drop for ResponseGuard {
    fn drop(&mut self) {
        self.metrics.observe_end(self.context.log.started.elapsed());
    }
}

impl ConcurrencyPermit {
    /// Takes a permit of the caller.
    ///
    /// # Errors
    ///
    /// Returns `too-many-requests` if `max_requests_per_caller` requests of the caller are in flight.
    pub(super) fn acquire(server: &ProxyServer, grant: &Grant) -> Result<Self, RequestError> {
        let permit = Self(Arc::clone(&grant.in_flight));
        if grant.in_flight.fetch_add(1, Relaxed) < server.config.limits.max_requests_per_caller {
            return Ok(permit);
        }
        server.observers.metrics.count_limit(Limit::RequestsPerCaller);
        let cause = format!(
            "caller {} has as many requests in flight as allowed (agent.kubernetes_api.limits.max_requests_per_caller)",
            grant.caller.name()
        );
        Err(RequestError::new(Reason::TooManyRequests, cause).with_retry_after(Duration::from_secs(1)))
    }
}

impl Drop for ConcurrencyPermit {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

impl GuardedBody {
    /// Wraps the body of a response that came through a tunnel.
    pub(super) fn new(body: Body, guard: ResponseGuard, permit: ConcurrencyPermit) -> Self {
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
    pub(super) fn with_budget(mut self, budget: &Arc<ResponseBudget>, monitor: StreamMonitor) -> Self {
        if let GuardSlot::Body(guard) = std::mem::replace(&mut self.guard, GuardSlot::None) {
            let guard = Arc::new(Mutex::new(Some(guard)));
            let released = Arc::clone(&guard);
            self.budget = Some(budget.add(monitor, move || drop(released.lock().take())));
            self.guard = GuardSlot::Shared(guard);
        }
        self
    }

    /// Fails the body when `cut` completes.
    pub(super) fn with_cut(mut self, cut: AccessEnded) -> Self {
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
