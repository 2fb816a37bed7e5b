//! The body of a request or response on its way through: one type, so that every hop hands frames on as they are.

use std::{
    fmt, mem,
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use h2::RecvStream;
use http_body::{Frame, SizeHint};
use http_body_util::{BodyExt as _, combinators::UnsyncBoxBody};
use proto::trailers;

use crate::{StreamMonitor, monitor::ReceiveStream, send_body::SendBody};

/// A streaming body of [`Bytes`]. Its trailers are those that may travel (see [`trailers::strip`]).
#[derive(Default)]
pub struct Body(Kind);

#[derive(Default)]
enum Kind {
    #[default]
    Empty,
    Full(Bytes),
    Tunnel(Box<TunnelBody>),
    Other(UnsyncBoxBody<Bytes, BodyError>),
}

/// A body that arrives on a stream of a tunnel.
struct TunnelBody {
    stream: ReceiveStream,
    /// Arrived together with the head.
    first: Option<Bytes>,
    state: ReadState,
}

enum ReadState {
    Data,
    Trailers,
    /// It has failed, and the reader got a turn to write what came before.
    Failing(BodyError),
}

/// Why a body ended before its end.
#[derive(Debug, thiserror::Error)]
pub enum BodyError {
    /// The stream was reset by the other end, or the tunnel was lost.
    #[error("the tunnel ended in the middle of a body: {0}")]
    Tunnel(#[from] h2::Error),
    /// [`StreamMonitor::cut`] reset the stream.
    #[error("the body was cut")]
    Cut,
    /// Of a body made by [`Body::new`].
    #[error("{0}")]
    Other(Box<dyn std::error::Error + Send + Sync>),
}

impl Body {
    /// No body.
    pub const fn empty() -> Self {
        Self(Kind::Empty)
    }

    /// Any other body; boxed.
    pub fn new<B>(body: B) -> Self
    where
        B: http_body::Body<Data = Bytes> + Send + 'static,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        Self(Kind::Other(body.map_err(|error| BodyError::Other(error.into())).boxed_unsync()))
    }

    /// Makes the body of a message whose head has just arrived. A body that is already here whole becomes plain bytes.
    ///
    /// `sending` is the body that is still being sent on the same stream.
    pub(crate) fn received(mut stream: RecvStream, sending: Option<SendBody>, cx: &mut Context<'_>) -> Self {
        if sending.is_some() {
            return Self::tunnel(ReceiveStream::new(stream, sending), None, ReadState::Data);
        }
        if stream.is_end_stream() {
            return Self::empty();
        }
        match stream.poll_data(cx) {
            Poll::Ready(Some(Ok(data))) => {
                if stream.is_end_stream() {
                    // Fails only if the connection has ended, and nobody needs its window then.
                    let _ = stream.flow_control().release_capacity(data.len());
                    return data.into();
                }
                Self::tunnel(ReceiveStream::new(stream, None), Some(data), ReadState::Data)
            }
            Poll::Ready(Some(Err(error))) => {
                Self::tunnel(ReceiveStream::new(stream, None), None, ReadState::Failing(error.into()))
            }
            Poll::Ready(None) => Self::tunnel(ReceiveStream::new(stream, None), None, ReadState::Trailers),
            Poll::Pending => Self::tunnel(ReceiveStream::new(stream, None), None, ReadState::Data),
        }
    }

    /// Makes the body of a message from its stream.
    pub(crate) fn from_stream(stream: RecvStream) -> Self {
        if stream.is_end_stream() {
            return Self::empty();
        }
        Self::tunnel(ReceiveStream::new(stream, None), None, ReadState::Data)
    }

    fn tunnel(stream: ReceiveStream, first: Option<Bytes>, state: ReadState) -> Self {
        Self(Kind::Tunnel(Box::new(TunnelBody { stream, first, state })))
    }

    /// Returns the whole body if it is here and has no trailers.
    pub(crate) fn into_full(self) -> Result<Bytes, Self> {
        match self.0 {
            Kind::Empty => Ok(Bytes::new()),
            Kind::Full(bytes) => Ok(bytes),
            _ => Err(self),
        }
    }

    /// Returns a monitor of the stream; `None` for a body that does not arrive through a tunnel, or that is here whole.
    pub fn monitor(&self) -> Option<StreamMonitor> {
        match &self.0 {
            Kind::Tunnel(body) => Some(body.stream.monitor()),
            _ => None,
        }
    }
}

impl From<Bytes> for Body {
    fn from(bytes: Bytes) -> Self {
        if bytes.is_empty() { Self::empty() } else { Self(Kind::Full(bytes)) }
    }
}

impl From<String> for Body {
    fn from(text: String) -> Self {
        Bytes::from(text).into()
    }
}

impl From<&'static str> for Body {
    fn from(text: &'static str) -> Self {
        Bytes::from_static(text.as_bytes()).into()
    }
}

impl fmt::Debug for Body {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.0 {
            Kind::Empty => "empty",
            Kind::Full(_) => "full",
            Kind::Tunnel(_) => "tunnel",
            Kind::Other(_) => "other",
        };
        f.debug_tuple("Body").field(&kind).finish()
    }
}

impl http_body::Body for Body {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let polled = match &mut self.0 {
            Kind::Empty => Poll::Ready(None),
            Kind::Full(bytes) => {
                let bytes = mem::take(bytes);
                self.0 = Kind::Empty;
                Poll::Ready(Some(Ok(Frame::data(bytes))))
            }
            Kind::Tunnel(body) => body.poll_frame(cx),
            Kind::Other(body) => Pin::new(body).poll_frame(cx),
        };

        // Every body passes here at both ends, so no handler can forget to strip them.
        polled.map_ok(|mut frame| {
            if let Some(trailers) = frame.trailers_mut() {
                trailers::strip(trailers);
            }
            frame
        })
    }

    fn is_end_stream(&self) -> bool {
        match &self.0 {
            Kind::Empty => true,
            Kind::Full(_) => false,
            Kind::Tunnel(body) => body.first.is_none() && body.stream.is_end_stream(),
            Kind::Other(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.0 {
            Kind::Empty => SizeHint::with_exact(0),
            Kind::Full(bytes) => SizeHint::with_exact(bytes.len() as u64),
            Kind::Tunnel(_) => SizeHint::default(),
            Kind::Other(body) => body.size_hint(),
        }
    }
}

impl TunnelBody {
    fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        self.stream.poll_sending(cx);
        if let Some(data) = self.first.take() {
            self.stream.release(data.len())?;
            return Poll::Ready(Some(Ok(Frame::data(data))));
        }
        if let ReadState::Data = self.state {
            match ready!(self.stream.poll_data(cx)) {
                Some(Ok(data)) => {
                    // At once: the reader asks for a frame only when it has room for it.
                    self.stream.release(data.len())?;
                    return Poll::Ready(Some(Ok(Frame::data(data))));
                }
                Some(Err(error)) => {
                    // The reader may discard what it has not written yet, even the head, when it gets an error. It gets
                    // a turn to write that first.
                    self.state = ReadState::Failing(error);
                    cx.waker().wake_by_ref();
                    return Poll::Pending;
                }
                None => self.state = ReadState::Trailers,
            }
        }
        if let ReadState::Failing(error) = mem::replace(&mut self.state, ReadState::Trailers) {
            return Poll::Ready(Some(Err(error)));
        }
        match ready!(self.stream.poll_trailers(cx))? {
            Some(trailers) => Poll::Ready(Some(Ok(Frame::trailers(trailers)))),
            None => Poll::Ready(None),
        }
    }
}
