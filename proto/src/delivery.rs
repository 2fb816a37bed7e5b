//! The progress of a request without a response, which decides whether a retry can do harm.

/// The progress of a request without a response.
///
/// The tunnel reports it with each error, and the retry policy of kas depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delivery {
    /// The other end has certainly not acted on the request: it was not sent, or the stream was refused with
    /// `REFUSED_STREAM` or GOAWAY (RFC 9113 section 8.7).
    NotProcessed,
    /// The other end may have acted on the request.
    Unknown,
}
