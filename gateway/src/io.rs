//! A connection as it was accepted: plain or TLS.

mod linger;
mod stall;

use std::{
    io::{self, IoSlice},
    pin::Pin,
    task::{Context, Poll},
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
    sync::OwnedSemaphorePermit,
};
use tokio_rustls::TlsStream;
use tunnel::ReadAhead;

pub use self::{linger::LingeringClose, stall::StallGuard};

/// A TCP connection, with or without TLS, and its place among those that a listener allows.
#[derive(Debug)]
pub struct Io {
    kind: Kind,
    _place: OwnedSemaphorePermit,
}

#[derive(Debug)]
enum Kind {
    Plain(TcpStream),
    /// Boxed: a plain connection should not have the size of a TLS state.
    Tls(Box<TlsStream<ReadAhead<TcpStream>>>),
}

impl Io {
    /// A connection as it is.
    pub fn plain(connection: TcpStream, place: OwnedSemaphorePermit) -> Self {
        Self { kind: Kind::Plain(connection), _place: place }
    }

    /// A connection after its TLS handshake.
    pub fn tls(connection: TlsStream<ReadAhead<TcpStream>>, place: OwnedSemaphorePermit) -> Self {
        Self { kind: Kind::Tls(Box::new(connection)), _place: place }
    }
}

macro_rules! delegate {
    ($self:ident, $io:ident => $call:expr) => {
        match &mut $self.get_mut().kind {
            Kind::Plain($io) => {
                let $io = Pin::new($io);
                $call
            }
            Kind::Tls($io) => {
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
        match &self.kind {
            Kind::Plain(io) => io.is_write_vectored(),
            Kind::Tls(io) => io.is_write_vectored(),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        delegate!(self, io => io.poll_flush(cx))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        delegate!(self, io => io.poll_shutdown(cx))
    }
}
