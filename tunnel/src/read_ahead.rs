//! Large reads from a byte stream for a reader with a small buffer.

use std::{
    cell::RefCell,
    io,
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::forward_write;

/// Bytes that are read at once from a stream.
const CAPACITY: usize = 64 << 10;

thread_local! {
    /// A buffer that no stream of this thread uses at the moment.
    static SPARE: RefCell<Option<Box<[u8]>>> = const { RefCell::new(None) };
}

/// Reads up to 64 KiB at once, and holds no buffer while there are no bytes.
///
/// WebSocket and TLS libraries read a few KiB at once, so bulk data costs many system calls. With larger buffers in these
/// libraries, every idle connection would hold one.
#[derive(Debug)]
pub struct ReadAhead<T> {
    io: T,
    /// Bytes that were read before the stream was wrapped.
    early: Bytes,
    ahead: Option<Ahead>,
}

/// Bytes that were read from the stream and not by the reader yet. Zero bytes mean the end of the stream.
#[derive(Debug)]
struct Ahead {
    buffer: Box<[u8]>,
    start: usize,
    end: usize,
}

impl<T> ReadAhead<T> {
    /// Wraps a stream from which no bytes were read.
    pub fn new(io: T) -> Self {
        Self::with_early(io, Bytes::new())
    }

    /// Wraps a stream from which `early` was read. The reader gets these bytes first.
    pub fn with_early(io: T, early: Bytes) -> Self {
        // Empty bytes may still hold the buffer that they were split from.
        let early = if early.is_empty() { Bytes::new() } else { early };
        Self { io, early, ahead: None }
    }

    /// Moves bytes that were read ahead to the reader. Returns false if there are none. At the end of the stream it moves no
    /// bytes and returns true.
    pub(crate) fn read_buffered(&mut self, buf: &mut ReadBuf<'_>) -> bool {
        if !self.early.is_empty() {
            let early = self.early.split_to(self.early.len().min(buf.remaining()));
            buf.put_slice(&early);
            return true;
        }
        let Some(ahead) = self.ahead.take() else { return false };
        self.ahead = ahead.move_to(buf);
        true
    }
}

impl<T: AsyncRead + Unpin> ReadAhead<T> {
    /// Waits for bytes for [`Self::read_buffered`], and returns their number, which is 0 at the end of the stream.
    pub(crate) fn poll_fill(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        if !self.early.is_empty() {
            return Poll::Ready(Ok(self.early.len()));
        }
        if let Some(ahead) = &self.ahead {
            return Poll::Ready(Ok(ahead.end - ahead.start));
        }
        let mut buffer = SPARE.take().unwrap_or_else(|| vec![0; CAPACITY].into_boxed_slice());
        let mut read = ReadBuf::new(&mut buffer);
        let polled = Pin::new(&mut self.io).poll_read(cx, &mut read);
        let end = read.filled().len();
        if let Poll::Ready(Ok(())) = polled {
            self.ahead = Some(Ahead { buffer, start: 0, end });
        } else {
            SPARE.set(Some(buffer));
        }
        polled.map_ok(|()| end)
    }
}

impl Ahead {
    /// Moves bytes to the reader. Returns `None` if none are left.
    fn move_to(mut self, buf: &mut ReadBuf<'_>) -> Option<Self> {
        let moved = (self.end - self.start).min(buf.remaining());
        buf.put_slice(&self.buffer[self.start..self.start + moved]);
        self.start += moved;
        if self.start < self.end {
            return Some(self);
        }
        SPARE.set(Some(self.buffer));
        None
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for ReadAhead<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        ready!(self.poll_fill(cx))?;
        self.read_buffered(buf);
        Poll::Ready(Ok(()))
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for ReadAhead<T> {
    forward_write!(io);

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, duplex};

    use super::*;

    #[tokio::test]
    async fn bytes_arrive_in_order_for_each_size_of_read_buffer() {
        let sent: Vec<u8> = (0..=250).cycle().take(300_000).collect();
        for size in [1 << 10, 4 << 10, 70 << 10] {
            let (near, mut far) = duplex(200_000);
            let mut reader = ReadAhead::with_early(near, Bytes::copy_from_slice(&sent[..10]));
            let write = async {
                far.write_all(&sent[10..]).await.unwrap();
                drop(far);
            };
            let read = async {
                let (mut received, mut buffer) = (Vec::new(), vec![0; size]);
                loop {
                    match reader.read(&mut buffer).await.unwrap() {
                        0 => return received,
                        read => received.extend_from_slice(&buffer[..read]),
                    }
                }
            };
            let ((), received) = tokio::join!(write, read);
            assert!(received == sent, "with {size}");
        }
    }

    #[tokio::test]
    async fn idle_stream_holds_no_buffer() {
        let (near, mut far) = duplex(64 << 10);
        let mut reader = ReadAhead::new(near);
        far.write_all(&[7; 20 << 10]).await.unwrap();
        let mut buffer = [0; 4 << 10];
        for _ in 0..5 {
            reader.read_exact(&mut buffer).await.unwrap();
        }
        assert!(reader.ahead.is_none());
    }
}
