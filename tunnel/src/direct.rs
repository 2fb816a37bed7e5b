//! HTTP/2 without a WebSocket of this crate: between two replicas of kas, and with GitLab's agentk, which is the HTTP/2 client.

use std::{
    io::{self, ErrorKind},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::{
    DrainHandle, Driver, OverheadStream, Tunnel, TunnelConfig, TunnelServer, client, forward_write,
    keepalive::KeepaliveState, server,
};

/// A byte stream that counts the bytes that it receives, and limits the overhead among them.
#[derive(Debug)]
pub struct DirectStream<T> {
    io: OverheadStream<T>,
    keepalive_state: Arc<KeepaliveState>,
}

/// Starts the end that sends requests, like [`crate::open`]. The other end is trusted: it has no limit on its overhead.
///
/// # Errors
///
/// If the preface of HTTP/2 cannot be written.
pub async fn open<T>(io: T, config: &TunnelConfig) -> io::Result<(Tunnel, Driver<DirectStream<T>>)>
where
    T: AsyncRead + AsyncWrite + Unpin,
{
    let direct = DirectStream::new(OverheadStream::of_server(io));
    let (keepalive_state, overhead) = (Arc::clone(&direct.keepalive_state), direct.io.counter());
    overhead.trust();
    client::start(direct, keepalive_state, overhead, config).await
}

/// Starts the end that serves requests, like [`crate::accept`]. The overhead has a limit until [`TunnelServer::overhead`] trusts the
/// other end.
pub fn accept<T>(io: T, config: &TunnelConfig) -> (TunnelServer<DirectStream<T>>, DrainHandle)
where
    T: AsyncRead + AsyncWrite + Unpin,
{
    let direct = DirectStream::new(OverheadStream::of_client(io));
    let (keepalive_state, overhead) = (Arc::clone(&direct.keepalive_state), direct.io.counter());
    server::start(direct, keepalive_state, overhead, config)
}

/// Starts the end that serves the calls of GitLab's agentk. They have the limits of a public server, which protect it from strangers.
pub fn accept_calls<T>(io: T, config: &TunnelConfig) -> (TunnelServer<DirectStream<T>>, DrainHandle)
where
    T: AsyncRead + AsyncWrite + Unpin,
{
    let direct = DirectStream::new(OverheadStream::of_client(io));
    let (keepalive_state, overhead) = (Arc::clone(&direct.keepalive_state), direct.io.counter());
    TunnelServer::new(config.public_server().handshake(direct), keepalive_state, overhead, config)
}

impl<T> DirectStream<T> {
    fn new(io: OverheadStream<T>) -> Self {
        Self { io, keepalive_state: Arc::default() }
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for DirectStream<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let room = buffer.remaining();
        ready!(Pin::new(&mut self.io).poll_read(cx, buffer))?;
        let read = buffer.filled().len() - before;
        self.keepalive_state.add_received(read);
        // The client of h2 treats this error as a graceful end only after a GOAWAY, and the server always.
        Poll::Ready(if read == 0 && room > 0 { Err(ErrorKind::UnexpectedEof.into()) } else { Ok(()) })
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for DirectStream<T> {
    forward_write!(io);

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}
