//! One stream, as its connection sees it.

use std::{
    collections::VecDeque,
    task::{Context, Waker},
};

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, response};

use super::error::{Error, Reason};

/// A request and its answer.
#[derive(Debug)]
pub(super) struct Stream {
    pub(super) inflow: Inflow,
    pub(super) outflow: Outflow,
    /// What ended it before its end. What had arrived by then is still there to be read.
    pub(super) failed: Option<Error>,
    /// The halves that somebody holds.
    pub(super) held: Held,
    /// Counts among those that may be open at once.
    pub(super) counts: bool,
}

/// Who holds a stream.
#[derive(Clone, Copy, Debug)]
pub(super) struct Held {
    pub(super) sending: bool,
    pub(super) receiving: bool,
}

/// What arrives, and waits for its reader.
#[derive(Debug)]
pub(super) struct Inflow {
    /// The head of the answer, at the end that asked, until it was taken.
    pub(super) answer: Option<response::Parts>,
    /// The answer has no body, whatever its head says: it is one to HEAD.
    pub(super) bodyless: bool,
    /// A head was here: what else comes is body.
    pub(super) begun: bool,
    chunks: VecDeque<Bytes>,
    /// Small chunks that nobody has read yet. Together, so that each costs what it holds.
    gathered: BytesMut,
    pub(super) trailers: Option<HeaderMap>,
    /// All of it is here.
    pub(super) ended: bool,
    /// How much of what Content-Length says is missing.
    pub(super) due: Option<u64>,
    /// What the other end may still send.
    pub(super) window: i64,
    /// Bytes that were taken, and that the other end was not told of.
    pub(super) untold: u32,
    /// Bytes that are here, or with a reader who is not done with them.
    pub(super) unread: usize,
    /// How often the reader has taken something.
    pub(super) taken: u64,
    /// The reader has taken everything and waits.
    pub(super) awaited: bool,
    pub(super) reader: Option<Waker>,
}

/// What leaves.
#[derive(Debug)]
pub(super) struct Outflow {
    /// What the other end still takes. Negative where it made the window smaller than what is on its way.
    pub(super) window: i64,
    /// Within the window, and not yet handed to the transport.
    pub(super) pending: VecDeque<Pending>,
    /// Bytes of it.
    pub(super) queued: usize,
    /// It stands in line for the transport.
    pub(super) in_line: bool,
    /// The end was said, or stands in line.
    pub(super) ended: bool,
    pub(super) writer: Option<Waker>,
}

/// What a stream has to say.
#[derive(Debug)]
pub(super) enum Pending {
    Data { bytes: Bytes, end: bool },
    Trailers(HeaderMap),
    Reset(Reason),
}

/// Below this size chunks that wait are put together.
const SMALL: usize = 1 << 10;

impl Stream {
    pub(super) fn new(held: Held, inward: u32, outward: u32) -> Self {
        Self {
            inflow: Inflow {
                answer: None,
                bodyless: false,
                begun: false,
                chunks: VecDeque::new(),
                gathered: BytesMut::new(),
                trailers: None,
                ended: false,
                due: None,
                window: inward.into(),
                untold: 0,
                unread: 0,
                taken: 0,
                awaited: false,
                reader: None,
            },
            outflow: Outflow {
                window: outward.into(),
                pending: VecDeque::new(),
                queued: 0,
                in_line: false,
                ended: false,
                writer: None,
            },
            failed: None,
            held,
            counts: true,
        }
    }

    /// Neither end wants to say more.
    pub(super) fn is_closed(&self) -> bool {
        self.failed.is_some() || self.inflow.ended && self.outflow.ended
    }

    /// Nothing more will happen between the two ends.
    pub(super) fn is_through(&self) -> bool {
        self.is_closed() && self.outflow.pending.is_empty()
    }

    /// Nobody will ask for it again.
    pub(super) fn is_forgotten(&self) -> bool {
        !self.held.sending && !self.held.receiving && self.is_through()
    }
}

