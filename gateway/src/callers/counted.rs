//! A request's body whose bytes are counted.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use bytes::Bytes;
use http_body::{Body as _, Frame, SizeHint};
use hyper::body::Incoming;
use tunnel::Body;

use crate::metrics::ServiceMetrics;

struct Counted {
    body: Incoming,
    metrics: Arc<ServiceMetrics>,
}

/// The body that is passed on. One that is empty costs nothing.
pub(super) fn counted(body: Incoming, metrics: &Arc<ServiceMetrics>) -> Body {
    if body.is_end_stream() {
        return Body::empty();
    }
    Body::new(Counted { body, metrics: Arc::clone(metrics) })
}

impl http_body::Body for Counted {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let polled = Pin::new(&mut self.body).poll_frame(cx);
        if let Poll::Ready(Some(Ok(frame))) = &polled
            && let Some(data) = frame.data_ref()
        {
            self.metrics.request_bytes.inc_by(data.len() as u64);
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
