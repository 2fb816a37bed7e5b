//! HTTP/1.1 (RFC 9112) without connections and tasks: what kas as a server and agentk as a client have in common.
//!
//! ```text
//!  bytes in ── Received ──> request::take ── Decoder ──> Bytes of a body, cut out of what was read
//!  bytes out <── Queue <── response::write, Outgoing <── frames of a body
//! ```
//!
//! Whoever reads here reads strangers. What is ambiguous is refused: where two servers understand a message differently, one
//! of them can be made to see a request that the other has not checked.
#![warn(missing_docs)]

mod chunked;
mod decoder;
pub mod fields;
mod outgoing;
mod queue;
mod received;
pub mod request;
pub mod response;

use std::{error::Error as StdError, io};

pub use self::{decoder::Decoder, outgoing::Outgoing, queue::Queue, received::Received};

/// Why an exchange ended before its end.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Of the connection.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// The other end hung up.
    #[error("connection closed before message completed")]
    Closed,
    /// The other end said something that is no message, or cannot be told apart from the next one.
    #[error("{0}")]
    Malformed(&'static str),
    /// What is to be sent cannot be sent as it is, or failed before its end.
    #[error("{0}")]
    Outgoing(Box<dyn StdError + Send + Sync>),
}

/// How long a message's body is (RFC 9112 section 6.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Length {
    /// So many bytes.
    Exactly(u64),
    /// In chunks, the last of which says so.
    Chunked,
    /// All that is said until the connection ends.
    UntilClosed,
}
