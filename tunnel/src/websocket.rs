//! A WebSocket (RFC 6455) as a byte stream, by tungstenite.
//!
//! The payloads of binary messages are the bytes of the stream; boundaries of messages have no meaning. Text messages are
//! refused, and no extension is negotiated.

use std::{
    io::{self, ErrorKind, IoSlice, Read, Write},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tungstenite::{
    Error, Message,
    error::ProtocolError,
    protocol::{CloseFrame, WebSocketContext, frame::coding::CloseCode},
};

pub use tungstenite::protocol::Role;

pub use crate::handshake;
use crate::{ReadAhead, keepalive::Liveness, settings};

/// The bytes inside a WebSocket, over a byte stream on which its handshake is done.
///
/// Reads write, too: the answers to pings. So one task must poll both directions, as HTTP/2 does.
/// [`WebSocketStream`](https://docs.rs/tokio-tungstenite) keeps two wakers for the other case; this is tungstenite
/// without them.
#[derive(Debug)]
pub struct WebSocket<T> {
    io: ReadAhead<T>,
    context: WebSocketContext,
    /// tungstenite needs more bytes for the next message. It clears its buffer before each read, so it reads only when
    /// there is something.
    starved: bool,
    /// The part of a message that the reader has not taken yet.
    unread: Bytes,
    /// The socket took less than it was given: what is left has to be flushed before the next write.
    blocked: bool,
    /// The close frame of this end was sent.
    closing: bool,
    /// The other end sent its close frame, or its byte stream has ended.
    ended: bool,
    liveness: Arc<Liveness>,
}

impl<T> WebSocket<T> {
    /// Continues after the handshake. `early` holds the bytes that were read beyond it.
    pub fn new(io: T, early: Bytes, role: Role) -> Self {
        Self {
            io: ReadAhead::with_early(io, early),
            context: WebSocketContext::new(role, Some(settings::websocket())),
            starved: true,
            unread: Bytes::new(),
            blocked: false,
            closing: false,
            ended: false,
            liveness: Arc::default(),
        }
    }

    pub(crate) fn liveness(&self) -> Arc<Liveness> {
        Arc::clone(&self.liveness)
    }
}

impl<T: AsyncRead + AsyncWrite + Unpin> WebSocket<T> {
    /// Runs an operation of tungstenite on the byte stream. `Pending` where the stream would block.
    fn poll_with<R>(
        &mut self,
        cx: &mut Context<'_>,
        operation: impl FnOnce(&mut WebSocketContext, &mut Polled<'_, '_, T>) -> Result<R, Error>,
    ) -> Poll<Result<R, Error>> {
        let mut stream = Polled { io: &mut self.io, cx, liveness: &self.liveness };
        match operation(&mut self.context, &mut stream) {
            Err(Error::Io(error)) if error.kind() == ErrorKind::WouldBlock => Poll::Pending,
            result => Poll::Ready(result),
        }
    }

    /// Reads the next message that carries bytes. Empty at the end of the stream.
    fn poll_message(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Bytes>> {
        while !self.ended {
            if self.starved {
                ready!(self.io.poll_fill(cx))?;
                self.starved = false;
            }
            let Poll::Ready(message) = self.poll_with(cx, |context, stream| context.read(stream)) else {
                self.starved = true;
                continue;
            };
            match message {
                Ok(Message::Binary(payload)) if payload.is_empty() => {}
                Ok(Message::Binary(payload)) => return Poll::Ready(Ok(payload)),
                // tungstenite has queued the pong, and sends it with the next read.
                Ok(Message::Ping(_) | Message::Pong(_)) => {}
                Ok(Message::Close(_)) => {
                    self.ended = true;
                    // Sends the answer. If it cannot be sent now, nobody needs it.
                    let _ = self.poll_with(cx, |context, stream| context.flush(stream));
                }
                Ok(Message::Text(_) | Message::Frame(_)) => {
                    let error = "the other end sent a text message, which no tunnel carries";
                    return Poll::Ready(Err(io::Error::new(ErrorKind::InvalidData, error)));
                }
                // HTTP/2 above knows whether the end is one in the middle of something.
                Err(
                    Error::ConnectionClosed
                    | Error::AlreadyClosed
                    | Error::Protocol(ProtocolError::ResetWithoutClosingHandshake),
                ) => self.ended = true,
                Err(error) => return Poll::Ready(Err(into_io(error))),
            }
        }
        Poll::Ready(Ok(Bytes::new()))
    }

    /// Gives everything that is queued to the byte stream, and flushes it.
    fn poll_flush_queue(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match ready!(self.poll_with(cx, |context, stream| context.flush(stream))) {
            Ok(()) | Err(Error::ConnectionClosed) => {
                self.blocked = false;
                Poll::Ready(Ok(()))
            }
            Err(error) => Poll::Ready(Err(into_io(error))),
        }
    }

    /// Queues a message. `Pending` while the socket takes nothing; the message is dropped then.
    fn poll_send(&mut self, cx: &mut Context<'_>, message: Message) -> Poll<io::Result<()>> {
        match self.poll_with(cx, |context, stream| context.write(stream, message)) {
            Poll::Ready(Ok(())) => Poll::Ready(Ok(())),
            // It is queued, and the socket takes no more.
            Poll::Pending => {
                self.blocked = true;
                Poll::Ready(Ok(()))
            }
            // Pongs have filled the queue.
            Poll::Ready(Err(Error::WriteBufferFull(_))) => {
                self.blocked = true;
                ready!(self.poll_flush_queue(cx))?;
                cx.waker().wake_by_ref();
                Poll::Pending
            }
            Poll::Ready(Err(error)) => Poll::Ready(Err(into_io(error))),
        }
    }
}

impl<T: AsyncRead + AsyncWrite + Unpin> AsyncRead for WebSocket<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.unread.is_empty() {
            self.unread = ready!(self.poll_message(cx))?;
        }
        let length = self.unread.len().min(buf.remaining());
        buf.put_slice(&self.unread[..length]);
        // The last part is dropped, and not cut to nothing: tungstenite can then use its buffer again.
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
        if self.closing {
            return Poll::Ready(Err(ErrorKind::BrokenPipe.into()));
        }
        if self.blocked {
            ready!(self.poll_flush_queue(cx))?;
        }

        let payload = gather(slices);
        let length = payload.len();
        if length > 0 {
            ready!(self.poll_send(cx, Message::Binary(payload)))?;
        }
        Poll::Ready(Ok(length))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.liveness.take_ping() && !self.closing {
            // A ping that finds the queue full is dropped: bytes are on their way, which is all that a ping is for.
            let _ = self.poll_send(cx, Message::Ping(Bytes::new()))?;
        }
        self.poll_flush_queue(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if !self.closing {
            self.closing = true;
            let close = CloseFrame { code: CloseCode::Normal, reason: "".into() };
            // The frame is queued whatever this returns; the flush below reports what goes wrong.
            let _ = self.poll_with(cx, |context, stream| context.close(stream, Some(close)));
        }
        if !self.ended {
            ready!(self.poll_flush_queue(cx))?;
        }
        ready!(Pin::new(&mut self.io).poll_shutdown(cx))?;
        // The kernel resets a socket that is closed with unread bytes, and the reset may overtake the last response on its
        // way to the other end. So bytes are read until the other end has closed, too (RFC 6455 section 7.1.1).
        loop {
            match ready!(self.poll_message(cx)) {
                Ok(payload) if !payload.is_empty() => {}
                _ => return Poll::Ready(Ok(())),
            }
        }
    }
}

/// A byte stream as the blocking one that tungstenite expects: an operation that would wait fails with `WouldBlock`.
/// Reads take what was read ahead; writes go to the stream, which wakes the task when it takes more.
struct Polled<'a, 'b, T> {
    io: &'a mut ReadAhead<T>,
    cx: &'a mut Context<'b>,
    liveness: &'a Liveness,
}

impl<T> Read for Polled<'_, '_, T> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let mut buffer = ReadBuf::new(buffer);
        if !self.io.read_buffered(&mut buffer) {
            return Err(ErrorKind::WouldBlock.into());
        }
        let read = buffer.filled().len();
        if read > 0 {
            self.liveness.received();
        }
        Ok(read)
    }
}

