//! The statuses of commits, as GitLab shows them beside pipelines.
//!
//! The endpoints are public: requests have a token of the operator, which needs the scope `api` and the role Developer in the
//! project, and not the JWT of kas.

use std::path::PathBuf;

use futures_util::future::BoxFuture;
use gitops_wire::{CommitState, CommitStatus, CommitStatusApi, CommitStatusError, StatusPlace};
use http::{Method, StatusCode};
use secrecy::SecretString;
use serde::{Deserialize, Serialize};

use super::{
    Credential, Endpoint, GitLabClient, GitLabError,
    client::{ObjectIds, read_token},
};

/// The statuses of commits in a GitLab, for which the operator has given kas a token.
#[derive(Debug)]
pub struct GitLabCommitStatuses {
    client: GitLabClient,
    token_file: PathBuf,
}

#[derive(Serialize)]
struct StatusBody<'a> {
    state: CommitState,
    name: &'a str,
    description: &'a str,
}

#[derive(Deserialize)]
struct StatusEntry {
    status: CommitState,
    description: Option<String>,
}

impl GitLabCommitStatuses {
    /// Returns the statuses of a GitLab, if the operator has given kas a token for them.
    pub fn new(client: &GitLabClient) -> Option<Self> {
        Some(Self { client: client.clone(), token_file: client.status_token_file()?.to_owned() })
    }

    async fn token(&self) -> Result<SecretString, GitLabError> {
        let token = read_token(&self.token_file, "gitlab.commit_status_token_file").await;
        token.map_err(GitLabError::unavailable)
    }
}

impl CommitStatusApi for GitLabCommitStatuses {
    fn get<'a>(
        &'a self,
        place: StatusPlace<'a>,
    ) -> BoxFuture<'a, Result<Option<CommitStatus>, CommitStatusError>> {
        Box::pin(async move {
            let token = self.token().await?;
            Ok(self.client.commit_status(place, Credential::User(&token)).await?)
        })
    }

    fn set<'a>(
        &'a self,
        place: StatusPlace<'a>,
        status: &'a CommitStatus,
    ) -> BoxFuture<'a, Result<(), CommitStatusError>> {
        Box::pin(async move {
            let token = self.token().await?;
            Ok(self.client.set_commit_status(place, status, Credential::User(&token)).await?)
        })
    }
}

impl From<GitLabError> for CommitStatusError {
    fn from(error: GitLabError) -> Self {
        let message = error.to_string();
        match error {
            GitLabError::Status { .. } => Self::Refused(message),
            GitLabError::Unavailable { .. } => Self::Unavailable(message),
        }
    }
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
        let ids = ObjectIds { project: &project, object: place.commit, ..ObjectIds::default() };
        let found: Vec<StatusEntry> = self.get_at(Endpoint::CommitStatuses, ids, &query, credential).await?;
        let status = found.into_iter().next();
        Ok(status.map(|StatusEntry { status: state, description }| CommitStatus {
            state,
            description: description.unwrap_or_default(),
        }))
    }

    /// Sets the status of a commit.
    ///
    /// # Errors
    ///
    /// As [`Self::commit_status`].
    pub async fn set_commit_status(
        &self,
        place: StatusPlace<'_>,
        status: &CommitStatus,
        credential: Credential<'_>,
    ) -> Result<(), GitLabError> {
        let CommitStatus { state, description } = status;
        let body = StatusBody { state: *state, name: place.name, description };
        let project = place.project.to_string();
        let ids = ObjectIds { project: &project, object: place.commit, ..ObjectIds::default() };
        let set: Result<serde::de::IgnoredAny, _> =
            self.write_at((Method::POST, Endpoint::SetCommitStatus), ids, &body, credential).await;
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
