//! The body of a request: its bytes are counted, it must make progress and have an average rate, and the rest of it is drained.

use std::{
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    task::{Context, Poll, ready},
    time::Duration,
};

use access::RequestError;
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Version, header::CONNECTION};
use http_body::{Body as _, Frame, SizeHint};
use http_body_util::BodyExt as _;
use kas_listen::metrics::Limit;
use parking_lot::Mutex;
use proto::Reason;
use tokio::time::{Instant, timeout};
use tunnel::{Body, StallTimer};

use super::{CallerBody, request_log::BodyBytes, server::ProxyServer};
use crate::config::CallerLimits;

/// The most bytes that are drained from the body of a refused request.
const MAX_DRAIN_BYTES: u64 = 64 << 10;

/// The time that a drain may take. The response waits for it.
const DRAIN_TIMEOUT: Duration = Duration::from_millis(250);

/// The time that kas waits for a caller before `min_body_rate` applies.
const RATE_GRACE: Duration = Duration::from_secs(30);

/// The body of a request, which the context owns while neither kas nor the agent reads it. `None`: the request has no body.
#[derive(Debug)]
pub(super) struct RequestBody(Option<Arc<SharedBody>>);

#[derive(Debug)]
struct SharedBody {
    state: Mutex<BodyState>,
    /// The response has begun. Both directions are streams from then on, and the body may be as slow as the response.
    answered: AtomicBool,
}

#[derive(Debug)]
enum BodyState {
    /// All of it was read.
    Finished,
    /// Its rest is not being read.
    Unread { body: CallerBody, expects_continue: bool },
    /// It is being sent to the agent.
    Sending,
}

/// Fails when the caller has sent nothing for too long, or sends too slowly. Without these limits, a caller that announces a
/// body and never completes it occupies a stream of the tunnel and a connection in the cluster.
///
/// If it is dropped before its end, the rest of the body returns to the [`RequestBody`].
struct IdleTimeoutBody {
    /// `None` once the body has ended or failed.
    body: Option<CallerBody>,
    /// The caller waits for `100 Continue`, which hyper sends at the first poll.
    expects_continue: bool,
    shared: Arc<SharedBody>,
    server: Arc<ProxyServer>,
    bytes: BodyBytes,
    progress: BodyProgress,
    /// The beginning of the current wait for the caller, and the limit that is exceeded at its end.
    waiting: Option<(Instant, Limit)>,
    timer: StallTimer,
}

/// The speed of a body so far.
#[derive(Clone, Copy, Debug, Default)]
struct BodyProgress {
    received: u64,
    /// The time that kas has waited for the caller. The time in which the agent does not read is not that of the caller.
    waited: Duration,
}

impl BodyProgress {
    /// Returns the time that kas waits for the next bytes, and the limit that is exceeded then.
    fn next_wait(&self, limits: &CallerLimits, answered: bool) -> (Duration, Limit) {
        let stall = (limits.write_stall_timeout, Limit::WriteStall);
        let Some(seconds) = self.received.checked_div(limits.min_body_rate.into()) else {
            return stall;
        };
        let left = (RATE_GRACE + Duration::from_secs(seconds)).saturating_sub(self.waited);
        if answered || stall.0 <= left { stall } else { (left, Limit::BodyRate) }
    }
}

impl RequestBody {
    /// Takes the body over from the HTTP server. `expects_continue`: the request has an `Expect` header.
    pub(super) fn new(body: Option<CallerBody>, expects_continue: bool) -> Self {
        let Some(body) = body.filter(|body| !body.is_end_stream()) else { return Self(None) };
        let state = Mutex::new(BodyState::Unread { body, expects_continue });
        Self(Some(Arc::new(SharedBody { state, answered: AtomicBool::new(false) })))
    }

    /// Takes the body, to be sent to the agent.
    ///
    /// The body fails with a [`RequestError`] if the caller is slower than the limits of `server` allow.
    pub(super) fn take(&self, server: &Arc<ProxyServer>, bytes: impl FnOnce() -> BodyBytes) -> Body {
        let Some(shared) = &self.0 else { return Body::empty() };
        let mut slot = shared.state.lock();
        match std::mem::replace(&mut *slot, BodyState::Sending) {
            BodyState::Unread { body, expects_continue } => Body::new(IdleTimeoutBody {
                body: Some(body),
                expects_continue,
                shared: Arc::clone(shared),
                server: Arc::clone(server),
                bytes: bytes(),
                progress: BodyProgress::default(),
                waiting: None,
                timer: StallTimer::new(server.config.limits.write_stall_timeout),
            }),
            other => {
                *slot = other;
                Body::empty()
            }
        }
    }

