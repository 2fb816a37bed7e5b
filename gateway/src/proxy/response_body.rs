//! The body of a response: it holds what the response occupies, and counts its bytes.

use std::{
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering::Relaxed},
    },
    task::{Context, Poll},
};

use bytes::Bytes;
use http_body::{Frame, SizeHint};
use parking_lot::Mutex;
use router::Lease;
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};
use tunnel::{Body, BodyError, StreamMonitor};

use super::{
    budget::{Budget, BudgetShare},
    context::RequestContext,
};
use crate::{connected::Connected, metrics::ServiceMetrics};

/// A response body that keeps a [`ResponseGuard`] until the caller has the last byte or has left.
#[derive(Debug)]
pub(super) struct TrackedBody {
    body: Body,
    metrics: Option<Arc<ServiceMetrics>>,
    guard: HeldGuard,
    /// Stays although the budget cuts the response: its unread bytes stay until the connection ends.
    _permit: Option<ConcurrencyPermit>,
    share: Option<BudgetShare>,
    revoked: Option<Pin<Box<WaitForCancellationFutureOwned>>>,
}

/// The owner of the guard of a response.
#[derive(Debug)]
enum HeldGuard {
    None,
    Body(ResponseGuard),
    /// The budget takes the guard when it cuts the response: a body that is not read is not dropped either.
    Shared(#[expect(dead_code, reason = "it is dropped")] Arc<Mutex<Option<ResponseGuard>>>),
}

/// What a response occupies until it has ended: a place in its tunnel, its connection and its span.
#[derive(Debug)]
pub(super) struct ResponseGuard {
    /// Metrics of the service that answered.
    pub(super) metrics: Arc<ServiceMetrics>,
    context: Arc<RequestContext>,
    /// The place in the tunnel, if it ends at this replica.
    _lease: Option<Lease<Connected>>,
}

/// One of the requests that a caller may have in flight.
#[derive(Debug)]
pub(super) struct ConcurrencyPermit(Arc<AtomicU32>);

impl ResponseGuard {
    pub(super) fn new(
        context: Arc<RequestContext>,
        metrics: Arc<ServiceMetrics>,
        lease: Option<Lease<Connected>>,
    ) -> Self {
        metrics.in_flight.inc();
        Self { metrics, context, _lease: lease }
    }
}

impl Drop for ResponseGuard {
    fn drop(&mut self) {
        self.metrics.in_flight.dec();
        self.metrics.ended(self.context.started.elapsed());
    }
}

impl ConcurrencyPermit {
    /// Takes a permit, or returns `None` if the caller has `limit` requests in flight.
    pub(super) fn try_new(in_flight: &Arc<AtomicU32>, limit: u32) -> Option<Self> {
        let permit = Self(Arc::clone(in_flight));
        (in_flight.fetch_add(1, Relaxed) < limit).then_some(permit)
    }
}

impl Drop for ConcurrencyPermit {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

impl TrackedBody {
    /// The body of a response that came through a tunnel.
    pub(super) fn new(body: Body, guard: ResponseGuard, permit: ConcurrencyPermit) -> Self {
        let metrics = Some(Arc::clone(&guard.metrics));
        Self {
            body,
            metrics,
            guard: HeldGuard::Body(guard),
            _permit: Some(permit),
            share: None,
            revoked: None,
        }
    }

    /// The body of a response of kas itself, which occupies nothing.
    pub(super) fn untracked(body: Body) -> Self {
        Self { body, metrics: None, guard: HeldGuard::None, _permit: None, share: None, revoked: None }
    }

    /// Counts the response in the budget, which may cut it and release its guard, even if the caller never notices.
    pub(super) fn with_budget(mut self, budget: &Arc<Budget>, monitor: StreamMonitor) -> Self {
        if let HeldGuard::Body(guard) = std::mem::replace(&mut self.guard, HeldGuard::None) {
            let guard = Arc::new(Mutex::new(Some(guard)));
            let released = Arc::clone(&guard);
            self.share = Some(budget.share(monitor, move || drop(released.lock().take())));
            self.guard = HeldGuard::Shared(guard);
        }
        self
    }

    /// Fails the body when the caller's right to the response ends.
    pub(super) fn with_revocation(mut self, revoked: CancellationToken) -> Self {
        self.revoked = Some(Box::pin(revoked.cancelled_owned()));
        self
    }
}

impl http_body::Body for TrackedBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        if let Some(revoked) = &mut self.revoked
            && revoked.as_mut().poll(cx).is_ready()
        {
            let cause = "the caller's token was revoked";
            return Poll::Ready(Some(Err(BodyError::Other(cause.into()))));
        }
        let polled = Pin::new(&mut self.body).poll_frame(cx);
        if let (Poll::Ready(Some(Ok(frame))), Some(metrics)) = (&polled, &self.metrics)
            && let Some(data) = frame.data_ref()
        {
            metrics.response_bytes.inc_by(data.len() as u64);
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
