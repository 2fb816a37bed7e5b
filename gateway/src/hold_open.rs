//! The mark of a response that is a stream.

use std::time::Duration;

use tokio_util::sync::CancellationToken;

/// An extension of a response whose body is a stream: the connection is not idle while it is sent.
#[derive(Clone, Debug)]
pub(crate) struct HoldOpen {
    /// Cancelled when the body is dropped.
    pub(crate) until: CancellationToken,
    /// The longest time: a client may stop reading.
    pub(crate) at_most: Duration,
}
