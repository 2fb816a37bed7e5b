//! The body of a request: its bytes are counted, it must make progress, and the rest of it is drained.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Version, header::CONNECTION};
use http_body::{Body as _, Frame, SizeHint};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use parking_lot::Mutex;
use prometheus_client::metrics::counter::Counter;
use tokio::time::timeout;
use tunnel::{Body, BodyError};

use crate::{audit::ByteCounts, io::StallTimer, metrics::ServiceMetrics};

/// The most bytes that are drained from the body of a refused request.
const MAX_DRAIN_BYTES: u64 = 64 << 10;

/// The time that a drain may take. The response waits for it.
const DRAIN_TIMEOUT: Duration = Duration::from_millis(250);

/// The body of a request, which the context owns while neither kas nor the agent reads it. `None`: the request has no body.
#[derive(Debug)]
pub(super) struct RequestBody(Option<Arc<Mutex<BodyState>>>);

#[derive(Debug)]
enum BodyState {
    /// All of it was read.
    Finished,
    /// Its rest is not being read.
    Unread { body: Incoming, expects_continue: bool },
    /// It is being sent to the agent.
    Sending,
}

/// Fails when the caller has sent nothing for too long. Without the timeout, a caller that announces a body and never sends
/// it occupies a stream of the tunnel and a connection in the cluster.
///
/// If it is dropped before its end, the rest of the body returns to the [`RequestBody`].
struct IdleTimeoutBody {
    /// `None` once the body has ended or failed.
    body: Option<Incoming>,
    /// The caller waits for `100 Continue`, which hyper sends at the first poll.
    expects_continue: bool,
    state: Arc<Mutex<BodyState>>,
    metrics: Arc<ServiceMetrics>,
    audited: Option<Arc<ByteCounts>>,
    stalls: Counter,
    timer: StallTimer,
}

impl RequestBody {
    /// Takes the body over from the HTTP server. `expects_continue`: the request has an `Expect` header.
    pub(super) fn new(body: Incoming, expects_continue: bool) -> Self {
        if body.is_end_stream() {
            return Self(None);
        }
        Self(Some(Arc::new(Mutex::new(BodyState::Unread { body, expects_continue }))))
    }

    /// Takes the body, to be sent to the agent.
    ///
    /// The body fails after `timeout` without a byte, and counts that in `stalls`.
    pub(super) fn take(
        &self,
        metrics: &Arc<ServiceMetrics>,
        audited: Option<Arc<ByteCounts>>,
        timeout: Duration,
        stalls: &Counter,
    ) -> Body {
        let Some(state) = &self.0 else { return Body::empty() };
        let mut slot = state.lock();
        match std::mem::replace(&mut *slot, BodyState::Sending) {
            BodyState::Unread { body, expects_continue } => Body::new(IdleTimeoutBody {
                body: Some(body),
                expects_continue,
                state: Arc::clone(state),
                metrics: Arc::clone(metrics),
                audited,
                stalls: stalls.clone(),
                timer: StallTimer::new(timeout),
            }),
            other => {
                *slot = other;
                Body::empty()
            }
        }
    }

    /// Reads the rest of a small body, so that the connection can serve the next request. Returns whether the whole body was
    /// read.
    pub(super) async fn drain(&self) -> bool {
        let Some(state) = &self.0 else { return true };
        let body = {
            let mut slot = state.lock();
            match std::mem::replace(&mut *slot, BodyState::Sending) {
                BodyState::Unread { body, expects_continue: false } => body,
                other => {
                    let finished = matches!(other, BodyState::Finished);
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

    /// Drains the body before the head of the response is sent, or announces that the connection closes.
    ///
    /// A connection with an unread body, or with one that is still sent to the agent, may be closed after the response, and
    /// the response says so (RFC 9112 section 9.6). On HTTP/2 each stream ends by itself.
    pub(super) async fn finish(&self, version: Version, response: &mut HeaderMap) {
        // Boxed: most bodies are finished here, and their requests should not reserve memory for the drain.
        if version < Version::HTTP_2 && !self.is_finished() && !Box::pin(self.drain()).await {
            response.insert(CONNECTION, HeaderValue::from_static("close"));
        }
    }

    fn is_finished(&self) -> bool {
        self.0.as_ref().is_none_or(|state| matches!(*state.lock(), BodyState::Finished))
    }
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
            *self.state.lock() = if body.is_end_stream() {
                BodyState::Finished
            } else {
                BodyState::Unread { body, expects_continue: self.expects_continue }
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
            this.timer.disarm();
            match &frame {
                Some(Ok(_)) => {}
                Some(Err(_)) => this.body = None,
                None => {
                    this.body = None;
                    *this.state.lock() = BodyState::Finished;
                }
            }
            if let Some(data) = frame.as_ref().and_then(|frame| frame.as_ref().ok()?.data_ref()) {
                this.metrics.request_bytes.inc_by(data.len() as u64);
                if let Some(audited) = &this.audited {
                    audited.add_request(data.len());
                }
            }
            return Poll::Ready(frame.map(|frame| frame.map_err(|error| BodyError::Other(error.into()))));
        }

        this.timer.poll_expired(cx).map(|()| {
            this.stalls.inc();
            Some(Err(BodyError::Other("the caller has stopped sending the body".into())))
        })
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(Incoming::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.body.as_ref().map_or_else(|| SizeHint::with_exact(0), Incoming::size_hint)
    }
}
