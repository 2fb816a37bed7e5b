//! Accepted connections, and wrappers that limit the time of their writes and of their end.

mod rewind;
mod stall;

use std::{
    io::{self, IoSlice},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use strangers::{ConnectionPermit, Stranger};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
};
use tokio_rustls::TlsStream;
use tunnel::ReadAhead;

pub(crate) use self::{
    rewind::Rewind,
    stall::{StallGuard, is_stall},
};

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
