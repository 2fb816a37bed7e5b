//! The receiving half of a stream, and a handle to observe and reset it.

use std::{
    collections::VecDeque,
    fmt, mem,
    sync::Arc,
    task::{Context, Poll, Waker},
    time::Duration,
};

use bytes::Bytes;
use h2::RecvStream;
use http::HeaderMap;
use parking_lot::Mutex;
use tokio::time::sleep;

use crate::{
    BodyError,
    overhead::OverheadCounter,
    send_body::{SMALL_CHUNK, SendBody},
};

/// Size at which joined small frames become a chunk, in bytes.
const JOINED_CHUNK: usize = 64 << 10;

/// The interval at which the small frames of unread streams are joined. h2 ends the connection at half a million of them
/// ([`DATA_FRAME_BUDGET`](crate::config)), which take longer.
pub(crate) const COMPACT_PERIOD: Duration = Duration::from_millis(250);

/// Streams that are dropped together. Clones share them.
pub(crate) type FinishedStreams = Arc<Mutex<Vec<RecvStream>>>;

/// The receiving half of a stream. Dropping it resets the stream if the other end has not finished it.
pub(crate) struct ReceiveStream(StreamMonitor);

/// Observes the reader of a stream, and can reset the stream. Cheap to clone. It does not keep the stream open.
#[derive(Clone)]
pub struct StreamMonitor(Arc<Mutex<StreamState>>);

struct StreamState {
    /// `None` after [`StreamMonitor::reset`].
    stream: Option<CountedStream>,
    /// The body that is still being sent on the same stream. h2 resets a stream when both of its halves are dropped.
    sending: Option<SendBody>,
    /// Data that [`StreamMonitor::compact`] has taken from the stream.
    compacted: CompactedData,
    reads: u64,
    waiting: bool,
    /// [`StreamMonitor::reset`] was called.
    is_reset: bool,
    /// The task that ends with the stream once it is reset.
    reset_waker: Option<Waker>,
}

/// A stream whose data is subtracted from the overhead of the tunnel as soon as it leaves h2.
struct CountedStream {
    stream: RecvStream,
    overhead: OverheadCounter,
}

