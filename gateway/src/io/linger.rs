//! Connections that are closed without a reset.

use std::{
    io,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    task::{Context, Poll, ready},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::{Sleep, sleep},
};

/// The time for which the peer may send after the shutdown.
const LINGER: Duration = Duration::from_secs(2);

/// The first bytes of HTTP/2 (RFC 9113 section 3.4). HTTP/2 connections do not linger: no caller waits for the GOAWAY, and an
/// attack that was cut must not continue.
const HTTP2: &[u8] = b"PRI * HTTP/2.0";

/// The size of one read that is discarded.
const DISCARD: usize = 4096;

/// Discards the bytes that arrive after a shutdown, until the peer closes or two seconds have passed.
///
/// A TCP connection that is closed with unread bytes is reset, and the reset can discard a response that was already
/// written (RFC 9112 section 9.6). A caller whose upload was refused would then not receive the reason.
#[derive(Debug)]
pub(crate) struct LingeringClose<T> {
    io: T,
    /// Set once the connection was upgraded: from then on a shutdown is a half-close, and the bytes after it belong to the new
    /// protocol.
    upgraded: Arc<AtomicBool>,
    /// True if the connection is HTTP/1.1; `None` until its first bytes have arrived.
    lingers: Option<bool>,
    /// The peer has closed.
    ended: bool,
    lingering: Option<Pin<Box<Sleep>>>,
}

impl<T> LingeringClose<T> {
    /// Wraps a connection. It does not linger once `upgraded` is set.
    pub(crate) fn new(io: T, upgraded: Arc<AtomicBool>) -> Self {
        Self { io, upgraded, lingers: None, ended: false, lingering: None }
    }
}

impl<T: AsyncRead + Unpin> LingeringClose<T> {
    fn poll_discard(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let mut bytes = [0; DISCARD];
        while !self.ended {
            let mut buf = ReadBuf::new(&mut bytes);
            let read = ready!(Pin::new(&mut self.io).poll_read(cx, &mut buf));
            self.ended = read.is_err() || buf.filled().is_empty();
        }
        Poll::Ready(())
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for LingeringClose<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let filled = buf.filled().len();
        let read = ready!(Pin::new(&mut self.io).poll_read(cx, buf));
        let bytes = &buf.filled()[filled..];
        if bytes.is_empty() {
            self.ended |= read.is_err() || buf.remaining() > 0;
        } else if self.lingers.is_none() {
            self.lingers = Some(!HTTP2.starts_with(bytes) && !bytes.starts_with(HTTP2));
        }
        Poll::Ready(read)
    }
}

impl<T: AsyncRead + AsyncWrite + Unpin> AsyncWrite for LingeringClose<T> {
    tunnel::forward_write!(io);

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if this.lingering.is_none() {
            ready!(Pin::new(&mut this.io).poll_shutdown(cx))?;
            if this.lingers != Some(true) || this.upgraded.load(Relaxed) {
                return Poll::Ready(Ok(()));
            }
        }
        if this.poll_discard(cx).is_pending() {
            let lingering = this.lingering.get_or_insert_with(|| Box::pin(sleep(LINGER)));
            ready!(lingering.as_mut().poll(cx));
        }
        Poll::Ready(Ok(()))
    }
}

#[cfg(test)]
mod tests {
    use tokio::{
        io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex},
        time::Instant,
    };

    use super::*;

    /// A connection that has received its first bytes.
    async fn pair(first: &[u8], upgraded: bool) -> (LingeringClose<DuplexStream>, DuplexStream) {
        let (near, mut far) = duplex(16);
        let mut near = LingeringClose::new(near, Arc::new(AtomicBool::new(upgraded)));
        far.write_all(first).await.unwrap();
        near.read_exact(&mut vec![0; first.len()]).await.unwrap();
        (near, far)
    }

    #[tokio::test(start_paused = true)]
    async fn shutdown_discards_until_the_peer_closes() {
        let (mut near, mut far) = pair(b"POST / ", false).await;
        let sending = tokio::spawn(async move {
            far.write_all(&[0; 4096]).await.unwrap();
        });
        let started = Instant::now();
        near.shutdown().await.unwrap();
        sending.await.unwrap();
        assert!(started.elapsed() < LINGER);
    }

    #[tokio::test(start_paused = true)]
    async fn shutdown_ends_although_the_peer_stays() {
        let (mut near, _far) = pair(b"PROPFIND", false).await;
        let started = Instant::now();
        near.shutdown().await.unwrap();
        assert_eq!(started.elapsed().as_secs(), LINGER.as_secs());
    }

    #[tokio::test(start_paused = true)]
    async fn shutdown_of_http2_or_before_the_first_byte_does_not_wait() {
        for first in [&b""[..], b"PRI * HTTP/2.0\r\n"] {
            let (mut near, _far) = pair(first, false).await;
            let started = Instant::now();
            near.shutdown().await.unwrap();
            assert_eq!(started.elapsed(), Duration::ZERO);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn shutdown_after_an_upgrade_discards_nothing() {
        let (mut near, mut far) = pair(b"POST / ", true).await;
        far.write_all(b"raw").await.unwrap();
        near.shutdown().await.unwrap();
        let mut rest = [0; 3];
        near.read_exact(&mut rest).await.unwrap();
        assert_eq!(&rest, b"raw");
    }
}