    /// Records that the response has begun.
    pub(super) fn set_answered(&self) {
        if let Some(shared) = &self.0 {
            shared.answered.store(true, Relaxed);
        }
    }

    /// Reads the rest of a small body, so that the connection can serve the next request. Returns whether the whole body was
    /// read.
    async fn drain(&self) -> bool {
        let Some(shared) = &self.0 else { return true };
        let body = {
            let mut slot = shared.state.lock();
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
        self.0.as_ref().is_none_or(|shared| matches!(*shared.state.lock(), BodyState::Finished))
    }
}

async fn discard(mut body: CallerBody) -> bool {
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
            *self.shared.state.lock() = if body.is_end_stream() {
                BodyState::Finished
            } else {
                BodyState::Unread { body, expects_continue: self.expects_continue }
            };
        }
    }
}

impl IdleTimeoutBody {
    /// Records a frame of the body, or its end.
    fn record(&mut self, frame: Option<&Result<Frame<Bytes>, hyper::Error>>) {
        self.timer.disarm();
        if let Some((since, _)) = self.waiting.take() {
            self.progress.waited += since.elapsed();
        }
        match frame {
            Some(Ok(frame)) => {
                let length = frame.data_ref().map_or(0, Bytes::len);
                self.progress.received += length as u64;
                self.bytes.add_request(length);
            }
            Some(Err(_)) => self.body = None,
            None => {
                self.body = None;
                *self.shared.state.lock() = BodyState::Finished;
            }
        }
    }

    /// Completes with an error when the caller has been too slow.
    fn poll_too_slow(&mut self, cx: &mut Context<'_>) -> Poll<RequestError> {
        loop {
            let answered = self.shared.answered.load(Relaxed);
            let (_, limit) = match self.waiting {
                // The rate no longer matters: the response has begun during the wait.
                Some((since, Limit::BodyRate)) if answered => {
                    self.timer.disarm();
                    self.progress.waited += since.elapsed();
                    self.waiting = None;
                    continue;
                }
                Some(waiting) => waiting,
                None => {
                    let (wait, limit) = self.progress.next_wait(&self.server.config.limits, answered);
                    self.timer.set_limit(wait);
                    *self.waiting.insert((Instant::now(), limit))
                }
            };
            ready!(self.timer.poll_expired(cx));
            self.server.observers.metrics.count_limit(limit);
            let what = match limit {
                Limit::BodyRate => {
                    "the caller sends the body too slowly (agent.kubernetes_api.limits.min_body_rate)"
                }
                _ => {
                    "the caller has stopped sending the body (agent.kubernetes_api.limits.write_stall_timeout)"
                }
            };
            return Poll::Ready(RequestError::new(Reason::BodyTimeout, what));
        }
    }
}

impl http_body::Body for IdleTimeoutBody {
    type Data = Bytes;
    type Error = Box<dyn std::error::Error + Send + Sync>;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let this = &mut *self;
        let Some(body) = &mut this.body else { return Poll::Ready(None) };
        this.expects_continue = false;
        if let Poll::Ready(frame) = Pin::new(body).poll_frame(cx) {
            this.record(frame.as_ref());
            return Poll::Ready(frame.map(|frame| frame.map_err(Into::into)));
        }
        this.poll_too_slow(cx).map(|error| Some(Err(error.into())))
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(CallerBody::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.body.as_ref().map_or_else(|| SizeHint::with_exact(0), CallerBody::size_hint)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rate_applies_after_the_grace_and_before_the_response() {
        let seconds = Duration::from_secs;
        let limits = |min_body_rate| CallerLimits { min_body_rate, ..CallerLimits::default() };
        let stall = (limits(0).write_stall_timeout, Limit::WriteStall);
        for (rate, received, waited, answered, expected) in [
            (256, 0, 0, false, (seconds(30), Limit::BodyRate)),
            (256, 0, 29, false, (seconds(1), Limit::BodyRate)),
            (256, 2560, 35, false, (seconds(5), Limit::BodyRate)),
            (256, 2560, 45, false, (seconds(0), Limit::BodyRate)),
            (256, 256 * 300, 0, false, stall),
            (256, 0, 45, true, stall),
            (0, 0, 45, false, stall),
        ] {
            let progress = BodyProgress { received, waited: seconds(waited) };
            let wait = progress.next_wait(&limits(rate), answered);
            assert_eq!(wait, expected, "{rate}, {progress:?}, answered {answered}");
        }
    }
}
