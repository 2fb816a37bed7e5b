//! The body of a response, read from its connection by whichever future polls it.

use std::{
    collections::VecDeque,
    fmt,
    future::poll_fn,
    mem,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::Bytes;
use http_body::{Body as _, Frame, SizeHint};
use hyper::body::Incoming;
use tokio::time::timeout;
use tunnel::Body;

use super::{error::ResponseBodyError, pool::Lease};

/// How long a request may still be written after its response was read to the end.
///
/// 2 s: long enough for the last bytes of a request that the server did not wait for; a server that has stopped reading
/// would otherwise hold the connection and the caller's body.
const UNFINISHED_REQUEST_TIMEOUT: Duration = Duration::from_secs(2);

/// The body of a response. Dropping it before its end closes the connection, which is how HTTP/1.1 cancels.
#[derive(Default)]
pub struct ResponseBody(State);

#[derive(Default)]
enum State {
    #[default]
    Ended,
    /// The whole body arrived with the head.
    Full(Bytes),
    Streaming(Box<Streaming>),
}

struct Streaming {
    /// `None` once the body has ended or failed.
    lease: Option<Lease>,
    reusable: bool,
    incoming: Incoming,
    /// Frames that were read to find the end of the body.
    read_ahead: VecDeque<Result<Frame<Bytes>, ResponseBodyError>>,
}

impl ResponseBody {
    /// Takes what has arrived of the body already. Never waits.
    pub(super) async fn new(lease: Lease, incoming: Incoming, reusable: bool) -> Self {
        if incoming.is_end_stream() {
            finish(lease, reusable);
            return Self::default();
        }

        let mut body = Streaming { lease: Some(lease), reusable, incoming, read_ahead: VecDeque::new() };
        let first = poll_fn(|cx| {
            let first = body.poll_next(cx);
            if let Poll::Ready(Some(Ok(_))) = &first {
                body.look_for_end(cx);
            }
            Poll::Ready(first)
        });
        match first.await {
            Poll::Pending => {}
            Poll::Ready(None) => return Self::default(),
            Poll::Ready(Some(Ok(frame))) if frame.is_data() && body.is_over() => {
                return Self(State::Full(frame.into_data().unwrap_or_default()));
            }
            Poll::Ready(Some(first)) => body.read_ahead.push_front(first),
        }
        Self(State::Streaming(Box::new(body)))
    }
}

impl Streaming {
    /// Reads the next frame from the connection, and gives the connection back after the last.
    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, ResponseBodyError>>> {
        let Some(lease) = &mut self.lease else { return Poll::Ready(None) };
        // The first poll tells hyper to read the body.
        let mut polled = Pin::new(&mut self.incoming).poll_frame(cx);
        if polled.is_pending() {
            lease.connection.poll(cx);
            polled = Pin::new(&mut self.incoming).poll_frame(cx);
        }
        match ready!(polled) {
            Some(Ok(frame)) => {
                if self.incoming.is_end_stream() {
                    self.finish();
                }
                Poll::Ready(Some(Ok(frame)))
            }
            Some(Err(error)) => {
                self.lease = None;
                Poll::Ready(Some(Err(error.into())))
            }
            None => {
                self.finish();
                Poll::Ready(None)
            }
        }
    }

    /// Reads one more frame of a body without `Content-Length`, since only that shows whether the last frame was the
    /// end.
    fn look_for_end(&mut self, cx: &mut Context<'_>) {
        if self.read_ahead.is_empty()
            && self.incoming.size_hint().exact().is_none()
            && let Poll::Ready(Some(next)) = self.poll_next(cx)
        {
            self.read_ahead.push_back(next);
        }
    }

    fn finish(&mut self) {
        if let Some(lease) = self.lease.take() {
            finish(lease, self.reusable);
        }
    }

    fn is_over(&self) -> bool {
        self.lease.is_none() && self.read_ahead.is_empty()
    }
}

/// Gives a connection back whose response was read to the end. If the request is still being written, a task waits for
/// its end first.
fn finish(mut lease: Lease, reusable: bool) {
    if !reusable {
        return;
    }
    if lease.connection.is_idle() {
        return lease.give_back();
    }
    if lease.connection.is_closed() {
        return;
    }

    tokio::spawn(async move {
        let connection = &mut lease.connection;
        let written = poll_fn(|cx| {
            connection.poll(cx);
            if connection.is_idle() || connection.is_closed() { Poll::Ready(()) } else { Poll::Pending }
        });
        if timeout(UNFINISHED_REQUEST_TIMEOUT, written).await.is_err() {
            tracing::debug!("closing an upstream connection: the server does not read the answered request");
        } else if lease.connection.is_idle() {
            lease.give_back();
        }
    });
}

impl http_body::Body for ResponseBody {
    type Data = Bytes;
    type Error = ResponseBodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, ResponseBodyError>>> {
        let State::Streaming(body) = &mut self.0 else {
            return Poll::Ready(match mem::take(&mut self.0) {
                State::Full(data) => Some(Ok(Frame::data(data))),
                _ => None,
            });
        };
        let frame = match body.read_ahead.pop_front() {
            Some(frame) => Some(frame),
            None => ready!(body.poll_next(cx)),
        };
        body.look_for_end(cx);
        if body.is_over() {
            self.0 = State::Ended;
        }

        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        matches!(self.0, State::Ended)
    }

    fn size_hint(&self) -> SizeHint {
        match &self.0 {
            State::Ended => SizeHint::with_exact(0),
            State::Full(data) => SizeHint::with_exact(data.len() as u64),
            State::Streaming(body) => {
                let read_ahead = body.read_ahead.iter().flatten().filter_map(Frame::data_ref);
                let read_ahead: u64 = read_ahead.map(|data| data.len() as u64).sum();
                match body.incoming.size_hint().exact() {
                    Some(remaining) => SizeHint::with_exact(remaining + read_ahead),
                    None => SizeHint::default(),
                }
            }
        }
    }
}

impl fmt::Debug for ResponseBody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match self.0 {
            State::Ended => "ended",
            State::Full(_) => "full",
            State::Streaming(_) => "streaming",
        };
        f.debug_tuple("ResponseBody").field(&state).finish()
    }
}

impl From<ResponseBody> for Body {
    fn from(body: ResponseBody) -> Self {
        match body.0 {
            State::Ended => Self::empty(),
            State::Full(data) => data.into(),
            State::Streaming(body) => Self::new(ResponseBody(State::Streaming(body))),
        }
    }
}
