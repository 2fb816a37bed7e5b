//! The projects of a group and of the groups below it, as the holder of a credential sees them.
//!
//! The endpoint is public: requests have the credential of a user, and not the JWT of kas.

use http::StatusCode;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Deserialize;

use super::{Credential, Endpoint, GitLabClient, GitLabError, client::ObjectIds};

/// The projects that are asked for. GitLab lists at most 100 at once.
const PAGE: usize = 100;

/// Projects of a group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GroupProjects {
    /// The full paths, the oldest project first.
    pub paths: Vec<String>,
    /// The group may have more projects.
    pub is_cut: bool,
}

/// A project in a response.
#[derive(Deserialize)]
struct ProjectEntry {
    path_with_namespace: String,
}

impl GitLabClient {
    /// Returns the first 100 projects of a group and of the groups below it, or `None` if the holder of the credential cannot see the
    /// group.
    ///
    /// # Errors
    ///
    /// GitLab refuses the credential, or gives no usable answer.
    pub async fn group_projects(
        &self,
        group: &str,
        credential: Credential<'_>,
    ) -> Result<Option<GroupProjects>, GitLabError> {
        let id = utf8_percent_encode(group, NON_ALPHANUMERIC).to_string();
        let ids = ObjectIds { project: &id, ..ObjectIds::default() };
        let per_page = PAGE.to_string();
        let query = [
            ("include_subgroups", "true"),
            ("with_shared", "false"),
            ("archived", "false"),
            ("simple", "true"),
            ("order_by", "id"),
            ("sort", "asc"),
            ("per_page", &*per_page),
            ("page", "1"),
        ];
        let result = self.get_at(Endpoint::GroupProjects, ids, &query, credential).await;
        let found: Vec<ProjectEntry> = match result {
            Err(error) if error.is_status(StatusCode::NOT_FOUND) => return Ok(None),
            result => result?,
        };
        let is_cut = found.len() >= PAGE;
        let paths = found.into_iter().take(PAGE).map(|project| project.path_with_namespace).collect();
        Ok(Some(GroupProjects { paths, is_cut }))
    }
}
