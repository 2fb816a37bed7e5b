//! The body of a response, which reads from its connection when it is polled.

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

use super::{connection::PooledConnection, error::ResponseBodyError};

/// The time that a request may still be written after its response was read to the end.
///
/// 2 s: enough for the last bytes of a request that the server did not wait for. Without a limit, a server that has stopped
/// reading would hold the connection and the caller's body.
const UNFINISHED_REQUEST_TIMEOUT: Duration = Duration::from_secs(2);

/// The body of a response. Dropping it before its end closes the connection, which is how HTTP/1.1 cancels a
/// request.
#[derive(Default)]
pub struct ResponseBody(State);

#[derive(Default)]
enum State {
    #[default]
    CloseReason,
    /// The whole body arrived with the head.
    Full(Bytes),
    Streaming(Box<Streaming>),
}

struct Streaming {
    /// `None` once the body has ended or failed.
    connection: Option<PooledConnection>,
    reusable: bool,
    incoming: Incoming,
    /// Frames that were read to find the end of the body.
    read_ahead: VecDeque<Result<Frame<Bytes>, ResponseBodyError>>,
}

impl ResponseBody {
    /// Returns a body that contains the bytes which have arrived already. Never waits.
    pub(super) async fn new(pooled: PooledConnection, incoming: Incoming, reusable: bool) -> Self {
        if incoming.is_end_stream() {
            finish(pooled, reusable);
            return Self::default();
        }

        let mut body =
            Streaming { connection: Some(pooled), reusable, incoming, read_ahead: VecDeque::new() };
        let first = poll_fn(|cx| {
            let first = body.poll_next(cx);
            if let Poll::Ready(Some(Ok(_))) = &first {
                body.detect_end(cx);
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
    /// Reads the next frame from the connection, and returns the connection to its pool after the last frame.
    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, ResponseBodyError>>> {
        let Some(pooled) = &mut self.connection else { return Poll::Ready(None) };
        // The first poll makes hyper read the body.
        let mut polled = Pin::new(&mut self.incoming).poll_frame(cx);
        if polled.is_pending() {
            pooled.connection.poll(cx);
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
                self.connection = None;
                Poll::Ready(Some(Err(error.into())))
            }
            None => {
                self.finish();
                Poll::Ready(None)
            }
        }
    }

    /// Reads one more frame of a body without `Content-Length`: there is no other way to detect that the last frame was the
    /// end.
    fn detect_end(&mut self, cx: &mut Context<'_>) {
        if self.read_ahead.is_empty()
            && self.incoming.size_hint().exact().is_none()
            && let Poll::Ready(Some(next)) = self.poll_next(cx)
        {
            self.read_ahead.push_back(next);
        }
    }

    fn finish(&mut self) {
        if let Some(pooled) = self.connection.take() {
            finish(pooled, self.reusable);
        }
    }

    fn is_over(&self) -> bool {
        self.connection.is_none() && self.read_ahead.is_empty()
    }
}

/// Returns the connection of a response that was read to the end to its pool. If the request is still being written, a task
/// waits for its end first.
fn finish(mut pooled: PooledConnection, reusable: bool) {
    if !reusable {
        return;
    }
    if pooled.connection.is_idle() {
        return pooled.release();
    }
    if pooled.connection.is_closed() {
        return;
    }

    tokio::spawn(async move {
        let connection = &mut pooled.connection;
        let written = poll_fn(|cx| {
            connection.poll(cx);
            if connection.is_idle() || connection.is_closed() { Poll::Ready(()) } else { Poll::Pending }
        });
        if timeout(UNFINISHED_REQUEST_TIMEOUT, written).await.is_err() {
            tracing::debug!(
                "upstream connection closed: the server does not read the rest of an answered request"
            );
        } else if pooled.connection.is_idle() {
            pooled.release();
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
        body.detect_end(cx);
        if body.is_over() {
            self.0 = State::CloseReason;
        }

        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        matches!(self.0, State::CloseReason)
    }

    fn size_hint(&self) -> SizeHint {
        match &self.0 {
            State::CloseReason => SizeHint::with_exact(0),
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
            State::CloseReason => "ended",
            State::Full(_) => "full",
            State::Streaming(_) => "streaming",
        };
        f.debug_tuple("ResponseBody").field(&state).finish()
    }
}

impl From<ResponseBody> for Body {
    fn from(body: ResponseBody) -> Self {
        match body.0 {
            State::CloseReason => Self::empty(),
            State::Full(data) => data.into(),
            State::Streaming(body) => Self::new(ResponseBody(State::Streaming(body))),
        }
    }
}
