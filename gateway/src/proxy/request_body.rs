//! A request's body: its bytes are counted, and it must keep coming.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http_body::{Body as _, Frame, SizeHint};
use hyper::body::Incoming;
use prometheus_client::metrics::counter::Counter;
use tokio::time::{Instant, Sleep, sleep};
use tunnel::{Body, BodyError};

use crate::metrics::ServiceMetrics;

/// Fails when the caller has sent nothing for too long. Without it, a caller who announces a body and never sends it
/// holds its place in the tunnel, and a connection in the cluster, for ever.
struct Watched {
    body: Incoming,
    metrics: Arc<ServiceMetrics>,
    stalls: Counter,
    limit: Duration,
    /// Runs while the body is awaited. Made by the first wait: most bodies come with their head.
    waiting: Option<Pin<Box<Sleep>>>,
    armed: bool,
}

/// The body that is passed on, which may pause for `limit`: longer pauses are counted. One that is empty costs nothing.
pub(super) fn watched(
    body: Incoming,
    limit: Duration,
    metrics: &Arc<ServiceMetrics>,
    stalls: &Counter,
) -> Body {
    if body.is_end_stream() {
        return Body::empty();
    }
    let (metrics, stalls) = (Arc::clone(metrics), stalls.clone());
    Body::new(Watched { body, metrics, stalls, limit, waiting: None, armed: false })
}

impl http_body::Body for Watched {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let this = &mut *self;
        if let Poll::Ready(frame) = Pin::new(&mut this.body).poll_frame(cx) {
            this.armed = false;
            if let Some(data) = frame.as_ref().and_then(|frame| frame.as_ref().ok()?.data_ref()) {
                this.metrics.request_bytes.inc_by(data.len() as u64);
            }
            return Poll::Ready(frame.map(|frame| frame.map_err(|error| BodyError::Other(error.into()))));
        }

        let limit = this.limit;
        let waiting = this.waiting.get_or_insert_with(|| Box::pin(sleep(limit)));
        if !this.armed {
            this.armed = true;
            waiting.as_mut().reset(Instant::now() + limit);
        }
        let late = waiting.as_mut().poll(cx);
        late.map(|()| {
            this.stalls.inc();
            Some(Err(BodyError::Other("nothing more of it came in time".into())))
        })
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
