//! Accepted connections, and wrappers that limit the time of their writes and of their end.

mod rewind;

use std::{
    io::{self, IoSlice},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use prometheus_client::metrics::counter::Counter;
use strangers::{ConnectionPermit, Stranger};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
};
use tokio_rustls::TlsStream;
use tunnel::{ReadAhead, StallTimer};

pub use self::rewind::Rewind;

/// An accepted TCP connection, with or without TLS, with its permit of the listener. It counts as a stranger until its server
/// admits the client.
#[derive(Debug)]
pub struct Io {
    stream: IoStream,
    _permit: ConnectionPermit,
    stranger: Arc<Stranger>,
}

#[derive(Debug)]
enum IoStream {
    Plain(TcpStream),
    /// Boxed: a plain connection should not have the size of a TLS connection.
    Tls(Box<TlsStream<ReadAhead<TcpStream>>>),
}

impl Io {
    /// Wraps a plain connection.
    pub fn plain(connection: TcpStream, permit: ConnectionPermit, stranger: Stranger) -> Self {
        Self { stream: IoStream::Plain(connection), _permit: permit, stranger: Arc::new(stranger) }
    }

    /// Wraps a connection after its TLS handshake.
    pub fn tls(
        connection: TlsStream<ReadAhead<TcpStream>>,
        permit: ConnectionPermit,
        stranger: Stranger,
    ) -> Self {
        Self { stream: IoStream::Tls(Box::new(connection)), _permit: permit, stranger: Arc::new(stranger) }
    }

    /// Returns the connection as a stranger, for a server that admits its client.
    pub fn stranger(&self) -> &Arc<Stranger> {
        &self.stranger
    }

    /// Returns the name that the client sent in its TLS handshake, if it sent one. The outer option is `None` without TLS.
    pub fn tls_name(&self) -> Option<Option<&str>> {
        match &self.stream {
            IoStream::Tls(tls) => match &**tls {
                TlsStream::Server(tls) => Some(tls.get_ref().1.server_name()),
                TlsStream::Client(_) => None,
            },
            IoStream::Plain(_) => None,
        }
    }
}

macro_rules! delegate {
    ($self:ident, $io:ident => $call:expr) => {
        match &mut $self.get_mut().stream {
            IoStream::Plain($io) => {
                let $io = Pin::new($io);
                $call
            }
            IoStream::Tls($io) => {
                let $io = Pin::new($io.as_mut());
                $call
            }
        }
    };
}

impl AsyncRead for Io {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        delegate!(self, io => io.poll_read(cx, buf))
    }
}

impl AsyncWrite for Io {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        delegate!(self, io => io.poll_write(cx, buf))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        delegate!(self, io => io.poll_write_vectored(cx, slices))
    }

    fn is_write_vectored(&self) -> bool {
        match &self.stream {
            IoStream::Plain(io) => io.is_write_vectored(),
            IoStream::Tls(io) => io.is_write_vectored(),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        delegate!(self, io => io.poll_flush(cx))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        delegate!(self, io => io.poll_shutdown(cx))
    }
}

/// Fails a write for which the peer has not read within the limit. Without this guard, a caller or an agent that stops
/// reading occupies its part of a tunnel until it closes the connection.
#[derive(Debug)]
pub struct StallGuard<T> {
    io: T,
    timer: StallTimer,
    stalls: Counter,
}

impl<T> StallGuard<T> {
    /// Wraps a connection whose writes may wait for `limit`. `stalls` counts the writes that wait.
    pub fn new(io: T, limit: Duration, stalls: Counter) -> Self {
        Self { io, timer: StallTimer::new(limit), stalls }
    }

    /// Returns the result of a write, or an error if the write has waited for too long.
    fn guard<R>(&mut self, cx: &mut Context<'_>, polled: Poll<io::Result<R>>) -> Poll<io::Result<R>> {
        if polled.is_ready() {
            self.timer.disarm();
            return polled;
        }

        if !self.timer.is_armed() {
            self.stalls.inc();
        }
        ready!(self.timer.poll_expired(cx));
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the peer has stopped reading")))
    }
}

/// Returns whether a [`StallGuard`] has failed the write. The kernel reports its own timeouts of a lost peer with the same kind,
/// and with an error number.
pub fn is_stall(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::TimedOut && error.raw_os_error().is_none()
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
        time::{sleep, timeout},
    };

    use super::*;

    const LIMIT: Duration = Duration::from_secs(60);

    #[tokio::test(start_paused = true)]
    async fn unread_write_fails_after_the_limit() {
        let (near, _far) = duplex(16);
        let mut guarded = StallGuard::new(near, LIMIT, Counter::default());
        guarded.write_all(&[0; 16]).await.unwrap();
        let mut write = Box::pin(guarded.write_all(&[0; 1]));
        assert!(timeout(LIMIT - Duration::from_secs(1), &mut write).await.is_err(), "still waiting");
        let failed = timeout(Duration::from_secs(2), &mut write).await.unwrap();
        assert!(is_stall(&failed.unwrap_err()));
        assert!(!is_stall(&io::Error::from_raw_os_error(110)), "the ETIMEDOUT of the kernel");
    }

    #[tokio::test(start_paused = true)]
    async fn slow_reader_does_not_time_out() {
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
    async fn idle_connection_does_not_time_out() {
        let (near, mut far) = duplex(16);
        let mut guarded = StallGuard::new(near, LIMIT, Counter::default());
        for _ in 0..3 {
            guarded.write_all(&[0; 16]).await.unwrap();
            far.read_exact(&mut [0; 16]).await.unwrap();
            sleep(LIMIT * 10).await;
        }
    }
}
