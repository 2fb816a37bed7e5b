//! A connection whose other end must read.

use std::{
    io::{self, IoSlice},
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use prometheus_client::metrics::counter::Counter;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::{Instant, Sleep, sleep},
};

/// Fails a write that has waited too long for the other end to read. Without it, a caller who stopped reading holds
/// its share of a tunnel for ever.
#[derive(Debug)]
pub struct StallGuard<T> {
    io: T,
    limit: Duration,
    /// Runs while a write waits. Made by the first wait: most connections never wait.
    waiting: Option<Pin<Box<Sleep>>>,
    armed: bool,
    stalls: Counter,
}

impl<T> StallGuard<T> {
    /// Writes may wait for `limit`. Each that has to wait is counted.
    pub fn new(io: T, limit: Duration, stalls: Counter) -> Self {
        Self { io, limit, waiting: None, armed: false, stalls }
    }

    /// Passes on what a write came to, and fails it if it has waited too long.
    fn guard<R>(&mut self, cx: &mut Context<'_>, polled: Poll<io::Result<R>>) -> Poll<io::Result<R>> {
        if polled.is_ready() {
            self.armed = false;
            return polled;
        }

        let limit = self.limit;
        let waiting = self.waiting.get_or_insert_with(|| Box::pin(sleep(limit)));
        if !self.armed {
            self.armed = true;
            self.stalls.inc();
            waiting.as_mut().reset(Instant::now() + limit);
        }
        ready!(waiting.as_mut().poll(cx));
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the other end has stopped reading")))
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for StallGuard<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_read(cx, buf)
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for StallGuard<T> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.io).poll_write(cx, buf);
        self.guard(cx, polled)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.io).poll_write_vectored(cx, slices);
        self.guard(cx, polled)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.io).poll_flush(cx);
        self.guard(cx, polled)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.io).poll_shutdown(cx);
        self.guard(cx, polled)
    }
}

#[cfg(test)]
mod tests {
    use tokio::{
        io::{AsyncReadExt as _, AsyncWriteExt as _, duplex},
        time::timeout,
    };

    use super::*;

    const LIMIT: Duration = Duration::from_secs(60);

    #[tokio::test(start_paused = true)]
    async fn a_write_that_nobody_reads_fails_after_the_limit_and_not_before() {
        let (near, _far) = duplex(16);
        let mut guarded = StallGuard::new(near, LIMIT, Counter::default());
        guarded.write_all(&[0; 16]).await.unwrap();
        let mut write = Box::pin(guarded.write_all(&[0; 1]));
        assert!(timeout(LIMIT - Duration::from_secs(1), &mut write).await.is_err(), "still waiting");
        let failed = timeout(Duration::from_secs(2), &mut write).await.unwrap();
        assert_eq!(failed.unwrap_err().kind(), io::ErrorKind::TimedOut);
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_reader_is_not_a_stopped_one() {
        let (near, mut far) = duplex(16);
        let mut guarded = StallGuard::new(near, LIMIT, Counter::default());
        let reading = tokio::spawn(async move {
            for _ in 0..100 {
                sleep(LIMIT / 2).await;
                far.read_exact(&mut [0; 4]).await.unwrap();
            }
        });
        guarded.write_all(&[0; 400]).await.unwrap();
        reading.await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn silence_is_not_a_stall() {
        let (near, mut far) = duplex(16);
        let mut guarded = StallGuard::new(near, LIMIT, Counter::default());
        for _ in 0..3 {
            guarded.write_all(&[0; 16]).await.unwrap();
            far.read_exact(&mut [0; 16]).await.unwrap();
            sleep(LIMIT * 10).await;
        }
    }
}
