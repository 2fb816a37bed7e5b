//! The body of a request: it must keep coming, its bytes are counted, and what is left of it is drained.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http_body::{Body as _, Frame, SizeHint};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use prometheus_client::metrics::counter::Counter;
use tokio::time::{Instant, Sleep, sleep, timeout};
use tunnel::{Body, BodyError};

use super::context::RequestContext;
use crate::metrics::{Limit, ServiceMetrics};

/// The most bytes that are drained of a body whose request was refused.
const MAX_DRAIN_BYTES: u64 = 64 << 10;

/// How long the drain may take. A response waits for it.
const DRAIN_TIMEOUT: Duration = Duration::from_millis(250);

/// How much of a request body was read.
#[derive(Debug)]
pub(super) enum RequestBody {
    /// There is none, or all of it was read.
    Finished,
    /// It is not being read.
    Unread { body: Incoming, expects_continue: bool },
    /// It is being sent to the agent.
    Sending,
}

/// Fails when the caller has sent nothing for too long. Without it, a caller that announces a body and never sends it
/// holds its place in the tunnel, and a connection in the cluster, for ever.
///
/// If it is dropped before its end, the rest goes back to the context.
struct IdleTimeoutBody {
    /// None once it has ended or failed.
    body: Option<Incoming>,
    /// The caller waits for `100 Continue`, which hyper sends at the first poll.
    expects_continue: bool,
    context: Arc<RequestContext>,
    metrics: Arc<ServiceMetrics>,
    stalls: Counter,
    limit: Duration,
    /// Runs while the body is awaited. Made by the first wait: most bodies come with their head.
    timer: Option<Pin<Box<Sleep>>>,
    armed: bool,
}

/// Takes the body out of the context, to be sent to the agent. An empty body costs nothing.
pub(super) fn take(context: &Arc<RequestContext>, metrics: &Arc<ServiceMetrics>) -> Body {
    let mut slot = context.body.lock();
    match std::mem::replace(&mut *slot, RequestBody::Sending) {
        RequestBody::Unread { body, expects_continue } => {
            let callers = &context.callers;
            Body::new(IdleTimeoutBody {
                body: Some(body),
                expects_continue,
                context: Arc::clone(context),
                metrics: Arc::clone(metrics),
                stalls: callers.forwarder.metrics.counter(Limit::WriteStall).clone(),
                limit: callers.limits.write_stall_timeout,
                timer: None,
                armed: false,
            })
        }
        other => {
            *slot = other;
            Body::empty()
        }
    }
}

/// Reads what is left of a small body, so that the connection can serve the next request. Returns whether all of it was
/// read.
pub(super) async fn drain(context: &RequestContext) -> bool {
    let body = {
        let mut slot = context.body.lock();
        match std::mem::replace(&mut *slot, RequestBody::Sending) {
            RequestBody::Unread { body, expects_continue: false } => body,
            other => {
                let finished = matches!(other, RequestBody::Finished);
                *slot = other;
                return finished;
            }
        }
    };
    if body.size_hint().lower() > MAX_DRAIN_BYTES {
        return false;
    }
    timeout(DRAIN_TIMEOUT, discard(body)).await.unwrap_or(false)
}

async fn discard(mut body: Incoming) -> bool {
    let mut left = MAX_DRAIN_BYTES;
    while let Some(frame) = body.frame().await {
        let Ok(frame) = frame else { return false };
        let length = frame.data_ref().map_or(0, |data| data.len() as u64);
        match left.checked_sub(length) {
            Some(less) => left = less,
            None => return false,
        }
    }
    true
}

impl Drop for IdleTimeoutBody {
    fn drop(&mut self) {
        if let Some(body) = self.body.take() {
            *self.context.body.lock() = if body.is_end_stream() {
                RequestBody::Finished
            } else {
                RequestBody::Unread { body, expects_continue: self.expects_continue }
            };
        }
    }
}

impl http_body::Body for IdleTimeoutBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let this = &mut *self;
        let Some(body) = &mut this.body else { return Poll::Ready(None) };
        this.expects_continue = false;
        if let Poll::Ready(frame) = Pin::new(body).poll_frame(cx) {
            this.armed = false;
            match &frame {
                Some(Ok(_)) => {}
                Some(Err(_)) => this.body = None,
                None => {
                    this.body = None;
                    *this.context.body.lock() = RequestBody::Finished;
                }
            }
            if let Some(data) = frame.as_ref().and_then(|frame| frame.as_ref().ok()?.data_ref()) {
                this.metrics.request_bytes.inc_by(data.len() as u64);
            }
            return Poll::Ready(frame.map(|frame| frame.map_err(|error| BodyError::Other(error.into()))));
        }

        let limit = this.limit;
        let timer = this.timer.get_or_insert_with(|| Box::pin(sleep(limit)));
        if !this.armed {
            this.armed = true;
            timer.as_mut().reset(Instant::now() + limit);
        }
        let late = timer.as_mut().poll(cx);
        late.map(|()| {
            this.stalls.inc();
            Some(Err(BodyError::Other("nothing more of it came in time".into())))
        })
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(Incoming::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.body.as_ref().map_or_else(|| SizeHint::with_exact(0), Incoming::size_hint)
    }
}
