//! The receiving half of a stream, and a handle to observe and reset it.

use std::{
    fmt,
    sync::Arc,
    task::{Context, Poll},
};

use bytes::Bytes;
use h2::RecvStream;
use http::HeaderMap;
use parking_lot::Mutex;

use crate::{BodyError, overhead::OverheadCounter, send_body::SendBody};

/// The receiving half of a stream. Dropping it resets the stream if the other end has not finished it.
pub(crate) struct ReceiveStream {
    monitor: StreamMonitor,
    overhead: OverheadCounter,
}

/// Observes the reader of a stream, and can reset the stream. Cheap to clone. It does not keep the stream open.
#[derive(Clone)]
pub struct StreamMonitor(Arc<Mutex<StreamState>>);

struct StreamState {
    /// `None` after [`StreamMonitor::reset`].
    stream: Option<RecvStream>,
    /// The body that is still being sent on the same stream. h2 resets a stream when both of its halves are dropped.
    sending: Option<SendBody>,
    reads: u64,
    waiting: bool,
}

/// The state of a stream at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StreamStats {
    /// Bytes that have arrived and that the reader has not taken, or has not released yet.
    pub unread: usize,
    /// Number of reads that returned data, an error or the end of the stream.
    pub reads: u64,
    /// The reader waits for more data, or has finished. It is not slow then.
    pub reader_waiting: bool,
}

impl StreamMonitor {
    /// Returns the state of the stream now.
    pub fn stats(&self) -> StreamStats {
        let state = &mut *self.0.lock();
        let unread = state.stream.as_mut().map_or(0, |stream| stream.flow_control().used_capacity());
        StreamStats { unread, reads: state.reads, reader_waiting: state.waiting }
    }

    /// Resets the stream and drops the unread bytes. The next read returns an error.
    pub fn reset(&self) {
        let mut state = self.0.lock();
        let halves = (state.stream.take(), state.sending.take());
        drop(state);
        // Dropped without the lock, because dropping a stream wakes other tasks.
        drop(halves);
    }
}

impl ReceiveStream {
    pub(crate) fn new(stream: RecvStream, sending: Option<SendBody>, overhead: &OverheadCounter) -> Self {
        let state = StreamState { stream: Some(stream), sending, reads: 0, waiting: false };
        Self { monitor: StreamMonitor(Arc::new(Mutex::new(state))), overhead: overhead.clone() }
    }

    pub(crate) fn monitor(&self) -> StreamMonitor {
        self.monitor.clone()
    }

    pub(crate) fn is_end_stream(&self) -> bool {
        let state = self.monitor.0.lock();
        state.sending.is_none() && state.stream.as_ref().is_some_and(RecvStream::is_end_stream)
    }

    /// Sends more of the body on the same stream: a response may arrive before its request has ended, and the reader of
    /// the response then sends the rest of the request.
    pub(crate) fn poll_sending(&self, cx: &mut Context<'_>) {
        let state = &mut *self.monitor.0.lock();
        state.sending.take_if(|body| body.poll(cx).is_ready());
    }

    pub(crate) fn poll_data(&self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, BodyError>>> {
        let state = &mut *self.monitor.0.lock();
        let Some(stream) = &mut state.stream else {
            return Poll::Ready(Some(Err(BodyError::Reset)));
        };
        let polled = stream.poll_data(cx).map_err(BodyError::Tunnel);
        state.reads += u64::from(polled.is_ready());
        state.waiting = polled.is_pending();
        self.count(&polled);
        polled
    }

    /// Takes data before the reader polls for it. This counts neither as a read nor as a wait of the reader.
    pub(crate) fn poll_data_ahead(&self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, BodyError>>> {
        let polled = match &mut self.monitor.0.lock().stream {
            Some(stream) => stream.poll_data(cx).map_err(BodyError::Tunnel),
            None => Poll::Ready(Some(Err(BodyError::Reset))),
        };
        self.count(&polled);
        polled
    }

    fn count(&self, polled: &Poll<Option<Result<Bytes, BodyError>>>) {
        if let Poll::Ready(Some(Ok(_))) = polled {
            self.overhead.subtract_data();
        }
    }

    /// Counts a read of data that was taken ahead.
    pub(crate) fn count_read(&self) {
        self.monitor.0.lock().reads += 1;
    }

    pub(crate) fn poll_trailers(&self, cx: &mut Context<'_>) -> Poll<Result<Option<HeaderMap>, BodyError>> {
        let polled = match &mut self.monitor.0.lock().stream {
            Some(stream) => stream.poll_trailers(cx).map_err(BodyError::Tunnel),
            None => Poll::Ready(Err(BodyError::Reset)),
        };
        if let Poll::Ready(Ok(Some(trailers))) = &polled {
            self.overhead.subtract_fields(trailers);
        }
        polled
    }

    /// Returns bytes that the reader has taken to the flow-control window, so that the other end may send as many more.
    pub(crate) fn release(&self, bytes: usize) -> Result<(), BodyError> {
        let mut state = self.monitor.0.lock();
        let stream = state.stream.as_mut().ok_or(BodyError::Reset)?;
        stream.flow_control().release_capacity(bytes).map_err(BodyError::Tunnel)
    }
}

impl Drop for ReceiveStream {
    fn drop(&mut self) {
        self.monitor.0.lock().waiting = true;
        self.monitor.reset();
    }
}

impl fmt::Debug for ReceiveStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ReceiveStream")
    }
}

impl fmt::Debug for StreamMonitor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("StreamMonitor")
    }
}
