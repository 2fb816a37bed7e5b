//! A tunnel without a WebSocket: between two replicas of kas, with no HTTP proxy on the way.

use std::{
    io::{self, IoSlice},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::{DrainHandle, Driver, Session, Settings, Tunnel, client, keepalive::Liveness, server};

/// A byte stream that counts what it receives.
#[derive(Debug)]
pub struct Direct<T> {
    io: T,
    liveness: Arc<Liveness>,
}

/// Starts the end that sends requests, as [`crate::open`] does.
pub async fn open<T>(io: T, settings: &Settings) -> io::Result<(Tunnel, Driver<Direct<T>>)>
where
    T: AsyncRead + AsyncWrite + Unpin,
{
    let direct = Direct::new(io);
    let liveness = Arc::clone(&direct.liveness);
    client::start(direct, liveness, settings).await
}

/// Starts the end that serves requests, as [`crate::accept`] does.
pub fn accept<T>(io: T, settings: &Settings) -> (Session<Direct<T>>, DrainHandle)
where
    T: AsyncRead + AsyncWrite + Unpin,
{
    let direct = Direct::new(io);
    let liveness = Arc::clone(&direct.liveness);
    server::start(direct, liveness, settings)
}

impl<T> Direct<T> {
    fn new(io: T) -> Self {
        Self { io, liveness: Arc::default() }
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for Direct<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let polled = Pin::new(&mut self.io).poll_read(cx, buffer);
        if buffer.filled().len() > before {
            self.liveness.received();
        }
        polled
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Direct<T> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(cx, data)
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
