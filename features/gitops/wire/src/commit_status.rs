//! The statuses of commits, as GitLab shows them beside pipelines.

use std::fmt;

use futures_util::future::BoxFuture;
use serde::{Deserialize, Serialize};

/// The longest description that GitLab accepts, in characters.
pub const MAX_DESCRIPTION: usize = 255;

/// A server that has statuses of commits.
pub trait CommitStatusApi: fmt::Debug + Send + Sync {
    /// Returns the present status at a place.
    ///
    /// # Errors
    ///
    /// The server refuses the request, or does not respond.
    fn get<'a>(
        &'a self,
        place: StatusPlace<'a>,
    ) -> BoxFuture<'a, Result<Option<CommitStatus>, CommitStatusError>>;

    /// Sets the status at a place.
    ///
    /// # Errors
    ///
    /// The server refuses the request, or does not respond.
    fn set<'a>(
        &'a self,
        place: StatusPlace<'a>,
        status: &'a CommitStatus,
    ) -> BoxFuture<'a, Result<(), CommitStatusError>>;
}

/// The error of a request about a status.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CommitStatusError {
    /// The server refuses it. Another attempt gives the same.
    #[error("{0}")]
    Refused(String),
    /// The server gave no answer that can be used.
    #[error("{0}")]
    Unavailable(String),
}

/// The status of a commit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommitStatus {
    /// The state.
    pub state: CommitState,
    /// The reason, of at most [`MAX_DESCRIPTION`] characters.
    pub description: String,
}

/// The state of a commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CommitState {
    /// It is not known yet.
    Pending,
    /// It succeeded.
    Success,
    /// It failed.
    Failed,
    /// It was replaced.
    Canceled,
    /// A state that kas does not set.
    #[serde(other, skip_serializing)]
    Other,
}

/// The place of a status.
#[derive(Clone, Copy, Debug)]
pub struct StatusPlace<'a> {
    /// The id of the project.
    pub project: u64,
    /// The id of the commit.
    pub commit: &'a str,
    /// The name, which tells it from the statuses of others.
    pub name: &'a str,
}
