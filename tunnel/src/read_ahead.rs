//! Reads from a byte stream: many bytes at once, and no more in one turn of the task than other tasks can wait for.

use std::{
    cell::RefCell,
    io,
    pin::{Pin, pin},
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    task::yield_now,
};

use crate::forward_write;

/// Bytes that are read at once from a stream.
const CAPACITY: usize = 64 << 10;

/// Bytes that a connection reads before its task yields: one read of [`ReadAhead`].
const TURN: usize = CAPACITY;

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

/// The budget of one turn: the bytes that a task reads before other tasks run.
///
/// Protocol libraries read until the socket has no more bytes, and one sender can fill it faster than they read. The other
/// connections of the thread would then wait.
#[derive(Debug)]
pub struct ReadBudget {
    left: usize,
}

impl Default for ReadBudget {
    fn default() -> Self {
        Self { left: TURN }
    }
}

impl ReadBudget {
    /// Takes `cost` from the budget: the bytes that were read, or the bytes that take as long to process.
    pub fn spend(&mut self, cost: usize) {
        self.left = self.left.saturating_sub(cost);
    }

    /// Returns the rest of the budget.
    pub(crate) fn left(&self) -> usize {
        self.left
    }

    /// Begins the next turn. The task must be about to return `Pending`, so that other tasks run.
    pub fn reset(&mut self) {
        *self = Self::default();
    }

    /// Returns `Pending` if the budget is spent, and begins the next turn. The task is woken after the other tasks of the
    /// thread, and after new events of the network.
    pub fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.left > 0 {
            return Poll::Ready(());
        }
        self.reset();
        pin!(yield_now()).poll(cx)
    }
}

#[cfg(test)]
mod tests {
    use std::{cell::Cell, future::poll_fn};

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

    #[tokio::test]
    async fn reader_yields_to_other_tasks_each_time_its_budget_is_spent() {
        let others = Cell::new(0);
        let reader = async {
            let mut budget = ReadBudget::default();
            for turn in 0..10 {
                assert_eq!(others.get(), turn);
                budget.spend(TURN - 1);
                poll_fn(|cx| budget.poll(cx)).await;
                assert_eq!(others.get(), turn, "one byte is left");
                budget.spend(2);
                poll_fn(|cx| budget.poll(cx)).await;
                poll_fn(|cx| budget.poll(cx)).await;
            }
        };
        let other = async {
            loop {
                others.set(others.get() + 1);
                yield_now().await;
            }
        };
        tokio::select! {
            biased;
            () = reader => {}
            () = other => {}
        }
    }
}
