//! A connection as it is shared by whoever serves it and the body of the request that is served. Both live in one task.

use std::{
    io::{self, IoSlice},
    mem,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use bytes::{Buf as _, Bytes, BytesMut};
use http_body::Frame;
use http1::{Decoder, Error, Length, Queue, Received};
use parking_lot::{Mutex, MutexGuard};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::RequestBody;

/// How much is read at once from a caller who sends much.
const MOST_AT_ONCE: usize = 64 << 10;

/// How much of a body that nobody wanted is thrown away so that its connection can go on.
const DRAINED: usize = 64 << 10;

const CONTINUE: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";

pub(in crate::callers) trait Io: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Io for T {}

/// Cheap to clone. Never locked while somebody else is polled.
#[derive(Clone)]
pub(super) struct Wire(Arc<Mutex<State>>);

/// The connection, and how far the request has come.
pub(super) struct State {
    io: Box<dyn Io>,
    pub(super) received: Received,
    /// What is due of the request's body.
    body: Decoder,
    /// What came of it was no body.
    broken: bool,
    /// The caller waits for a `100 Continue`.
    expects: bool,
    /// Which request: a body that outlives its answer reads nothing of the next.
    number: u64,
    queue: Queue,
}

impl Wire {
    pub(super) fn new(io: Box<dyn Io>) -> Self {
        Self(Arc::new(Mutex::new(State {
            io,
            received: Received::new(MOST_AT_ONCE),
            body: Decoder::new(Length::Exactly(0)),
            broken: false,
            expects: false,
            number: 0,
            queue: Queue::default(),
        })))
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock()
    }

    /// Begins a request with a body of this length. `None` if that is empty.
    pub(super) fn begin(&self, length: Length, expects: bool) -> Option<RequestBody> {
        if length == Length::Exactly(0) {
            return None;
        }
        let mut state = self.lock();
        state.body = Decoder::new(length);
        state.expects = expects;
        Some(RequestBody::new(self.clone(), state.number))
    }

    /// Gives the connection away, with all that was received.
    pub(super) fn release(&self) -> Rewound {
        let state = &mut *self.lock();
        let io = mem::replace(&mut state.io, Box::new(tokio::io::empty()));
        Rewound { early: state.received.bytes.split(), io }
    }

    /// Throws away all that comes. Ready when nothing does.
    pub(super) fn poll_discard(&self, cx: &mut Context<'_>) -> Poll<()> {
        let mut state = self.lock();
        while let Poll::Ready(read) = state.poll_read(cx) {
            if !matches!(read, Ok(true)) {
                return Poll::Ready(());
            }
            state.received.bytes.clear();
        }
        Poll::Pending
    }
}

impl State {
    /// Reads more. False at the end.
    pub(super) fn poll_read(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<bool>> {
        self.received.read(cx, &mut self.io)
    }

    /// Gives back the room that a long message took.
    pub(super) fn rest(&mut self) {
        self.received.rest();
        self.queue.rest();
    }

    /// The next frame of the body of request `number`.
    pub(super) fn poll_frame(
        &mut self,
        number: u64,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Error>>> {
        if self.broken || self.number != number {
            return Poll::Ready(Some(Err(Error::Closed)));
        }
        let polled = self.poll_data(cx);
        self.broken = matches!(polled, Poll::Ready(Err(_)));
        polled.map(|data| match data {
            Ok(Some(data)) => Some(Ok(Frame::data(data))),
            Ok(None) => self.body.trailers().map(|trailers| Ok(Frame::trailers(trailers))),
            Err(error) => Some(Err(error)),
        })
    }

    fn poll_data(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Bytes>, Error>> {
        loop {
            if let Some(data) = self.body.take(&mut self.received.bytes)? {
                return Poll::Ready(Ok(Some(data)));
            }
            if self.body.is_done() {
                return Poll::Ready(Ok(None));
            }
            if mem::take(&mut self.expects) {
                self.queue.text(|text| text.extend_from_slice(CONTINUE));
            }
            if !self.queue.is_empty() && self.queue.poll_write(cx, &mut self.io)?.is_ready() {
                let _ = Pin::new(&mut self.io).poll_flush(cx)?;
            }
            if !ready!(self.poll_read(cx))? {
                return Poll::Ready(Err(Error::Closed));
            }
        }
    }

    /// How much is due of the body of request `number`, if that is known.
    pub(super) fn due(&self, number: u64) -> Option<u64> {
        self.body.due().filter(|_| self.number == number)
    }

    /// Whether all of the body of request `number` was read.
    pub(super) fn is_over(&self, number: u64) -> bool {
        self.number == number && self.body.is_over()
    }

    /// Ready when the caller has left, or has said that it will say nothing more, which no caller does who waits for an
    /// answer. Nobody looks while a body is due: whoever reads that will notice.
    pub(super) fn poll_gone(&mut self, cx: &mut Context<'_>) -> Poll<Error> {
        if !self.body.is_over() || self.broken || !self.received.bytes.is_empty() {
            return Poll::Pending;
        }
        match ready!(self.poll_read(cx)) {
            // The beginning of the next request.
            Ok(true) => Poll::Pending,
            Ok(false) => Poll::Ready(Error::Closed),
            Err(error) => Poll::Ready(error.into()),
        }
    }

    /// The answer begins: it is too late for a `100 Continue`.
    pub(super) fn answer(&mut self) -> Queue {
        self.expects = false;
        mem::take(&mut self.queue)
    }

    /// The answer was written.
    pub(super) fn answered(&mut self, queue: Queue) {
        self.queue = queue;
    }

    /// The request has ended. False if more is due of its body than is worth to wait for.
    pub(super) fn end(&mut self, cx: &mut Context<'_>) -> bool {
        let drained = self.drain(cx);
        self.number += 1;
        drained
    }

    /// Throws away what is there of the body. False if more is due.
    pub(super) fn drain(&mut self, cx: &mut Context<'_>) -> bool {
        self.expects = false;
        let mut drained = 0;
        while !self.broken && !self.body.is_over() && drained < DRAINED {
            match self.poll_frame(self.number, cx) {
                Poll::Ready(Some(Ok(frame))) => drained += frame.data_ref().map_or(0, Bytes::len),
                _ => break,
            }
        }
        !self.broken && self.body.is_over()
    }

    pub(super) fn poll_shutdown(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}

/// For whoever writes an answer while its body may read the request's.
impl AsyncWrite for Wire {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.lock().io).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.lock().io).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.lock().io.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.lock().io).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.lock().io).poll_shutdown(cx)
    }
}

/// A connection that is somebody else's from here on: what was received first, and then whatever comes.
pub(in crate::callers) struct Rewound {
    early: BytesMut,
    io: Box<dyn Io>,
}

impl AsyncRead for Rewound {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.early.is_empty() {
            return Pin::new(&mut self.io).poll_read(cx, buf);
        }
        let early = self.early.len().min(buf.remaining());
        buf.put_slice(&self.early[..early]);
        self.early.advance(early);
        if self.early.is_empty() {
            // It may last, and its beginning need not.
            self.early = BytesMut::new();
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Rewound {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}
