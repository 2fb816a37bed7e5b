//! Ends watches before their sender does.

use std::{
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use cores::poll_on_wake;
use http::{
    HeaderMap, Response,
    header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE},
};
use http_body::{Frame, SizeHint};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use crate::{Body, BodyError};

/// The time in which agents open their next tunnels, so that watches that are sent again find one.
const DELAY: Duration = Duration::from_secs(2);

/// The time after that over which the ends of all watches are spread, so that their clients do not return all at once.
const SPREAD: Duration = Duration::from_secs(3);

/// Decides when the watches of a process that stops end. Clones share the token.
#[derive(Clone, Debug)]
pub struct WatchEnds {
    stopping: CancellationToken,
    grace: Duration,
}

/// A body that also ends when `end` completes.
struct EndingBody<F> {
    body: Body,
    end: F,
    state: StreamState,
}

/// The position in the messages of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StreamState {
    /// Each message ends with the end of a line, and the last one is complete.
    BetweenLines,
    /// A part of a line was sent.
    InLine,
    /// The ends of messages cannot be seen. A sender writes each one at once.
    Opaque,
    /// The body has an encoding with an end of its own, such as gzip.
    Encoded,
}

impl WatchEnds {
    /// `stopping` is cancelled when the process begins to stop. From then on, requests in flight have the time `grace`.
    pub fn new(stopping: CancellationToken, grace: Duration) -> Self {
        Self { stopping, grace }
    }

    /// Returns a future that completes when a watch has to end: 2 to 5 s after the process has begun to stop, at a random time, or
    /// sooner if the grace period is shorter. It does not borrow this value.
    pub fn next(&self) -> impl Future<Output = ()> + Send + use<> {
        let Self { stopping, grace } = self.clone();
        async move {
            stopping.cancelled_owned().await;
            let spread = SPREAD.min(grace / 2).mul_f64(rand::random());
            sleep(DELAY.min(grace / 4) + spread).await;
        }
    }
}

/// Returns the response with a body that also ends when `end` completes and no more data have arrived. The stream
/// of the body is reset then.
///
/// To its reader the body is complete. Lines of JSON and of server-sent events are not cut in two. A body that is compressed ends with an
/// error, because its reader expects more. A body with a length is returned as it is (RFC 9110 section 8.6).
#[must_use]
pub fn end_at(response: Response<Body>, end: impl Future<Output = ()> + Send + 'static) -> Response<Body> {
    if response.headers().contains_key(CONTENT_LENGTH) {
        return response;
    }
    let state = StreamState::new(response.headers());
    response.map(|body| {
        let monitor = body.monitor();
        let ending = EndingBody { body, end: poll_on_wake(end), state };
        match monitor {
            Some(monitor) => Body::with_monitor(ending, monitor),
            None => Body::new(ending),
        }
    })
}

impl StreamState {
    fn new(headers: &HeaderMap) -> Self {
        if headers.contains_key(CONTENT_ENCODING) {
            return Self::Encoded;
        }
        let content_type =
            headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
        let has_lines = ["application/json", "application/x-ndjson", "text/event-stream"];
        if has_lines.iter().any(|known| content_type.starts_with(known)) {
            return Self::BetweenLines;
        }
        Self::Opaque
    }

    fn after(self, data: &[u8]) -> Self {
        match (self, data.last()) {
            (Self::BetweenLines | Self::InLine, Some(b'\n')) => Self::BetweenLines,
            (Self::BetweenLines | Self::InLine, Some(_)) => Self::InLine,
            _ => self,
        }
    }
}

impl<F: Future<Output = ()> + Unpin> http_body::Body for EndingBody<F> {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let Self { body, end, state } = &mut *self;
        let polled = Pin::new(&mut *body).poll_frame(cx);
        if let Poll::Ready(Some(Ok(frame))) = &polled
            && let Some(data) = frame.data_ref()
        {
            *state = state.after(data);
        }
        if polled.is_ready() || *state == StreamState::InLine || Pin::new(end).poll(cx).is_pending() {
            return polled;
        }
        // Dropping the body resets its stream, so that the sender stops even if the reader keeps this one.
        *body = Body::empty();
        let broken = *state == StreamState::Encoded;
        Poll::Ready(broken.then(|| Err(BodyError::Reset)))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
