//! The end of a program by a defect.

/// A task without which agentk cannot run has panicked.
#[derive(Debug, thiserror::Error)]
#[error(
    "a background task panicked, so that agentk had to stop; this is a defect, and the log has the panic"
)]
pub struct TaskPanicError;
