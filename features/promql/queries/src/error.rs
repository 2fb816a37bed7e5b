use std::error::Error;

use proto::Reason;

/// The reason for which a request of a restricted caller is not sent.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct QueryError {
    /// The reason for programs.
    pub reason: Reason,
    /// The cause and the remedy, for people.
    pub message: String,
    /// The error with which the body of the request ended.
    #[source]
    pub body: Option<Box<dyn Error + Send + Sync>>,
}

impl QueryError {
    pub(crate) fn new(reason: Reason, message: impl Into<String>) -> Self {
        Self { reason, message: message.into(), body: None }
    }

    pub(crate) fn bad_request(message: impl Into<String>) -> Self {
        Self::new(Reason::BadRequest, message)
    }

    /// The labels cannot be applied to the request.
    pub(crate) fn not_enforceable(message: impl Into<String>) -> Self {
        Self::new(Reason::NotEnforceable, message)
    }
}
