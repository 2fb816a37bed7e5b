//! What must run for kas's end of a tunnel to live.

use std::{future::poll_fn, io, sync::Arc};

use crate::{
    Keepalive,
    http2::{Connection, Error, Fault, Pings, Reason, Transport},
    keepalive::Liveness,
};

/// The connection behind a [`crate::Tunnel`]. Nothing moves unless [`Driver::run`] is polled.
#[must_use = "a tunnel moves nothing unless its driver runs"]
pub struct Driver<S> {
    connection: Connection<S>,
    keepalive: Keepalive,
    liveness: Arc<Liveness>,
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
    Protocol(Fault),
    /// The other end says that this one broke HTTP/2.
    #[error("the other end gave the connection up: {0}")]
    GivenUp(Reason),
}

impl<S: Transport> Driver<S> {
    pub(crate) fn new(connection: Connection<S>, keepalive: Keepalive, liveness: Arc<Liveness>) -> Self {
        Self { connection, keepalive, liveness }
    }

    /// Moves bytes until the tunnel ends. Dropping the future cuts it.
    pub async fn run(mut self) -> Ended {
        let pings = Pings::of(&self.connection);
        tokio::select! {
            biased;
            result = poll_fn(|cx| self.connection.poll(cx, &mut |_| {})) => result.into(),
            () = self.keepalive.watch(pings, self.liveness) => Ended::Silent,
        }
    }
}

impl From<Result<(), Error>> for Ended {
    fn from(result: Result<(), Error>) -> Self {
        match result {
            Ok(()) | Err(Error::Ended) => Self::Gracefully,
            Err(Error::Given) => Self::Cut,
            Err(Error::Io(error)) => Self::Lost(plain(&error)),
            Err(Error::Broken(fault)) => Self::Protocol(fault),
            Err(Error::GoneAway(reason) | Error::Reset(reason)) => Self::GivenUp(reason),
            Err(Error::Malformed(_) | Error::Unseen) => unreachable!("these end streams"),
        }
    }
}

/// The same, in words for operators: rustls tells programmers where to read about it.
fn plain(error: &io::Error) -> io::Error {
    match error.kind() {
        io::ErrorKind::UnexpectedEof => {
            io::Error::new(error.kind(), "the other end went away without a word")
        }
        kind => io::Error::new(kind, error.to_string()),
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
            Self::Protocol(_) | Self::GivenUp(_) => "protocol",
        }
    }
}
