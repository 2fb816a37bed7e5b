//! The mark of a response that is a stream.

use std::time::Duration;

use tokio_util::sync::CancellationToken;

/// An extension of a response whose body is a stream: the connection is not idle while it is sent.
#[derive(Clone, Debug)]
pub struct HoldOpen {
    /// Cancelled when the body is dropped.
    pub until: CancellationToken,
    /// The longest time: a client may stop reading.
    pub at_most: Duration,
}