impl<T: AsyncWrite + Unpin> Write for Polled<'_, '_, T> {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        match Pin::new(&mut *self.io).poll_write(self.cx, data) {
            Poll::Ready(result) => result,
            Poll::Pending => Err(ErrorKind::WouldBlock.into()),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match Pin::new(&mut *self.io).poll_flush(self.cx) {
            Poll::Ready(result) => result,
            Poll::Pending => Err(ErrorKind::WouldBlock.into()),
        }
    }
}

/// Copies the first bytes of the slices into the payload of one message.
fn gather(slices: &[IoSlice<'_>]) -> Bytes {
    let length = slices.iter().map(|slice| slice.len()).sum::<usize>().min(settings::WEBSOCKET_MESSAGE);
    let mut payload = BytesMut::with_capacity(length);
    for slice in slices {
        let part = slice.len().min(length - payload.len());
        payload.extend_from_slice(&slice[..part]);
    }
    payload.freeze()
}

fn into_io(error: Error) -> io::Error {
    match error {
        Error::Io(error) => error,
        Error::ConnectionClosed | Error::AlreadyClosed | Error::Protocol(ProtocolError::SendAfterClosing) => {
            ErrorKind::BrokenPipe.into()
        }
        error => io::Error::new(ErrorKind::InvalidData, error),
    }
}
