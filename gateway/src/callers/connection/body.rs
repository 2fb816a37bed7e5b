//! The body of a request, read off its connection by whoever polls it.

use std::{
    pin::Pin,
    task::{Context, Poll},
};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use http1::Error;

use super::wire::Wire;

/// A body that was not empty. What nobody reads of it stays in the connection.
pub(in crate::callers) struct RequestBody {
    wire: Wire,
    number: u64,
}

impl RequestBody {
    /// Of this request of the connection.
    pub(super) fn new(wire: Wire, number: u64) -> Self {
        Self { wire, number }
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = Error;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Error>>> {
        self.wire.lock().poll_frame(self.number, cx)
    }

    fn is_end_stream(&self) -> bool {
        self.wire.lock().is_over(self.number)
    }

    fn size_hint(&self) -> SizeHint {
        let due = self.wire.lock().due(self.number);
        due.map_or_else(SizeHint::default, SizeHint::with_exact)
    }
}
