//! The error of a body.

/// The reason why a body is incomplete.
#[derive(Debug, thiserror::Error)]
pub enum BodyError {
    /// The stream was reset by the other end, or the tunnel was lost.
    #[error("the tunnel ended in the middle of a body: {0}")]
    Tunnel(#[from] h2::Error),
    /// This end reset the stream: [`StreamMonitor::reset`](crate::StreamMonitor::reset) or [`end_at`](crate::end_at).
    #[error("this end reset the stream")]
    Reset,
    /// The error of the inner body of [`Body::new`](crate::Body::new).
    #[error("{0}")]
    Other(Box<dyn std::error::Error + Send + Sync>),
}
