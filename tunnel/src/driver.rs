//! What must run for kas's end of a tunnel to live.

use std::{io, sync::Arc};

use bytes::Bytes;
use h2::client::Connection;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_util::sync::CancellationToken;

use crate::{Keepalive, keepalive::Liveness};

/// The connection behind a [`crate::Tunnel`]. Nothing moves unless [`Driver::run`] is polled.
#[must_use = "a tunnel moves nothing unless its driver runs"]
pub struct Driver<S: AsyncRead + AsyncWrite + Unpin> {
    connection: Connection<S, Bytes>,
    keepalive: Keepalive,
    liveness: Arc<Liveness>,
    closing: CancellationToken,
}

/// Why a tunnel ended.
#[derive(Debug, thiserror::Error)]
pub enum Ended {
    /// The other end closed it in good order, having finished what was in flight.
    #[error("left in good order")]
    Gracefully,
    /// [`crate::Tunnel::close`] was called.
    #[error("cut from this side")]
    Cut,
    /// The other end did not answer a ping.
    #[error("no sign of life from the other end")]
    Silent,
    /// The network, or the process at the other end, is gone.
    #[error("connection lost: {0}")]
    Lost(io::Error),
    /// The other end broke HTTP/2 or WebSocket.
    #[error("the other end broke the protocol: {0}")]
    Protocol(h2::Error),
}

impl<S: AsyncRead + AsyncWrite + Unpin> Driver<S> {
    pub(crate) fn new(
        connection: Connection<S, Bytes>,
        keepalive: Keepalive,
        liveness: Arc<Liveness>,
        closing: CancellationToken,
    ) -> Self {
        Self { connection, keepalive, liveness, closing }
    }

    /// Moves bytes until the tunnel ends. Dropping the future cuts it.
    pub async fn run(mut self) -> Ended {
        let pings = self.connection.ping_pong().expect("taken once, here");
        tokio::select! {
            result = &mut self.connection => result.into(),
            () = self.keepalive.watch(pings, self.liveness) => Ended::Silent,
            () = self.closing.cancelled() => Ended::Cut,
        }
    }
}

impl From<Result<(), h2::Error>> for Ended {
    fn from(result: Result<(), h2::Error>) -> Self {
        let Err(error) = result else {
            return Self::Gracefully;
        };
        match error.reason() {
            Some(h2::Reason::NO_ERROR) => Self::Gracefully,
            _ if error.is_io() => Self::Lost(plain(error.into_io().expect("just asked"))),
            _ => Self::Protocol(error),
        }
    }
}

/// The same, in words for operators: rustls tells programmers where to read about it.
fn plain(error: io::Error) -> io::Error {
    match error.kind() {
        io::ErrorKind::UnexpectedEof => {
            io::Error::new(error.kind(), "the other end went away without a word")
        }
        _ => error,
    }
}

impl Ended {
    /// One word for metrics.
    pub fn label(&self) -> &'static str {
        match self {
            Self::Gracefully => "graceful",
            Self::Cut => "cut",
            Self::Silent => "silent",
            Self::Lost(_) => "lost",
            Self::Protocol(_) => "protocol",
        }
    }
}
