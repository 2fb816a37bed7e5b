//! Sends a body on a stream of the tunnel, as fast as the other end takes it.

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

/// Most bytes of a body that are kept to be sent again. Most bodies of the Kubernetes API are smaller; a larger one is not
/// retried.
const MAX_REPLAY: usize = 64 << 10;

/// Chunks below this size are joined, if several are there. Each frame costs the other end some 256 bytes while it is
/// unread, whatever it carries: 4 MiB of single bytes would cost 1 GiB.
const SMALL_CHUNK: usize = 4 << 10;

/// A body being sent: a future that is polled by hand, beside the one that waits for the other direction.
pub(crate) struct SendBody {
    body: Body,
    stream: SendStream<Bytes>,
    /// Taken from the body, and not yet accepted by flow control.
    chunk: Bytes,
    /// The result of the body that ended the joining of small chunks.
    next: Option<Option<Result<Frame<Bytes>, BodyError>>>,
    replay: Replay,
    stalls: Stalls,
    /// The chunk waits for flow control, and that was counted.
    stalled: bool,
    /// The body has failed, and the connection got a turn to write what came before.
    failing: bool,
}

/// Counts how often a body had to wait for the other end to take more of it. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Stalls(Arc<AtomicU64>);

/// Whether the body can be sent again.
enum Replay {
    /// Nothing was taken from it yet.
    Untouched,
    /// It was small and is kept whole.
    Kept(Bytes),
    Impossible,
}

/// How sending ended.
#[derive(Debug)]
pub(crate) enum Sent {
    /// The other end gets all of it.
    Complete,
    /// The other end has reset the stream, or the connection has ended.
    Unwanted,
    /// The body failed. The stream was reset, so that the other end sees an abort and no clean end.
    Failed(BodyError),
}

impl Stalls {
    /// Returns the number of stalls so far.
    pub fn count(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

impl SendBody {
    pub(crate) fn new(body: Body, stream: SendStream<Bytes>, stalls: Stalls) -> Self {
        Self {
            body,
            stream,
            chunk: Bytes::new(),
            next: None,
            replay: Replay::Untouched,
            stalls,
            stalled: false,
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

    /// Drops what is kept for a retry.
    pub(crate) fn forget_replay(&mut self) {
        self.replay = Replay::Impossible;
    }

    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Sent> {
        // This also registers the task: a reset is noticed while the body has nothing to send.
        if self.stream.poll_reset(cx).is_ready() {
            return Poll::Ready(Sent::Unwanted);
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
                // An empty chunk is not sent: h2 takes many empty DATA frames for an attack (CVE-2019-9518).
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

    /// Sends as much of the chunk as flow control allows. `None` if there is more to send.
    fn poll_send_chunk(&mut self, cx: &mut Context<'_>) -> Poll<Option<Sent>> {
        let Some(capacity) = ready!(self.poll_capacity(cx)) else {
            return Poll::Ready(Some(Sent::Unwanted));
        };
        let data = self.chunk.split_to(capacity.min(self.chunk.len()));
        let last = self.chunk.is_empty() && self.next.is_none() && self.body.is_end_stream();
        Poll::Ready(match self.stream.send_data(data, last) {
            Err(_) => Some(Sent::Unwanted),
            Ok(()) => last.then_some(Sent::Complete),
        })
    }

    /// A reset discards what h2 has not written yet, even the head. So the connection gets a turn to write it first.
    fn poll_fail(&mut self, error: BodyError, cx: &mut Context<'_>) -> Poll<Sent> {
        if !self.failing {
            self.failing = true;
            self.next = Some(Some(Err(error)));
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        self.stream.send_reset(Reason::INTERNAL_ERROR);
        Poll::Ready(Sent::Failed(error))
    }

    fn finish(&mut self, trailers: Option<HeaderMap>) -> Sent {
        let ended = match trailers {
            Some(trailers) => self.stream.send_trailers(trailers),
            None => self.stream.send_data(Bytes::new(), true),
        };
        if ended.is_ok() { Sent::Complete } else { Sent::Unwanted }
    }

    /// Appends small chunks that are there now to a small chunk. Returns true if the body has no more for now; it wakes
    /// the task then.
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

    /// Waits until flow control allows a part of the chunk. `None` when the stream has ended.
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
