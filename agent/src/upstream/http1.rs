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
mod connection;
mod exchange;
mod head;

pub(super) use ::http1::Error;

pub use self::answer::Answer;
pub(super) use self::{connection::Connection, exchange::exchange};
