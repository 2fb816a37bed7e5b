//! Sends a body on a stream of the tunnel, as fast as flow control allows.

use std::{
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    task::{Context, Poll, ready},
};

use bytes::{Bytes, BytesMut};
use h2::{Reason, SendStream};
use http::HeaderMap;
use http_body::{Body as _, Frame};

use crate::{Body, BodyError};

/// Longest body that is kept for a retry, in bytes. Most bodies of the Kubernetes API are smaller; a larger one is not
/// sent again.
const MAX_REPLAY: usize = 64 << 10;

/// Chunks below this size are joined with others that are ready. Each unread frame costs the other end some 256 bytes
/// besides its payload: 4 MiB of single bytes would cost 1 GiB.
pub(crate) const SMALL_CHUNK: usize = 4 << 10;

/// A body that is being sent. [`SendBody::poll`] is polled together with the future that receives the other direction.
pub(crate) struct SendBody {
    body: Body,
    stream: SendStream<Bytes>,
    /// The chunk that was taken from the body and is not sent yet.
    chunk: Bytes,
    /// The result of the body that ended the joining of small chunks.
    next: Option<Option<Result<Frame<Bytes>, BodyError>>>,
    replay: Replay,
    stalls: StallCounter,
    /// The current wait for flow control is not counted as a stall: it was counted already, or it is the first one. h2 gives
    /// a stream no capacity before its HEADERS are sent, so the first chunk usually waits once.
    stalled: bool,
    /// The body has failed. The next poll resets the stream.
    failing: bool,
}

/// Counts stalls: waits of a body for capacity, which is the window of the other end and the room in the buffer of h2. Cheap to
/// clone.
#[derive(Clone, Debug, Default)]
pub struct StallCounter(Arc<AtomicU64>);

/// The ability to send the body again.
enum Replay {
    /// No frame was taken from the body yet.
    Untouched,
    /// The body was small, and these are its bytes.
    Kept(Bytes),
    Impossible,
}

/// The result of sending a body.
#[derive(Debug)]
pub(crate) enum SendOutcome {
    /// The whole body was given to h2.
    Complete,
    /// The other end has reset the stream, or the connection has ended.
    Stopped,
    /// The body failed. The stream was reset, so that the other end cannot take the body for complete.
    Failed(BodyError),
}

