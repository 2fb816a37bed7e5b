//! Moves a body into one stream of the tunnel, at the pace at which the other end takes it.

use std::{
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use h2::{Reason, SendStream};
use http_body::Body as _;

use crate::Body;

/// A body being sent. A future in spirit: whoever waits for the other direction polls it along.
pub(crate) struct Pump {
    body: Body,
    stream: SendStream<Bytes>,
    /// Taken from the body, not yet accepted by flow control.
    chunk: Bytes,
    /// Anything was taken from the body: the request cannot be sent again.
    started: bool,
}

/// How sending ended.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Sent {
    /// All of it, and the end was marked.
    All,
    /// The other end, or the connection, wants no more of it.
    Unwanted,
    /// The body itself failed; the stream was reset so that the other end sees an abort and no clean end.
    Broken,
}

impl Pump {
    pub(crate) fn new(body: Body, stream: SendStream<Bytes>) -> Self {
        Self { body, stream, chunk: Bytes::new(), started: false }
    }

    /// The body, if nothing was taken from it yet.
    pub(crate) fn into_untouched(self) -> Option<Body> {
        (!self.started).then_some(self.body)
    }

    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Sent> {
        // Registers for the reset too: a receiver who left is noticed while the body has nothing to send.
        if self.stream.poll_reset(cx).is_ready() {
            return Poll::Ready(Sent::Unwanted);
        }
        loop {
            if !self.chunk.is_empty() {
                let Some(room) = ready!(self.poll_room(cx)) else {
                    return Poll::Ready(Sent::Unwanted);
                };
                let data = self.chunk.split_to(room.min(self.chunk.len()));
                let last = self.chunk.is_empty() && self.body.is_end_stream();
                if self.stream.send_data(data, last).is_err() {
                    return Poll::Ready(Sent::Unwanted);
                }
                if last {
                    return Poll::Ready(Sent::All);
                }
                continue;
            }

            let frame = match ready!(Pin::new(&mut self.body).poll_frame(cx)) {
                Some(Ok(frame)) => frame,
                Some(Err(_)) => {
                    self.stream.send_reset(Reason::INTERNAL_ERROR);
                    return Poll::Ready(Sent::Broken);
                }
                None => {
                    let ended = self.stream.send_data(Bytes::new(), true);
                    return Poll::Ready(if ended.is_ok() { Sent::All } else { Sent::Unwanted });
                }
            };
            self.started = true;
            match frame.into_data() {
                // An empty chunk stays here: a hundred empty DATA frames are fatal to the connection (h2 0.4.16).
                Ok(data) => self.chunk = data,
                Err(frame) => {
                    if let Ok(trailers) = frame.into_trailers() {
                        let ended = self.stream.send_trailers(trailers);
                        return Poll::Ready(if ended.is_ok() { Sent::All } else { Sent::Unwanted });
                    }
                }
            }
        }
    }

    /// How much of the chunk the other end takes now; `None` when it takes nothing any more.
    fn poll_room(&mut self, cx: &mut Context<'_>) -> Poll<Option<usize>> {
        self.stream.reserve_capacity(self.chunk.len());
        loop {
            let room = self.stream.capacity();
            if room > 0 {
                return Poll::Ready(Some(room));
            }
            match ready!(self.stream.poll_capacity(cx)) {
                Some(Ok(_)) => {}
                Some(Err(_)) | None => return Poll::Ready(None),
            }
        }
    }
}
