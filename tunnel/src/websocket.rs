//! A WebSocket (RFC 6455) as a byte stream, by tungstenite.
//!
//! The payloads of binary messages are the bytes of the stream; boundaries of messages have no meaning. Text messages are
//! refused, and no extension is negotiated.

use std::{
    io::{self, ErrorKind, IoSlice, Read, Write},
    mem,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::Bytes;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::{Instant, Sleep, sleep},
};
use tungstenite::{
    Error, Message,
    error::ProtocolError,
    protocol::{CloseFrame, WebSocketContext, frame::coding::CloseCode},
};

pub use tungstenite::protocol::Role;

use crate::{
    ReadAhead, ReadBudget, config,
    frame_queue::{FrameQueue, MESSAGE_HEADER},
    keepalive::KeepaliveState,
    overhead::{FrameScanner, OverheadCounter, OverheadLimit, PREFACE},
};

/// Time that the other end has to close after this end. It may still receive the last response.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(30);

/// Most bytes that this end reads after it has closed: the rest of what was on the way.
const MAX_READ_AFTER_CLOSE: usize = 1 << 20;

/// The cost of one message, and of one HTTP/2 frame, in bytes that take as long to process.
const FRAME_COST: usize = 1024;

/// The further cost of a ping, which is answered.
const PING_COST: usize = 4096;

/// The byte stream inside a WebSocket whose handshake is complete.
///
/// Reads also write, because they answer pings. So one task must poll both directions, as that of an HTTP/2 connection does.
/// [`WebSocketStream`](https://docs.rs/tokio-tungstenite) has two wakers, for two tasks; this type has none.
#[derive(Debug)]
pub struct WebSocket<T> {
    io: ReadAhead<T>,
    context: WebSocketContext,
    /// tungstenite needs more bytes for the next message. It clears its buffer before each read, so it reads only when
    /// there are bytes.
    starved: bool,
    /// The part of a message that the reader has not taken yet.
    unread: Bytes,
    queue: FrameQueue,
    /// The queue has frames whose flush was deferred.
    is_flush_due: bool,
    /// Set once this end closes: the deadline for the close frame of the other end.
    closing: Option<Pin<Box<Sleep>>>,
    /// Bytes that were read since then.
    read_after_close: usize,
    /// The end of the bytes from the other end, if they have ended.
    end: Option<StreamEnd>,
    role: Role,
    keepalive_state: Arc<KeepaliveState>,
    last_read: LastRead,
    /// Bytes of the last read from the socket that were in no message yet.
    unparsed: usize,
    budget: ReadBudget,
    scanner: FrameScanner,
    overhead: OverheadLimit,
    /// The frames of HTTP/2 count as overhead, too.
    counts_http2: bool,
}

/// The last read from the socket.
#[derive(Debug, Default)]
struct LastRead {
    bytes: usize,
    /// Bytes of WebSocket pings and pongs among them.
    control: usize,
    /// The time of the last read of HTTP/2 before this one.
    previous: u64,
}

/// The end of the bytes from the other end.
#[derive(Clone, Copy, Debug)]
enum StreamEnd {
    /// A close frame with the code of a normal closure (RFC 6455 section 7.4.1).
    Closed,
    /// Another close frame, or the end of the byte stream below.
    Aborted,
}

impl<T> WebSocket<T> {
    /// Wraps a byte stream after the handshake. `early` holds the bytes that were read after the head of the handshake.
    pub fn new(io: T, early: Bytes, role: Role) -> Self {
        Self {
            io: ReadAhead::with_early(io, early),
            context: WebSocketContext::new(role, Some(config::websocket())),
            starved: true,
            unread: Bytes::new(),
            queue: FrameQueue::new(role),
            is_flush_due: false,
            closing: None,
            read_after_close: 0,
            end: None,
            role,
            keepalive_state: Arc::default(),
            last_read: LastRead::default(),
            unparsed: 0,
            budget: ReadBudget::default(),
            scanner: FrameScanner::new(0),
            overhead: OverheadLimit::new(Instant::now()),
            counts_http2: true,
        }
    }