impl Inflow {
    /// Another chunk has arrived.
    pub(super) fn push(&mut self, chunk: Bytes) {
        self.unread += chunk.len();
        if chunk.len() < SMALL && (!self.chunks.is_empty() || !self.gathered.is_empty()) {
            return self.gathered.extend_from_slice(&chunk);
        }
        if !self.gathered.is_empty() {
            self.chunks.push_back(self.gathered.split().freeze());
        }
        self.chunks.push_back(chunk);
    }

    /// The next chunk, for a reader who will release it.
    pub(super) fn pop(&mut self) -> Option<Bytes> {
        let chunk = match self.chunks.pop_front() {
            Some(chunk) => chunk,
            None if self.gathered.is_empty() => return None,
            None => std::mem::take(&mut self.gathered).freeze(),
        };
        self.taken += 1;
        Some(chunk)
    }

    /// All of the body, if all of it is here in one piece.
    pub(super) fn pop_whole(&mut self) -> Option<Bytes> {
        let whole =
            self.ended && self.trailers.is_none() && self.chunks.len() <= 1 && self.gathered.is_empty();
        whole.then(|| self.pop().unwrap_or_default())
    }

    /// There is nothing to be taken, and nothing will come.
    pub(super) fn is_empty_for_good(&self) -> bool {
        self.ended && self.chunks.is_empty() && self.gathered.is_empty() && self.trailers.is_none()
    }

    /// Drops what nobody will read.
    pub(super) fn discard(&mut self) {
        self.chunks = VecDeque::new();
        self.gathered = BytesMut::new();
        self.unread = 0;
    }
}

impl Outflow {
    /// Drops what was not handed to the transport: so many bytes, which the connection's window has again.
    #[must_use]
    pub(super) fn discard(&mut self) -> usize {
        self.pending = VecDeque::new();
        std::mem::take(&mut self.queued)
    }
}

/// Remembers whom to wake.
pub(super) fn register(place: &mut Option<Waker>, cx: &Context<'_>) {
    match place {
        Some(waker) => waker.clone_from(cx.waker()),
        None => *place = Some(cx.waker().clone()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn inflow() -> Inflow {
        Stream::new(Held { sending: true, receiving: true }, 1 << 20, 1 << 20).inflow
    }

    #[test]
    fn chunks_come_out_in_their_order_and_small_ones_together() {
        let mut inflow = inflow();
        let large = Bytes::from(vec![1; SMALL]);
        for chunk in ["first".into(), "second ".into(), "third".into(), large.clone(), "last".into()] {
            inflow.push(chunk);
        }
        let out: Vec<_> = std::iter::from_fn(|| inflow.pop()).collect();
        assert_eq!(out, ["first".into(), "second third".into(), large, Bytes::from("last")]);
        assert_eq!(inflow.taken, 4);
    }

    #[test]
    fn a_million_bytes_that_nobody_reads_cost_little_more_than_a_million_bytes() {
        let mut inflow = inflow();
        for _ in 0..1_000_000 {
            inflow.push(Bytes::from_static(b"x"));
        }
        assert_eq!((inflow.unread, inflow.chunks.len()), (1_000_000, 1));
        assert!(inflow.gathered.capacity() < 3_000_000);
    }

    #[test]
    fn only_what_is_complete_is_whole() {
        let mut inflow = inflow();
        inflow.push("all of it".into());
        assert_eq!(inflow.pop_whole(), None);
        inflow.ended = true;
        assert_eq!(inflow.pop_whole().unwrap(), "all of it");
        assert!(inflow.is_empty_for_good());
        assert_eq!(inflow.pop_whole().unwrap(), "");

        let mut inflow = self::inflow();
        inflow.ended = true;
        inflow.trailers = Some(HeaderMap::new());
        assert_eq!(inflow.pop_whole(), None);
    }
}