impl StallCounter {
    /// Returns the number of stalls so far.
    pub fn count(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

impl SendBody {
    pub(crate) fn new(body: Body, stream: SendStream<Bytes>, stalls: StallCounter) -> Self {
        Self {
            body,
            stream,
            chunk: Bytes::new(),
            next: None,
            replay: Replay::Untouched,
            stalls,
            stalled: true,
            failing: false,
        }
    }

    /// Returns the body as it was, if it can be sent again.
    pub(crate) fn into_whole(self) -> Option<Body> {
        match self.replay {
            Replay::Untouched => Some(self.body),
            Replay::Kept(bytes) => Some(bytes.into()),
            Replay::Impossible => None,
        }
    }

    /// Drops the bytes that are kept for a retry.
    pub(crate) fn forget_replay(&mut self) {
        self.replay = Replay::Impossible;
    }

    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<SendOutcome> {
        // This also registers the task, so that a reset is detected while the body has no data.
        if self.stream.poll_reset(cx).is_ready() {
            return Poll::Ready(SendOutcome::Stopped);
        }
        loop {
            if !self.chunk.is_empty() {
                let exhausted = self.join_small_chunks(cx);
                match ready!(self.poll_send_chunk(cx)) {
                    Some(sent) => return Poll::Ready(sent),
                    None if exhausted && self.chunk.is_empty() => return Poll::Pending,
                    None => continue,
                }
            }

            let frame = match self.next.take() {
                Some(frame) => frame,
                None => ready!(Pin::new(&mut self.body).poll_frame(cx)),
            };
            let frame = match frame {
                Some(Ok(frame)) => frame,
                Some(Err(error)) => return self.poll_fail(error, cx),
                None => return Poll::Ready(self.finish(None)),
            };
            let untouched = matches!(self.replay, Replay::Untouched);
            self.replay = Replay::Impossible;
            match frame.into_data() {
                // An empty chunk is not sent: h2 treats many empty DATA frames as an attack (CVE-2019-9518).
                Ok(data) => {
                    if untouched && data.len() <= MAX_REPLAY && self.body.is_end_stream() {
                        self.replay = Replay::Kept(data.clone());
                    }
                    self.chunk = data;
                }
                Err(frame) => {
                    if let Ok(trailers) = frame.into_trailers() {
                        return Poll::Ready(self.finish(Some(trailers)));
                    }
                }
            }
        }
    }

    /// Sends as much of the chunk as flow control allows. Returns `None` if the body is not complete yet.
    fn poll_send_chunk(&mut self, cx: &mut Context<'_>) -> Poll<Option<SendOutcome>> {
        let Some(capacity) = ready!(self.poll_capacity(cx)) else {
            return Poll::Ready(Some(SendOutcome::Stopped));
        };
        let data = self.chunk.split_to(capacity.min(self.chunk.len()));
        let last = self.chunk.is_empty() && self.next.is_none() && self.body.is_end_stream();
        Poll::Ready(match self.stream.send_data(data, last) {
            Err(_) => Some(SendOutcome::Stopped),
            Ok(()) => last.then_some(SendOutcome::Complete),
        })
    }

    /// Resets the stream at the second call. A reset discards frames that h2 has not written yet, even the head, so the
    /// connection is polled once before it.
    fn poll_fail(&mut self, error: BodyError, cx: &mut Context<'_>) -> Poll<SendOutcome> {
        if !self.failing {
            self.failing = true;
            self.next = Some(Some(Err(error)));
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        self.stream.send_reset(Reason::INTERNAL_ERROR);
        Poll::Ready(SendOutcome::Failed(error))
    }

    fn finish(&mut self, trailers: Option<HeaderMap>) -> SendOutcome {
        let ended = match trailers {
            Some(trailers) => self.stream.send_trailers(trailers),
            None => self.stream.send_data(Bytes::new(), true),
        };
        if ended.is_ok() { SendOutcome::Complete } else { SendOutcome::Stopped }
    }

    /// Appends the small chunks that are ready to a small chunk. Returns true if the body is pending, and has registered the
    /// task.
    fn join_small_chunks(&mut self, cx: &mut Context<'_>) -> bool {
        let mut joined = BytesMut::new();
        let mut exhausted = false;
        while self.next.is_none()
            && self.chunk.len().max(joined.len()) < SMALL_CHUNK
            && !self.body.is_end_stream()
        {
            match Pin::new(&mut self.body).poll_frame(cx) {
                Poll::Pending => {
                    exhausted = true;
                    break;
                }
                Poll::Ready(Some(Ok(frame)))
                    if frame.data_ref().is_some_and(|data| data.len() < SMALL_CHUNK) =>
                {
                    if joined.is_empty() {
                        joined.extend_from_slice(&self.chunk);
                    }
                    joined.extend_from_slice(frame.data_ref().expect("checked above"));
                }
                Poll::Ready(other) => self.next = Some(other),
            }
        }
        if !joined.is_empty() {
            self.chunk = joined.freeze();
            self.replay = Replay::Impossible;
        }
        exhausted
    }

    /// Waits for capacity to send a part of the chunk, and returns it in bytes. Returns `None` if the stream has ended.
    fn poll_capacity(&mut self, cx: &mut Context<'_>) -> Poll<Option<usize>> {
        self.stream.reserve_capacity(self.chunk.len());
        loop {
            let capacity = self.stream.capacity();
            if capacity > 0 {
                self.stalled = false;
                return Poll::Ready(Some(capacity));
            }
            match self.stream.poll_capacity(cx) {
                Poll::Ready(Some(Ok(_))) => {}
                Poll::Ready(Some(Err(_)) | None) => return Poll::Ready(None),
                Poll::Pending => {
                    if !self.stalled {
                        self.stalled = true;
                        self.stalls.0.fetch_add(1, Relaxed);
                    }
                    return Poll::Pending;
                }
            }
        }
    }
}