    /// Makes agentk the client of HTTP/2, as it is in GitLab's protocol. Only the frames of the WebSocket count as overhead then: those
    /// of HTTP/2 are limited by the [`OverheadStream`](crate::OverheadStream) above it. Its limit is that of a stream, too: agentk sends its
    /// token later, inside of the WebSocket.
    #[must_use]
    pub fn with_gitlab_roles(mut self) -> Self {
        if self.role == Role::Server {
            self.expect_preface();
        }
        self.counts_http2 = false;
        self.overhead = OverheadLimit::of_stream(Instant::now());
        self
    }

    /// Counts the frames of HTTP/2 after the preface of its client. Either end of the WebSocket may be that client, because kas and agentk
    /// can both open the WebSocket.
    pub(crate) fn expect_preface(&mut self) {
        self.scanner = FrameScanner::new(PREFACE);
    }

    pub(crate) fn keepalive_state(&self) -> Arc<KeepaliveState> {
        Arc::clone(&self.keepalive_state)
    }

    pub(crate) fn overhead(&self) -> OverheadCounter {
        self.overhead.counter().clone()
    }
}

impl<T: AsyncRead + AsyncWrite + Unpin> WebSocket<T> {
    /// Runs an operation of tungstenite on the byte stream. Returns `Pending` if the stream would block.
    fn poll_with<R>(
        &mut self,
        operation: impl FnOnce(&mut WebSocketContext, &mut BlockingStream<'_, T>) -> Result<R, Error>,
    ) -> Poll<Result<R, Error>> {
        let mut stream = BlockingStream { io: &mut self.io, queue: &mut self.queue };
        match operation(&mut self.context, &mut stream) {
            Err(Error::Io(error)) if error.kind() == ErrorKind::WouldBlock => Poll::Pending,
            result => Poll::Ready(result),
        }
    }

    /// Reads the next message with a payload. Returns no bytes or an error at the end of the stream.
    fn poll_message(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Bytes>> {
        let end = loop {
            if let Some(end) = self.end {
                break end;
            }
            ready!(self.budget.poll(cx));
            if self.starved {
                match self.io.poll_fill(cx) {
                    Poll::Pending => {
                        self.budget.reset();
                        return Poll::Pending;
                    }
                    Poll::Ready(Ok(filled)) => self.on_received(filled)?,
                    // The end of a TLS connection without `close_notify`.
                    Poll::Ready(Err(error)) if error.kind() == ErrorKind::UnexpectedEof => {
                        self.end = Some(StreamEnd::Aborted);
                        continue;
                    }
                    Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                }
                self.starved = false;
            }
            let Poll::Ready(message) = self.poll_with(|context, stream| context.read(stream)) else {
                self.starved = true;
                self.budget.spend(self.unparsed);
                continue;
            };
            self.budget.spend(FRAME_COST);
            match message {
                Ok(Message::Binary(payload)) if payload.is_empty() => {}
                Ok(Message::Binary(payload)) => {
                    self.unparsed = self.unparsed.saturating_sub(payload.len());
                    if !self.counts_http2 {
                        self.overhead.subtract_payload(payload.len() + payload.len().min(MESSAGE_HEADER));
                    }
                    return Poll::Ready(Ok(payload));
                }
                // tungstenite queues the pong with the next read. A proxy may answer pings for an end that is gone, so neither
                // ping nor pong proves that the other end is alive.
                Ok(Message::Ping(payload) | Message::Pong(payload)) => {
                    self.is_flush_due = true;
                    self.budget.spend(PING_COST);
                    self.on_control_frame(control_frame_length(self.role, &payload));
                }
                Ok(Message::Close(frame)) => {
                    self.end = Some(StreamEnd::from_close(frame.as_ref()));
                    // Sends the close frame of this end. It does not matter if it cannot be sent now.
                    let _ = self.poll_with(|context, stream| context.flush(stream));
                    let _ = self.poll_flush_queue(cx);
                }
                Ok(Message::Text(_) | Message::Frame(_)) => {
                    let error = "the other end sent a text message, and a tunnel has only binary messages";
                    return Poll::Ready(Err(io::Error::new(ErrorKind::InvalidData, error)));
                }
                Err(
                    Error::ConnectionClosed
                    | Error::AlreadyClosed
                    | Error::Protocol(ProtocolError::ResetWithoutClosingHandshake),
                ) => self.end = Some(StreamEnd::Aborted),
                Err(error) => return Poll::Ready(Err(into_io(error))),
            }
        };
        Poll::Ready(match (self.role, end) {
            // The client of h2 treats this error as a graceful end only after a GOAWAY.
            (Role::Server, _) => Err(ErrorKind::UnexpectedEof.into()),
            (Role::Client, StreamEnd::Closed) => Ok(Bytes::new()),
            // The server of h2 always treats `UnexpectedEof` as a graceful end, so this is another error.
            (Role::Client, StreamEnd::Aborted) => Err(ErrorKind::ConnectionAborted.into()),
        })
    }

    /// Counts bytes that were read from the socket. 0 bytes are its end.
    fn on_received(&mut self, bytes: usize) -> io::Result<()> {
        let previous = self.keepalive_state.last_received();
        self.last_read = LastRead { bytes, control: 0, previous };
        self.keepalive_state.add_received(bytes);
        self.unparsed = bytes;
        if self.closing.is_some() {
            self.read_after_close += bytes;
            if self.read_after_close > MAX_READ_AFTER_CLOSE {
                return Err(io::Error::new(
                    ErrorKind::InvalidData,
                    "the other end sent too much after the close",
                ));
            }
        }
        self.overhead.add_received(bytes, Instant::now)
    }

    /// Excludes a received ping or pong from the signs of life of the other end.
    fn on_control_frame(&mut self, length: usize) {
        self.keepalive_state.subtract_received(length);
        self.last_read.control += length;
        if self.last_read.control >= self.last_read.bytes {
            self.keepalive_state.restore_last_received(self.last_read.previous);
        }
    }

    /// Writes the queue to the byte stream, and flushes it.
    fn poll_flush_queue(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.queue.poll_write_to(&mut self.io, cx))?;
        Pin::new(&mut self.io).poll_flush(cx)
    }

    /// Makes the flush that was deferred, as far as the socket accepts bytes.
    fn flush_deferred(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        if self.is_flush_due {
            self.is_flush_due = self.poll_flush_queue(cx)?.is_pending();
        }
        Ok(())
    }
}

impl<T: AsyncRead + AsyncWrite + Unpin> WebSocket<T> {
    /// Writes the queue, ends this direction, and waits for the end of the other one.
    fn poll_close(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.end.is_none() {
            ready!(self.poll_flush_queue(cx))?;
            // Pongs that found the queue full wait in tungstenite, which drops a close frame for which its buffer has no room.
            let _ = self.poll_with(|context, stream| context.flush(stream));
            if self.context.can_write() {
                let close = CloseFrame { code: CloseCode::Normal, reason: "".into() };
                let _ = self.poll_with(|context, stream| context.close(stream, Some(close)));
            }
            ready!(self.poll_flush_queue(cx))?;
        }
        ready!(Pin::new(&mut self.io).poll_shutdown(cx))?;
        // The kernel resets a socket that is closed with unread bytes, and the reset may destroy the last response. So
        // bytes are read until the other end has closed, too (RFC 6455 section 7.1.1).
        loop {
            match ready!(self.poll_message(cx)) {
                Ok(payload) if !payload.is_empty() => {}
                _ => return Poll::Ready(Ok(())),
            }
        }
    }
}

impl StreamEnd {
    fn from_close(frame: Option<&CloseFrame>) -> Self {
        match frame.map(|frame| frame.code) {
            None | Some(CloseCode::Normal) => Self::Closed,
            Some(_) => Self::Aborted,
        }
    }
}

impl<T: AsyncRead + AsyncWrite + Unpin> AsyncRead for WebSocket<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let polled = self.poll_payload(cx, buf);
        match polled {
            Poll::Pending => self.flush_deferred(cx)?,
            // The other end has closed its half only, perhaps, and still reads.
            Poll::Ready(Err(_)) => drop(self.flush_deferred(cx)),
            Poll::Ready(Ok(())) => {}
        }
        polled
    }
}

