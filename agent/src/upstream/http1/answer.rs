//! The body of an answer, read from its connection by whoever polls it.

use std::{
    fmt,
    future::poll_fn,
    mem,
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http_body::{Frame, SizeHint};
use http1::{Decoder, Length, Outgoing};
use tunnel::Body;

use super::{super::pool::Lease, Error};

/// The body of an answer. Dropping it before its end closes the connection, which is how HTTP/1.1 cancels.
#[derive(Default)]
pub struct Answer(State);

#[derive(Default)]
enum State {
    /// All of it was read.
    #[default]
    Ended,
    /// All of it came with the head.
    Whole(Bytes),
    Reading(Box<Reading>),
}

struct Reading {
    lease: Lease,
    outgoing: Outgoing<Body>,
    decoder: Decoder,
    reusable: bool,
}

impl Answer {
    /// What follows a head, on the connection that it came on.
    pub(super) fn new(mut lease: Lease, outgoing: Outgoing<Body>, length: Length, reusable: bool) -> Self {
        let received = &mut lease.connection.received.bytes;
        if let Length::Exactly(length) = length
            && outgoing.is_done()
            && received.len() as u64 >= length
        {
            let data = received.split_to(received.len().min(length as usize)).freeze();
            // More than was announced is an answer that nobody asked for: no next one could be told from it.
            if reusable && received.is_empty() {
                lease.give_back();
            }
            return Self(if data.is_empty() { State::Ended } else { State::Whole(data) });
        }
        Self(State::Reading(Box::new(Reading { lease, outgoing, decoder: Decoder::new(length), reusable })))
    }
}

impl Reading {
    /// The next piece of data; `None` at the end.
    fn poll_data(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Bytes>, Error>> {
        if !self.outgoing.is_done()
            && let Poll::Ready(sent) = self.outgoing.poll(cx, &mut self.lease.connection)
        {
            sent?;
        }
        let connection = &mut self.lease.connection;
        loop {
            if let Some(data) = self.decoder.take(&mut connection.received.bytes)? {
                return Poll::Ready(Ok(Some(data)));
            }
            if self.decoder.is_done() {
                return Poll::Ready(Ok(None));
            }
            if !ready!(connection.read(cx))? {
                return Poll::Ready(if self.decoder.ends_with_the_connection() {
                    Ok(None)
                } else {
                    Err(Error::Closed)
                });
            }
        }
    }

    /// Gives the connection back. A request that is still on its way gets a task to finish in, and the connection
    /// waits for it.
    fn finish(mut self: Box<Self>) {
        if !self.reusable || !self.lease.connection.received.bytes.is_empty() {
            return;
        }
        if self.outgoing.is_done() {
            return self.lease.give_back();
        }
        tokio::spawn(async move {
            match poll_fn(|cx| self.outgoing.poll(cx, &mut self.lease.connection)).await {
                Ok(()) => self.lease.give_back(),
                Err(error) => {
                    tracing::debug!(%error, "the rest of a request that was answered already was not sent")
                }
            }
        });
    }
}

impl http_body::Body for Answer {
    type Data = Bytes;
    type Error = Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Error>>> {
        let State::Reading(reading) = &mut self.0 else {
            return Poll::Ready(match mem::take(&mut self.0) {
                State::Whole(data) => Some(Ok(Frame::data(data))),
                _ => None,
            });
        };
        let polled = ready!(reading.poll_data(cx));
        let trailers = match polled {
            Ok(None) => reading.decoder.trailers(),
            _ => None,
        };
        let ended = match &polled {
            Ok(Some(_)) => reading.decoder.is_over(),
            Ok(None) | Err(_) => true,
        };
        if ended
            && let State::Reading(reading) = mem::take(&mut self.0)
            && polled.is_ok()
        {
            reading.finish();
        }
        Poll::Ready(match polled {
            Ok(Some(data)) => Some(Ok(Frame::data(data))),
            Ok(None) => trailers.map(|trailers| Ok(Frame::trailers(trailers))),
            Err(error) => Some(Err(error)),
        })
    }

    fn is_end_stream(&self) -> bool {
        matches!(self.0, State::Ended)
    }

    fn size_hint(&self) -> SizeHint {
        match &self.0 {
            State::Ended => SizeHint::with_exact(0),
            State::Whole(data) => SizeHint::with_exact(data.len() as u64),
            State::Reading(reading) => {
                reading.decoder.due().map_or_else(SizeHint::default, SizeHint::with_exact)
            }
        }
    }
}

impl fmt::Debug for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match self.0 {
            State::Ended => "ended",
            State::Whole(_) => "whole",
            State::Reading(_) => "reading",
        };
        f.debug_tuple("Answer").field(&state).finish()
    }
}

impl From<Answer> for Body {
    fn from(answer: Answer) -> Self {
        match answer.0 {
            State::Ended => Self::empty(),
            State::Whole(data) => data.into(),
            State::Reading(reading) => Self::new(Answer(State::Reading(reading))),
        }
    }
}
