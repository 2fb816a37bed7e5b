//! The statuses of commits, as GitLab shows them beside pipelines.
//!
//! The endpoints are public: requests have a token of the operator, which needs the scope `api` and the role Developer in the
//! project, and not the JWT of kas.

use http::StatusCode;
use serde::{Deserialize, Serialize};

use super::{Credential, Endpoint, GitLabClient, GitLabError, client::ObjectIds};

/// The longest description that GitLab accepts, in characters.
pub const MAX_DESCRIPTION: usize = 255;

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

#[derive(Serialize)]
struct StatusBody<'a> {
    state: CommitState,
    name: &'a str,
    description: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    target_url: Option<&'a str>,
}

#[derive(Deserialize)]
struct StatusEntry {
    status: CommitState,
    description: Option<String>,
}

impl GitLabClient {
    /// Returns the present status of a commit with this name.
    ///
    /// # Errors
    ///
    /// GitLab refuses the token, or gives no usable answer.
    pub async fn commit_status(
        &self,
        place: StatusPlace<'_>,
        credential: Credential<'_>,
    ) -> Result<Option<CommitStatus>, GitLabError> {
        let query = [("name", place.name), ("per_page", "1")];
        let project = place.project.to_string();
        let ids = ObjectIds { project: &project, commit: place.commit };
        let found: Vec<StatusEntry> = self.get_at(Endpoint::CommitStatuses, ids, &query, credential).await?;
        let status = found.into_iter().next();
        Ok(status.map(|StatusEntry { status: state, description }| CommitStatus {
            state,
            description: description.unwrap_or_default(),
        }))
    }

    /// Sets the status of a commit. `page` is the URL of its details.
    ///
    /// # Errors
    ///
    /// As [`Self::commit_status`].
    pub async fn set_commit_status(
        &self,
        place: StatusPlace<'_>,
        status: &CommitStatus,
        page: Option<&str>,
        credential: Credential<'_>,
    ) -> Result<(), GitLabError> {
        let CommitStatus { state, description } = status;
        let body = StatusBody { state: *state, name: place.name, description, target_url: page };
        let project = place.project.to_string();
        let ids = ObjectIds { project: &project, commit: place.commit };
        let set: Result<serde::de::IgnoredAny, _> =
            self.post_at(Endpoint::SetCommitStatus, ids, &body, credential).await;
        match set {
            // It has this state already.
            Err(GitLabError::Status { status: StatusCode::BAD_REQUEST, message })
                if message.starts_with("Cannot transition status") =>
            {
                Ok(())
            }
            set => set.map(drop),
        }
    }
}