impl<T: AsyncRead + AsyncWrite + Unpin> WebSocket<T> {
    fn poll_payload(&mut self, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        ready!(self.budget.poll(cx));
        if self.unread.is_empty() {
            self.unread = ready!(self.poll_message(cx))?;
        }
        let this = &mut *self;
        let length = this.unread.len().min(buf.remaining());
        let max_frames = this.budget.left().div_ceil(FRAME_COST).max(1);
        let keepalive_state = &this.keepalive_state;
        let on_frame = |frame| keepalive_state.on_frame(frame);
        let scanned = this.scanner.scan(&this.unread[..length], max_frames, on_frame);
        if this.counts_http2 {
            this.overhead.subtract_payload(scanned.data);
            this.overhead.add_heads(scanned.heads);
        }
        this.budget.spend(scanned.length + scanned.frames * FRAME_COST);
        let length = scanned.length;
        buf.put_slice(&this.unread[..length]);
        // The last part is dropped instead of emptied: tungstenite can then reuse its buffer.
        if length == self.unread.len() {
            self.unread = Bytes::new();
        } else {
            bytes::Buf::advance(&mut self.unread, length);
        }
        Poll::Ready(Ok(()))
    }
}

impl<T: AsyncRead + AsyncWrite + Unpin> AsyncWrite for WebSocket<T> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(cx, &[IoSlice::new(data)])
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        // One end has closed.
        if !self.context.can_write() {
            return Poll::Ready(Err(ErrorKind::BrokenPipe.into()));
        }
        let this = &mut *self;
        if this.queue.len() > config::WEBSOCKET_WRITE_BUFFER {
            ready!(this.queue.poll_write_to(&mut this.io, cx))?;
        }

        let length = this.queue.push_message(slices);
        this.overhead.counter().subtract_sent(length);
        Poll::Ready(Ok(length))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    /// h2 flushes after each frame of data of 256 bytes or more, and then encodes the next one. Such a flush is deferred until the task
    /// is polled again and has read, so that the frames of all streams that are ready are one write.
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.keepalive_state.take_ping() && self.context.can_write() {
            self.queue.push_ping();
        }
        if !self.queue.may_grow() {
            return self.poll_flush_queue(cx);
        }
        if !mem::replace(&mut self.is_flush_due, true) {
            cx.waker().wake_by_ref();
        }
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.closing.is_none() {
            self.closing = Some(Box::pin(sleep(CLOSE_TIMEOUT)));
        }
        match self.poll_close(cx) {
            Poll::Pending => {
                self.closing.as_mut().map_or(Poll::Pending, |deadline| deadline.as_mut().poll(cx).map(Ok))
            }
            closed => closed,
        }
    }
}

