//! HTTP/1.1 as a client, in the task of whoever asks.
//!
//! A connection has no task and no channel: the future of a request writes it and reads the head of its answer, and the
//! answer's body reads on from there. What was received is cut into heads and chunks without a copy. A short answer that came
//! with its head, as most do, is whole at once, and its connection free before anybody looks at it.
//!
//! ```text
//!  Lease ── exchange ──> Response<Answer> ── the last byte ──> Pool
//!    │         │                │
//!    │         └── Outgoing ────┴── what is left of a request after its answer: a task of its own
//!    └── Connection: a socket, and what it has said
//! ```

mod answer;
mod chunked;
mod connection;
mod exchange;
mod head;
mod outgoing;

use std::{error::Error as StdError, io};

pub use self::answer::Answer;
pub(super) use self::{connection::Connection, exchange::exchange};

/// Why an exchange ended before its end.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Of the connection.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// The server hung up.
    #[error("connection closed before message completed")]
    Closed,
    /// The server said something that is not an answer, or cannot be told apart from the next one.
    #[error("{0}")]
    Malformed(&'static str),
    /// The request cannot be sent as it is.
    #[error("{0}")]
    Request(Box<dyn StdError + Send + Sync>),
}