impl CountedStream {
    fn poll_data(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, h2::Error>>> {
        let polled = self.stream.poll_data(cx);
        if let Poll::Ready(Some(Ok(_))) = polled {
            self.overhead.subtract_data();
        }
        polled
    }

    fn poll_trailers(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<HeaderMap>, h2::Error>> {
        let polled = self.stream.poll_trailers(cx);
        if let Poll::Ready(Ok(Some(trailers))) = &polled {
            self.overhead.subtract_fields(trailers);
        }
        polled
    }
}

/// Frames that were taken from h2 before the reader polled for them. The small ones are joined.
#[derive(Default)]
struct CompactedData {
    chunks: VecDeque<Bytes>,
    /// Small frames behind the last chunk.
    joined: Vec<u8>,
    /// The result of the stream behind all data: its end, or its error.
    end: Option<Option<h2::Error>>,
}

impl CompactedData {
    /// Takes all frames that h2 has buffered.
    fn take_from(&mut self, stream: &mut CountedStream) {
        // The reader does not wait, so that no waker is lost.
        let mut cx = Context::from_waker(Waker::noop());
        while self.end.is_none()
            && let Poll::Ready(polled) = stream.poll_data(&mut cx)
        {
            match polled {
                Some(Ok(data)) if data.len() < SMALL_CHUNK => {
                    self.joined.extend_from_slice(&data);
                    if self.joined.len() >= JOINED_CHUNK {
                        self.finish_chunk();
                    }
                }
                Some(Ok(data)) => {
                    self.finish_chunk();
                    self.chunks.push_back(data);
                }
                Some(Err(error)) => self.end = Some(Some(error)),
                None => self.end = Some(None),
            }
        }
    }

    fn finish_chunk(&mut self) {
        if !self.joined.is_empty() {
            self.chunks.push_back(mem::take(&mut self.joined).into());
        }
    }

    /// Returns the next result, or `None` if the stream has to be polled.
    fn next(&mut self) -> Option<Option<Result<Bytes, h2::Error>>> {
        if self.chunks.is_empty() {
            self.finish_chunk();
        }
        match self.chunks.pop_front() {
            Some(chunk) => Some(Some(Ok(chunk))),
            None => self.end.take().map(|end| end.map(Err)),
        }
    }

    fn is_empty(&self) -> bool {
        self.chunks.is_empty() && self.joined.is_empty() && self.end.is_none()
    }
}

impl StreamState {
    fn poll_data(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, BodyError>>> {
        let Some(stream) = &mut self.stream else {
            return Poll::Ready(Some(Err(BodyError::Reset)));
        };
        let polled = match self.compacted.next() {
            Some(result) => Poll::Ready(result),
            None => stream.poll_data(cx),
        };
        polled.map_err(BodyError::Tunnel)
    }
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
        let unread = state.stream.as_mut().map_or(0, |counted| counted.stream.flow_control().used_capacity());
        StreamStats { unread, reads: state.reads, reader_waiting: state.waiting }
    }

    /// Joins the small frames that have arrived for a reader that does not read. h2 holds 256 bytes for each frame, even if
    /// its payload has one byte.
    pub fn compact(&self) {
        let state = &mut *self.0.lock();
        if let Some(stream) = &mut state.stream
            && !state.waiting
        {
            state.compacted.take_from(stream);
        }
    }

    /// Runs a future that reads from the stream, and joins the small frames that it does not read in time.
    pub(crate) async fn compact_during<F: Future>(&self, future: F) -> F::Output {
        tokio::pin!(future);
        loop {
            tokio::select! {
                biased;
                output = &mut future => return output,
                () = sleep(COMPACT_PERIOD) => self.compact(),
            }
        }
    }

    /// Returns true if the stream was reset, or its reader was dropped.
    fn is_closed(&self) -> bool {
        self.0.lock().stream.is_none()
    }

    /// Resets the stream and drops the unread bytes. The next read returns an error.
    pub fn reset(&self) {
        self.close();
        let waker = {
            let mut state = self.0.lock();
            state.is_reset = true;
            state.reset_waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Completes once [`Self::reset`] was called. One task may wait for it.
    pub(crate) fn poll_reset(&self, cx: &mut Context<'_>) -> Poll<()> {
        let state = &mut *self.0.lock();
        if state.is_reset {
            return Poll::Ready(());
        }
        match &mut state.reset_waker {
            Some(waker) => waker.clone_from(cx.waker()),
            None => state.reset_waker = Some(cx.waker().clone()),
        }
        Poll::Pending
    }

    fn close(&self) {
        let mut state = self.0.lock();
        let halves = (state.stream.take(), state.sending.take(), mem::take(&mut state.compacted));
        drop(state);
        // Dropped without the lock, because dropping a stream wakes other tasks.
        drop(halves);
    }
}

/// The streams that are received in one tunnel.
#[derive(Default)]
pub(crate) struct ReceivedStreams(Vec<StreamMonitor>);

impl ReceivedStreams {
    pub(crate) fn add(&mut self, stream: Option<StreamMonitor>) {
        self.0.extend(stream);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Joins the small frames of the streams that are not read, and removes the streams that have been dropped.
    pub(crate) fn compact(&mut self) {
        self.0.retain(|monitor| !monitor.is_closed());
        self.0.iter().for_each(StreamMonitor::compact);
    }
}

impl ReceiveStream {
    pub(crate) fn new(stream: RecvStream, sending: Option<SendBody>, overhead: &OverheadCounter) -> Self {
        let stream = CountedStream { stream, overhead: overhead.clone() };
        let compacted = CompactedData::default();
        let state = StreamState {
            stream: Some(stream),
            sending,
            compacted,
            reads: 0,
            waiting: false,
            is_reset: false,
            reset_waker: None,
        };
        Self(StreamMonitor(Arc::new(Mutex::new(state))))
    }

    pub(crate) fn monitor(&self) -> StreamMonitor {
        self.0.clone()
    }

    pub(crate) fn is_end_stream(&self) -> bool {
        let state = self.0.0.lock();
        state.sending.is_none()
            && state.compacted.is_empty()
            && state.stream.as_ref().is_some_and(|counted| counted.stream.is_end_stream())
    }

    /// Sends more of the body on the same stream: a response may arrive before its request has ended, and the reader of
    /// the response then sends the rest of the request.
    pub(crate) fn poll_sending(&self, cx: &mut Context<'_>) {
        let state = &mut *self.0.0.lock();
        state.sending.take_if(|body| body.poll(cx).is_ready());
    }

    pub(crate) fn poll_data(&self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, BodyError>>> {
        let state = &mut *self.0.0.lock();
        let polled = state.poll_data(cx);
        state.reads += u64::from(polled.is_ready());
        state.waiting = polled.is_pending();
        polled
    }

    pub(crate) fn poll_trailers(&self, cx: &mut Context<'_>) -> Poll<Result<Option<HeaderMap>, BodyError>> {
        match &mut self.0.0.lock().stream {
            Some(stream) => stream.poll_trailers(cx).map_err(BodyError::Tunnel),
            None => Poll::Ready(Err(BodyError::Reset)),
        }
    }

    /// Returns bytes that the reader has taken to the flow-control window, so that the other end may send as many more.
    pub(crate) fn release(&self, bytes: usize) -> Result<(), BodyError> {
        let mut state = self.0.0.lock();
        let counted = state.stream.as_mut().ok_or(BodyError::Reset)?;
        counted.stream.flow_control().release_capacity(bytes).map_err(BodyError::Tunnel)
    }
}

impl Drop for ReceiveStream {
    fn drop(&mut self) {
        self.0.0.lock().waiting = true;
        self.0.close();
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