/// The byte stream with the blocking interface that tungstenite expects: it reads the bytes that were read ahead, and its control frames go
/// to the queue. An operation that would block fails with `WouldBlock`.
struct BlockingStream<'a, T> {
    io: &'a mut ReadAhead<T>,
    queue: &'a mut FrameQueue,
}

impl<T> Read for BlockingStream<'_, T> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let mut buffer = ReadBuf::new(buffer);
        if !self.io.read_buffered(&mut buffer) {
            return Err(ErrorKind::WouldBlock.into());
        }
        Ok(buffer.filled().len())
    }
}

impl<T> Write for BlockingStream<'_, T> {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        if self.queue.len() > config::WEBSOCKET_MAX_WRITE_BUFFER {
            return Err(ErrorKind::WouldBlock.into());
        }
        self.queue.push_frame(data);
        Ok(data.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Returns the length of a received ping or pong on the wire, in bytes (RFC 6455 section 5.2). Frames to the server are
/// masked.
fn control_frame_length(role: Role, payload: &[u8]) -> usize {
    let mask = match role {
        Role::Server => 4,
        Role::Client => 0,
    };
    2 + mask + payload.len()
}

fn into_io(error: Error) -> io::Error {
    match error {
        Error::Io(error) => error,
        error => io::Error::new(ErrorKind::InvalidData, error),
    }
}
