//! Moves a body into one stream of the tunnel, at the pace at which the other end takes it.

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
use http_body::{Body as _, Frame};

use crate::{Body, BodyError};

/// A body being sent. A future in spirit: whoever waits for the other direction polls it along.
pub(crate) struct Pump {
    body: Body,
    stream: SendStream<Bytes>,
    /// Taken from the body, not yet accepted by flow control.
    chunk: Bytes,
    /// Taken from the body while small chunks were gathered, and not one of them.
    held: Option<Option<Result<Frame<Bytes>, BodyError>>>,
    taken: Taken,
    stalls: Stalls,
    /// The chunk waits for room, and that was counted.
    stalled: bool,
    /// The body has failed, and what was sent before had its turn.
    failing: bool,
}

/// Counts how often a body had to wait for the other end to take more of it. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Stalls(Arc<AtomicU64>);

/// What was taken from the body so far: whether the request can be sent again.
enum Taken {
    Nothing,
    /// All of a small body, kept until somebody has answered.
    Everything(Bytes),
    /// More than is kept.
    TooMuch,
}

/// Most bytes of a body that are kept to be sent again. Most bodies of the Kubernetes API are smaller, and one that is
/// not kept only means an error where there might have been a retry.
const KEPT: usize = 64 << 10;

/// Chunks below this size are sent together, if there are several now. Each frame that waits for its reader costs the
/// other end some 256 bytes, whatever it carries: 4 MiB of single bytes would cost it 1 GiB.
const SMALL: usize = 4 << 10;

/// How sending ended.
#[derive(Debug)]
pub(crate) enum Sent {
    /// All of it, and the end was marked.
    All,
    /// The other end, or the connection, wants no more of it.
    Unwanted,
    /// The body itself failed; the stream was reset so that the other end sees an abort and no clean end.
    Broken(BodyError),
}

impl Stalls {
    /// How often, so far.
    pub fn count(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

impl Pump {
    pub(crate) fn new(body: Body, stream: SendStream<Bytes>, stalls: Stalls) -> Self {
        Self {
            body,
            stream,
            chunk: Bytes::new(),
            held: None,
            taken: Taken::Nothing,
            stalls,
            stalled: false,
            failing: false,
        }
    }

    /// The body as it was, if it is still known.
    pub(crate) fn into_whole(self) -> Option<Body> {
        match self.taken {
            Taken::Nothing => Some(self.body),
            Taken::Everything(bytes) => Some(bytes.into()),
            Taken::TooMuch => None,
        }
    }

    /// Nobody needs to send it again.
    pub(crate) fn forget(&mut self) {
        self.taken = Taken::TooMuch;
    }

    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Sent> {
        // Registers for the reset too: a receiver who left is noticed while the body has nothing to send.
        if self.stream.poll_reset(cx).is_ready() {
            return Poll::Ready(Sent::Unwanted);
        }
        loop {
            if !self.chunk.is_empty() {
                let dry = self.gather(cx);
                let Some(room) = ready!(self.poll_room(cx)) else {
                    return Poll::Ready(Sent::Unwanted);
                };
                let data = self.chunk.split_to(room.min(self.chunk.len()));
                let last = self.chunk.is_empty() && self.held.is_none() && self.body.is_end_stream();
                if self.stream.send_data(data, last).is_err() {
                    return Poll::Ready(Sent::Unwanted);
                }
                if last {
                    return Poll::Ready(Sent::All);
                }
                if dry && self.chunk.is_empty() {
                    return Poll::Pending;
                }
                continue;
            }

            let frame = match self.held.take() {
                Some(frame) => frame,
                None => ready!(Pin::new(&mut self.body).poll_frame(cx)),
            };
            let frame = match frame {
                Some(Ok(frame)) => frame,
                // A reset takes back all that is not on its way, be it the head: the connection's task goes first.
                Some(Err(error)) if !self.failing => {
                    self.failing = true;
                    self.held = Some(Some(Err(error)));
                    cx.waker().wake_by_ref();
                    return Poll::Pending;
                }
                Some(Err(error)) => {
                    self.stream.send_reset(Reason::INTERNAL_ERROR);
                    return Poll::Ready(Sent::Broken(error));
                }
                None => {
                    let ended = self.stream.send_data(Bytes::new(), true);
                    return Poll::Ready(if ended.is_ok() { Sent::All } else { Sent::Unwanted });
                }
            };
            let first = matches!(self.taken, Taken::Nothing);
            self.taken = Taken::TooMuch;
            match frame.into_data() {
                // An empty chunk stays here: a hundred empty DATA frames are fatal to the connection (h2 0.4.16).
                Ok(data) => {
                    if first && data.len() <= KEPT && self.body.is_end_stream() {
                        self.taken = Taken::Everything(data.clone());
                    }
                    self.chunk = data;
                }
                Err(frame) => {
                    if let Ok(trailers) = frame.into_trailers() {
                        let ended = self.stream.send_trailers(trailers);
                        return Poll::Ready(if ended.is_ok() { Sent::All } else { Sent::Unwanted });
                    }
                }
            }
        }
    }

    /// Adds the small chunks that are there now to a small chunk. True if the body has nothing more for now, and will
    /// wake us.
    fn gather(&mut self, cx: &mut Context<'_>) -> bool {
        let mut gathered = BytesMut::new();
        let mut dry = false;
        while self.held.is_none()
            && self.chunk.len().max(gathered.len()) < SMALL
            && !self.body.is_end_stream()
        {
            match Pin::new(&mut self.body).poll_frame(cx) {
                Poll::Pending => {
                    dry = true;
                    break;
                }
                Poll::Ready(Some(Ok(frame))) if frame.data_ref().is_some_and(|data| data.len() < SMALL) => {
                    if gathered.is_empty() {
                        gathered.extend_from_slice(&self.chunk);
                    }
                    gathered.extend_from_slice(frame.data_ref().expect("just asked"));
                }
                Poll::Ready(other) => self.held = Some(other),
            }
        }
        if !gathered.is_empty() {
            self.chunk = gathered.freeze();
            self.taken = Taken::TooMuch;
        }
        dry
    }

    /// How much of the chunk the other end takes now; `None` when it takes nothing any more.
    fn poll_room(&mut self, cx: &mut Context<'_>) -> Poll<Option<usize>> {
        self.stream.reserve_capacity(self.chunk.len());
        loop {
            let room = self.stream.capacity();
            if room > 0 {
                self.stalled = false;
                return Poll::Ready(Some(room));
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
