//! HTTP/2 (RFC 9113) between two ends of ours: the client is kas, the server is agentk.
//!
//! ```text
//!   Sending, Receiving ── Shared ── Streams ── Outbox ──► Connection ──► transport
//!   (whoever asks or answers)          ▲                                     │
//!                                      └────────── Inbox ◄───────────────────┘
//! ```
//!
//! * `Streams` is what a connection knows: pure, behind one lock, without I/O.
//! * `Connection` is the task that reads and writes; `Sending` and `Receiving` are in the hands of those who ask and
//!   answer, on whichever core.
//! * DATA is handed on as it arrives, however long its frame; what is small goes out with the next write, and bulk takes
//!   turns.
//!
//! Why not a library: this is the path of every byte. Both ends are known, so there is no priority, no push and no packing
//! with Huffman's code, heads are packed from where they are, an answer that is there as a whole costs one look, and an
//! idle connection holds no buffer.

mod connection;
mod error;
mod frame;
mod held;
mod hpack;
mod inbox;
mod message;
mod outbox;
mod pings;
mod queue;
mod shared;
mod stream;
mod streams;
mod transport;

pub(crate) use self::{
    connection::Connection,
    held::{Receiving, Sending, View, arrived, ask},
    message::Protocol,
    pings::Pings,
    shared::Shared,
    streams::{Arrived, Role, Unsent},
};
pub use self::{
    error::{Error, Fault, Reason},
    outbox::Batch,
    transport::Transport,
};
