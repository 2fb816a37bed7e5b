//! The body of a message on a connection with a limit on its overhead.

use std::{
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};

use crate::overhead::OverheadCounter;

/// A received body whose frames are no overhead once they are read. The frames of a body that is not read stay overhead, and so do empty
/// ones.
#[derive(Debug)]
pub struct CountedBody<B> {
    body: B,
    overhead: OverheadCounter,
}

impl<B> CountedBody<B> {
    /// Wraps a body that an [`OverheadStream`](crate::OverheadStream) with this counter receives.
    pub fn new(body: B, overhead: OverheadCounter) -> Self {
        Self { body, overhead }
    }
}

impl<B: Body<Data = Bytes> + Unpin> Body for CountedBody<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(cx));
        if let Some(Ok(frame)) = &frame {
            if frame.data_ref().is_some_and(|data| !data.is_empty()) {
                self.overhead.subtract_frame_header();
            } else if let Some(trailers) = frame.trailers_ref() {
                self.overhead.subtract_fields(trailers);
            }
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
