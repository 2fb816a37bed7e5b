//! A connection without a WebSocket: between two kas, who need no proxy on the way to believe that it is HTTP.

use std::{
    io::{self, IoSlice},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::{
    Driver, Leave, Session, Settings, Tunnel, handle,
    http2::{Batch, Transport},
    keepalive::Liveness,
    serve,
};

/// Slices that are written at once.
const SLICES: usize = 32;

/// A stream of bytes on which somebody listens for silence.
#[derive(Debug)]
pub struct Direct<T> {
    io: T,
    liveness: Arc<Liveness>,
}

/// The end that sends requests: as [`crate::open`].
pub fn open<T>(io: T, settings: &Settings) -> (Tunnel, Driver<Direct<T>>)
where
    T: AsyncRead + AsyncWrite + Unpin,
{
    let direct = Direct::new(io);
    let liveness = Arc::clone(&direct.liveness);
    handle::start(direct, liveness, settings)
}

/// The end that serves them: as [`crate::accept`].
pub fn accept<T>(io: T, settings: &Settings) -> (Session<Direct<T>>, Leave)
where
    T: AsyncRead + AsyncWrite + Unpin,
{
    let direct = Direct::new(io);
    let liveness = Arc::clone(&direct.liveness);
    serve::start(direct, liveness, settings)
}

impl<T> Direct<T> {
    fn new(io: T) -> Self {
        Self { io, liveness: Arc::default() }
    }
}

impl<T: AsyncRead + AsyncWrite + Unpin> Transport for Direct<T> {
    fn poll_take(&mut self, cx: &mut Context<'_>, batch: &mut Batch) -> Poll<io::Result<()>> {
        let mut slices = [IoSlice::new(&[]); SLICES];
        let count = batch.slices(&mut slices);
        let written = ready!(Pin::new(&mut self.io).poll_write_vectored(cx, &slices[..count]))?;
        if written == 0 {
            return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
        }
        batch.advance(written);
        Poll::Ready(Ok(()))
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
            self.liveness.heard();
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
