//! The body of a request or response on its way through: one type, so that every hop hands frames on as they are.

use std::{
    fmt,
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http_body::{Frame, SizeHint};
use http_body_util::{BodyExt as _, combinators::UnsyncBoxBody};
use proto::trailers;

use crate::{
    Grip,
    http2::{Error, Receiving},
    pump::Pump,
};

/// A streaming body of [`Bytes`]. Its trailers are those that may travel (see [`trailers::strip`]).
#[derive(Default)]
pub struct Body(Kind);

#[derive(Default)]
enum Kind {
    #[default]
    Empty,
    Full(Bytes),
    Http2(Box<Stream>),
    Other(UnsyncBoxBody<Bytes, BodyError>),
}

/// What is received on one stream of a tunnel.
struct Stream {
    receiving: Receiving,
    /// The request, while it is still being sent: a response may come before it has ended, and whoever reads the response
    /// then moves the request too.
    sending: Option<Pump>,
    /// Only trailers are left.
    ended: bool,
    /// It has failed, and what was read before had its turn.
    failing: Option<Error>,
}

/// Why a body ended before its end.
#[derive(Debug, thiserror::Error)]
pub enum BodyError {
    /// The tunnel's stream was reset, or the tunnel was lost.
    #[error("the tunnel ended in the middle of a body: {0}")]
    Tunnel(#[from] Error),
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

    pub(crate) fn received(receiving: Receiving, sending: Option<Pump>) -> Self {
        if sending.is_none() && receiving.is_over() {
            return Self::empty();
        }

        Self(Kind::Http2(Box::new(Stream { receiving, sending, ended: false, failing: None })))
    }

    /// A grip on what arrives; `None` for a body that does not come through a tunnel, or that is here as a whole.
    pub fn grip(&self) -> Option<Grip> {
        match &self.0 {
            Kind::Http2(stream) => Some(Grip(stream.receiving.view())),
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
            Kind::Http2(_) => "tunnel",
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
                let bytes = std::mem::take(bytes);
                self.0 = Kind::Empty;
                Poll::Ready(Some(Ok(Frame::data(bytes))))
            }
            Kind::Http2(stream) => stream.poll_frame(cx),
            Kind::Other(body) => Pin::new(body).poll_frame(cx),
        };

        // Here, where every body passes at both ends, so that no handler can forget it.
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
            Kind::Http2(stream) => stream.sending.is_none() && stream.receiving.is_over(),
            Kind::Other(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.0 {
            Kind::Empty => SizeHint::with_exact(0),
            Kind::Full(bytes) => SizeHint::with_exact(bytes.len() as u64),
            Kind::Http2(_) => SizeHint::default(),
            Kind::Other(body) => body.size_hint(),
        }
    }
}

impl Stream {
    fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        self.sending.take_if(|pump| pump.poll(cx).is_ready());
        if let Some(error) = self.failing.take() {
            return Poll::Ready(Some(Err(error.into())));
        }
        if !self.ended {
            // Released at once: the reader asks for a frame only when it has room for it.
            match ready!(self.receiving.poll_taken(cx)) {
                Some(Ok(data)) => return Poll::Ready(Some(Ok(Frame::data(data)))),
                Some(Err(error)) => {
                    // Whoever passes this on may take back all that it has not written yet, be it the head: that goes first.
                    self.failing = Some(error);
                    cx.waker().wake_by_ref();
                    return Poll::Pending;
                }
                None => self.ended = true,
            }
        }
        Poll::Ready(self.receiving.take_trailers().map(|trailers| Ok(Frame::trailers(trailers))))
    }
}
