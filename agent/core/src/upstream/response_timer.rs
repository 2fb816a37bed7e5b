//! The time limit of the first byte of a response.

use std::{
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http::Request;
use http_body::{Body as _, Frame, SizeHint};
use tokio::time::{Instant, Sleep, sleep};
use tunnel::Body;

/// Expires `after` the last byte of the request, unless the server has responded.
///
/// The time does not start before the body of the request has ended: the caller may pause, and the write timeout applies to a
/// server that does not read.
pub(super) struct ResponseTimer {
    after: Duration,
    /// `None` if the request has no body.
    body_ended: Option<Arc<AtomicBool>>,
    written: u64,
    /// Created when the time starts.
    timer: Option<Pin<Box<Sleep>>>,
}

/// A body that sets a flag when it ends or is dropped.
struct EndFlagBody {
    body: Body,
    ended: Arc<AtomicBool>,
}

impl ResponseTimer {
    /// Returns a timer of the response to `request`, and the request to send.
    pub(super) fn new(after: Duration, request: Request<Body>) -> (Self, Request<Body>) {
        let timer = Self { after, body_ended: None, written: 0, timer: None };
        if request.body().is_end_stream() {
            return (timer, request);
        }

        let ended = Arc::new(AtomicBool::new(false));
        let request = request.map(|body| Body::new(EndFlagBody { body, ended: Arc::clone(&ended) }));
        (Self { body_ended: Some(ended), ..timer }, request)
    }

    pub(super) fn after(&self) -> Duration {
        self.after
    }

    /// Completes when the time is over. `written` is the number of bytes that the connection has written. It must be called
    /// whenever the connection was polled.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>, written: u64) -> Poll<()> {
        if self.body_ended.as_ref().is_some_and(|ended| !ended.load(Relaxed)) {
            return Poll::Pending;
        }
        let progress = written != self.written;
        self.written = written;
        let timer = match &mut self.timer {
            Some(timer) => {
                if progress {
                    timer.as_mut().reset(Instant::now() + self.after);
                }
                timer
            }
            timer @ None => timer.insert(Box::pin(sleep(self.after))),
        };
        timer.as_mut().poll(cx)
    }
}

impl http_body::Body for EndFlagBody {
    type Data = Bytes;
    type Error = <Body as http_body::Body>::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// hyper drops a body when it has read the end.
impl Drop for EndFlagBody {
    fn drop(&mut self) {
        self.ended.store(true, Relaxed);
    }
}
