//! The body of a request or response. There is one type, so that every hop forwards frames as they are.

use std::{
    fmt, mem,
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use h2::RecvStream;
use http_body::{Frame, SizeHint};
use http_body_util::{BodyExt as _, combinators::UnsyncBoxBody};
use proto::hop_by_hop::strip_trailers;

use crate::{
    BodyError, StreamMonitor,
    monitor::{FinishedStreams, ReceiveStream},
    overhead::OverheadCounter,
    send_body::SendBody,
};

/// A streaming body of [`Bytes`]. [`strip_trailers`] is applied to its trailers.
#[derive(Default)]
pub struct Body(BodyKind);

#[derive(Default)]
enum BodyKind {
    #[default]
    Empty,
    Full(Bytes),
    Tunnel(Box<TunnelBody>),
    Other {
        body: UnsyncBoxBody<Bytes, BodyError>,
        /// The stream from which its data come.
        monitor: Option<StreamMonitor>,
    },
}

/// A body that arrives on a stream of a tunnel.
struct TunnelBody {
    stream: ReceiveStream,
    /// The chunk that arrived together with the head.
    first: Option<Bytes>,
    state: ReadState,
}

enum ReadState {
    Data,
    Trailers,
    /// The stream has failed. The next poll returns the error.
    Failing(BodyError),
}

impl Body {
    /// Creates an empty body.
    pub const fn empty() -> Self {
        Self(BodyKind::Empty)
    }

    /// Wraps and boxes any other body.
    pub fn new<B>(body: B) -> Self
    where
        B: http_body::Body<Data = Bytes> + Send + 'static,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let body = body.map_err(|error| BodyError::Other(error.into())).boxed_unsync();
        Self(BodyKind::Other { body, monitor: None })
    }

    /// Wraps a body whose data come from another stream, which this monitor observes.
    pub fn with_monitor<B>(body: B, monitor: StreamMonitor) -> Self
    where
        B: http_body::Body<Data = Bytes, Error = BodyError> + Send + 'static,
    {
        Self(BodyKind::Other { body: body.boxed_unsync(), monitor: Some(monitor) })
    }

    /// Makes the body of a message whose head has just arrived. A body that has arrived whole becomes plain bytes.
    ///
    /// `sending` is the body of the request, if it is still being sent on the same stream. `finished`, if there is one, gets the stream of
    /// a body that has arrived whole.
    pub(crate) fn received(
        mut stream: RecvStream,
        sending: Option<SendBody>,
        overhead: &OverheadCounter,
        finished: Option<&FinishedStreams>,
        cx: &mut Context<'_>,
    ) -> Self {
        let keep = |stream| {
            if let Some(finished) = finished {
                finished.lock().push(stream);
            }
        };
        if sending.is_some() {
            return Self::tunnel(ReceiveStream::new(stream, sending, overhead), None, ReadState::Data);
        }
        if stream.is_end_stream() {
            keep(stream);
            return Self::empty();
        }
        match stream.poll_data(cx) {
            Poll::Ready(Some(Ok(data))) => {
                overhead.subtract_data();
                if stream.is_end_stream() {
                    // Fails only if the connection has ended, and its window does not matter then.
                    let _ = stream.flow_control().release_capacity(data.len());
                    keep(stream);
                    return data.into();
                }
                Self::tunnel(ReceiveStream::new(stream, None, overhead), Some(data), ReadState::Data)
            }
            Poll::Ready(Some(Err(error))) => Self::tunnel(
                ReceiveStream::new(stream, None, overhead),
                None,
                ReadState::Failing(error.into()),
            ),
            Poll::Ready(None) => {
                Self::tunnel(ReceiveStream::new(stream, None, overhead), None, ReadState::Trailers)
            }
            Poll::Pending => Self::tunnel(ReceiveStream::new(stream, None, overhead), None, ReadState::Data),
        }
    }

    /// Makes the body of a message from its stream.
    pub(crate) fn from_stream(stream: RecvStream, overhead: &OverheadCounter) -> Self {
        if stream.is_end_stream() {
            return Self::empty();
        }
        Self::tunnel(ReceiveStream::new(stream, None, overhead), None, ReadState::Data)
    }

    fn tunnel(stream: ReceiveStream, first: Option<Bytes>, state: ReadState) -> Self {
        Self(BodyKind::Tunnel(Box::new(TunnelBody { stream, first, state })))
    }

    /// Returns the whole body if it has arrived and has no trailers.
    pub(crate) fn into_full(self) -> Result<Bytes, Self> {
        match self.0 {
            BodyKind::Empty => Ok(Bytes::new()),
            BodyKind::Full(bytes) => Ok(bytes),
            _ => Err(self),
        }
    }

    /// Returns a monitor of the stream, or `None` if the body has no stream or has arrived whole.
    pub fn monitor(&self) -> Option<StreamMonitor> {
        match &self.0 {
            BodyKind::Tunnel(body) => Some(body.stream.monitor()),
            BodyKind::Other { monitor, .. } => monitor.clone(),
            BodyKind::Empty | BodyKind::Full(_) => None,
        }
    }
}

impl From<Bytes> for Body {
    fn from(bytes: Bytes) -> Self {
        if bytes.is_empty() { Self::empty() } else { Self(BodyKind::Full(bytes)) }
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
            BodyKind::Empty => "empty",
            BodyKind::Full(_) => "full",
            BodyKind::Tunnel(_) => "tunnel",
            BodyKind::Other { .. } => "other",
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
            BodyKind::Empty => Poll::Ready(None),
            BodyKind::Full(bytes) => {
                let bytes = mem::take(bytes);
                self.0 = BodyKind::Empty;
                Poll::Ready(Some(Ok(Frame::data(bytes))))
            }
            BodyKind::Tunnel(body) => body.poll_frame(cx),
            BodyKind::Other { body, .. } => Pin::new(body).poll_frame(cx),
        };

        // Every body is polled here at both ends, so no handler can forget to strip trailers.
        polled.map_ok(|mut frame| {
            if let Some(trailers) = frame.trailers_mut() {
                strip_trailers(trailers);
            }
            frame
        })
    }

    fn is_end_stream(&self) -> bool {
        match &self.0 {
            BodyKind::Empty => true,
            BodyKind::Full(_) => false,
            BodyKind::Tunnel(body) => body.first.is_none() && body.stream.is_end_stream(),
            BodyKind::Other { body, .. } => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.0 {
            BodyKind::Empty => SizeHint::with_exact(0),
            BodyKind::Full(bytes) => SizeHint::with_exact(bytes.len() as u64),
            BodyKind::Tunnel(_) => SizeHint::default(),
            BodyKind::Other { body, .. } => body.size_hint(),
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
                    // Released at once, because the reader polls for a frame only when it has room for it.
                    self.stream.release(data.len())?;
                    return Poll::Ready(Some(Ok(Frame::data(data))));
                }
                Some(Err(error)) => {
                    // At an error, the reader may discard data that it has not written yet, even the head. So it is polled
                    // once more before, to write that data first.
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
