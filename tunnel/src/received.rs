//! What is received on one stream, and a grip on it for others than its reader.

use std::{
    fmt,
    sync::Arc,
    task::{Context, Poll},
};

use bytes::Bytes;
use h2::{FlowControl, RecvStream};
use http::HeaderMap;
use parking_lot::Mutex;

use crate::{BodyError, pump::Pump};

/// The receiving half of a stream. Dropping it cancels what has not arrived.
pub(crate) struct Received(Grip);

/// Looks at a stream from beside its reader, and ends it. Cheap to clone; does not keep the stream alive.
#[derive(Clone)]
pub struct Grip(Arc<Mutex<State>>);

struct State {
    /// `None` once it was given up.
    stream: Option<RecvStream>,
    /// The request's body, while it is still being sent. h2 cancels a stream once nobody holds either half of it.
    sending: Option<Pump>,
    /// How often the reader has taken something.
    taken: u64,
    /// The reader has taken everything and waits.
    awaited: bool,
}

/// What is known of a stream at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Look {
    /// Bytes that have arrived and wait for their reader; none once the stream is over.
    pub unread: usize,
    /// How often the reader has taken something.
    pub taken: u64,
    /// The reader has taken everything and waits for more: it is not the one who is slow.
    pub awaited: bool,
}

impl Grip {
    /// How it stands.
    pub fn look(&self) -> Look {
        let state = &mut *self.0.lock();
        let unread = state.stream.as_mut().map_or(0, |stream| stream.flow_control().used_capacity());
        Look { unread, taken: state.taken, awaited: state.awaited }
    }

    /// Gives up what waits and what is still to come. The reader gets an error, the sender a reset. It works where the
    /// reader has stopped reading.
    pub fn cut(&self) {
        let mut state = self.0.lock();
        let halves = (state.stream.take(), state.sending.take());
        drop(state);
        drop(halves);
    }
}

impl Received {
    pub(crate) fn new(stream: RecvStream, sending: Option<Pump>) -> Self {
        let state = State { stream: Some(stream), sending, taken: 0, awaited: false };
        Self(Grip(Arc::new(Mutex::new(state))))
    }

    pub(crate) fn grip(&self) -> Grip {
        self.0.clone()
    }

    pub(crate) fn is_end_stream(&self) -> bool {
        let state = self.0.0.lock();
        state.sending.is_none() && state.stream.as_ref().is_some_and(RecvStream::is_end_stream)
    }

    /// Moves the request's body on: a response may come before the request has ended, and whoever reads the response
    /// then moves the request too.
    pub(crate) fn poll_sending(&self, cx: &mut Context<'_>) {
        let state = &mut *self.0.0.lock();
        if state.sending.as_mut().is_some_and(|pump| pump.poll(cx).is_ready()) {
            state.sending = None;
        }
    }

    pub(crate) fn poll_data(&self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, BodyError>>> {
        let state = &mut *self.0.0.lock();
        let Some(stream) = &mut state.stream else {
            return Poll::Ready(Some(Err(BodyError::Cut)));
        };
        let polled = stream.poll_data(cx).map_err(BodyError::Tunnel);
        state.taken += u64::from(polled.is_ready());
        state.awaited = polled.is_pending();
        polled
    }

    pub(crate) fn poll_trailers(&self, cx: &mut Context<'_>) -> Poll<Result<Option<HeaderMap>, BodyError>> {
        match &mut self.0.0.lock().stream {
            Some(stream) => stream.poll_trailers(cx).map_err(BodyError::Tunnel),
            None => Poll::Ready(Err(BodyError::Cut)),
        }
    }

    /// The reader has taken this much: the sender may send as much again.
    pub(crate) fn release(&self, bytes: usize) -> Result<(), BodyError> {
        let mut state = self.0.0.lock();
        let stream = state.stream.as_mut().ok_or(BodyError::Cut)?;
        FlowControl::release_capacity(stream.flow_control(), bytes).map_err(BodyError::Tunnel)
    }
}

impl From<RecvStream> for Received {
    fn from(stream: RecvStream) -> Self {
        Self::new(stream, None)
    }
}

impl Drop for Received {
    fn drop(&mut self) {
        // A reader who is done is not one who is slow.
        self.0.0.lock().awaited = true;
        self.0.cut();
    }
}

impl fmt::Debug for Received {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Received")
    }
}

impl fmt::Debug for Grip {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Grip")
    }
}
