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
use http::HeaderMap;
use http_body::{Body as _, Frame};

use crate::{
    Body, BodyError,
    http2::{Error, Reason, Sending},
};

/// A body being sent. A future in spirit: whoever waits for the other direction polls it along.
pub(crate) struct Pump {
    body: Body,
    stream: Sending,
    /// Taken from the body, not yet accepted by flow control.
    chunk: Bytes,
    /// Taken from the body while small chunks were gathered, and not one of them.
    held: Option<Option<Result<Frame<Bytes>, BodyError>>>,
    taken: Taken,
    stalls: Stalls,
    /// The chunk waits for room, and that was counted.
    stalled: bool,
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

/// Chunks below this size are sent together, if there are several now: a frame costs both ends the same, whatever it
/// carries.
const SMALL: usize = 4 << 10;

/// How sending ended.
#[derive(Debug)]
pub(crate) enum Sent {
    /// All of it, and the end was marked.
    All,
    /// The other end, or the connection, wants no more of it.
    Unwanted,
    /// The body itself failed; the stream was aborted so that the other end sees an abort and no clean end.
    Broken(BodyError),
}

impl Stalls {
    /// How often, so far.
    pub fn count(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

impl Pump {
    pub(crate) fn new(body: Body, stream: Sending, stalls: Stalls) -> Self {
        Self { body, stream, chunk: Bytes::new(), held: None, taken: Taken::Nothing, stalls, stalled: false }
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
        loop {
            if !self.chunk.is_empty() {
                let dry = self.gather(cx);
                let last = self.held.is_none() && self.body.is_end_stream();
                if ready!(self.poll_send(last, cx)).is_err() {
                    return Poll::Ready(Sent::Unwanted);
                }
                if last && self.chunk.is_empty() {
                    return Poll::Ready(Sent::All);
                }
                if dry && self.chunk.is_empty() {
                    return self.poll_unwanted(cx);
                }
                continue;
            }

            let frame = match self.held.take() {
                Some(frame) => frame,
                None => match Pin::new(&mut self.body).poll_frame(cx) {
                    Poll::Ready(frame) => frame,
                    Poll::Pending => return self.poll_unwanted(cx),
                },
            };
            let frame = match frame {
                Some(Ok(frame)) => frame,
                Some(Err(error)) => {
                    self.stream.abort(Reason::INTERNAL_ERROR);
                    return Poll::Ready(Sent::Broken(error));
                }
                None => return Poll::Ready(self.finish(None)),
            };
            let first = matches!(self.taken, Taken::Nothing);
            self.taken = Taken::TooMuch;
            match frame.into_data() {
                // An empty chunk stays here: an end that gets many of those takes it for an attack (CVE-2019-9518).
                Ok(data) => {
                    if first && data.len() <= KEPT && self.body.is_end_stream() {
                        self.taken = Taken::Everything(data.clone());
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

    /// The body has nothing to send for now: a receiver who leaves meanwhile is noticed.
    fn poll_unwanted(&self, cx: &Context<'_>) -> Poll<Sent> {
        self.stream.poll_unwanted(cx).map(|_| Sent::Unwanted)
    }

    fn finish(&self, trailers: Option<HeaderMap>) -> Sent {
        match self.stream.finish(trailers) {
            Ok(()) => Sent::All,
            Err(_) => Sent::Unwanted,
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

    /// Sends as much of the chunk as the other end takes now.
    fn poll_send(&mut self, last: bool, cx: &Context<'_>) -> Poll<Result<(), Error>> {
        let sent = self.stream.poll_send(&mut self.chunk, last, cx);
        if sent.is_pending() && !self.stalled {
            self.stalls.0.fetch_add(1, Relaxed);
        }
        self.stalled = sent.is_pending();
        sent
    }
}
