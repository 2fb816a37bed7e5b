//! An answer's body that knows when it has ended.

use std::{
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering::Relaxed},
    },
    task::{Context, Poll},
};

use bytes::Bytes;
use http::StatusCode;
use http_body::{Frame, SizeHint};
use parking_lot::Mutex;
use router::Lease;
use tokio::time::Instant;
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};
use tunnel::{Body, BodyError, Grip};

use super::{
    budget::{Budget, Share},
    idle::Busy,
};
use crate::{connected::Connected, metrics::ServiceMetrics, timing::Stages, traces::RequestTrace};

/// Holds the tunnel's place and counts, until the caller has the last byte or has left.
#[derive(Debug)]
pub struct Tracked {
    body: Body,
    metrics: Option<Arc<ServiceMetrics>>,
    /// Taken by whoever cuts the answer: a body that is not read is not dropped either.
    tracking: Arc<Mutex<Option<Tracking>>>,
    /// Not taken: what the caller has not read of a cut answer stays until its connection ends.
    _turn: Option<Turn>,
    share: Option<Share>,
    revoked: Option<Pin<Box<WaitForCancellationFutureOwned>>>,
}

/// What an answer occupies, and counts until it has ended.
#[derive(Debug)]
pub struct Tracking {
    /// That of the service.
    pub metrics: Arc<ServiceMetrics>,
    started: Instant,
    trace: RequestTrace,
    _places: Places,
}

/// An answer's places among the others.
#[derive(Debug)]
pub struct Places {
    /// Among those of its tunnel, if that ends here.
    pub lease: Option<Lease<Connected>>,
    /// Of its connection.
    pub busy: Busy,
}

impl Tracking {
    /// Of the answer to a request that came at `started`.
    pub fn new(places: Places, metrics: Arc<ServiceMetrics>, started: Instant) -> Self {
        metrics.in_flight.inc();
        Self { metrics, started, trace: RequestTrace::default(), _places: places }
    }

    /// Takes the request's span along, to its end.
    pub fn traced(mut self, trace: &mut RequestTrace, status: StatusCode, stages: &Stages) -> Self {
        self.trace = std::mem::take(trace);
        self.trace.answered(status, stages);
        self
    }
}

impl Tracked {
    /// The body of an answer that came through a tunnel.
    pub fn new(body: Body, tracking: Tracking, turn: Turn) -> Self {
        let metrics = Some(Arc::clone(&tracking.metrics));
        let tracking = Arc::new(Mutex::new(Some(tracking)));
        Self { body, metrics, tracking, _turn: Some(turn), share: None, revoked: None }
    }

    /// The body of an answer of our own.
    pub fn untracked(body: Body) -> Self {
        let tracking = Arc::default();
        Self { body, metrics: None, tracking, _turn: None, share: None, revoked: None }
    }

    /// Ends when the budget says so, and leaves the tunnel then, even if its caller never notices.
    pub fn within(mut self, budget: &Arc<Budget>, grip: Grip) -> Self {
        let tracking = Arc::clone(&self.tracking);
        self.share = Some(budget.share(grip, move || drop(tracking.lock().take())));
        self
    }

    /// Aborts the answer when the caller's right to it ends.
    pub fn until(mut self, revoked: CancellationToken) -> Self {
        self.revoked = Some(Box::pin(revoked.cancelled_owned()));
        self
    }
}

/// One of the requests that a caller may have in flight, until this is dropped.
#[derive(Debug)]
pub struct Turn(Arc<AtomicU32>);

impl Turn {
    /// `None` if the caller has `limit` already.
    pub fn take(in_flight: &Arc<AtomicU32>, limit: u32) -> Option<Self> {
        let turn = Self(Arc::clone(in_flight));
        (in_flight.fetch_add(1, Relaxed) < limit).then_some(turn)
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

impl Drop for Tracking {
    fn drop(&mut self) {
        self.metrics.in_flight.dec();
        self.metrics.ended(self.started.elapsed());
    }
}

impl http_body::Body for Tracked {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        if let Some(revoked) = &mut self.revoked
            && revoked.as_mut().poll(cx).is_ready()
        {
            let what = "the caller's token was revoked";
            return Poll::Ready(Some(Err(BodyError::Other(what.into()))));
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
