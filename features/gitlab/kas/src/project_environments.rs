//! The environments of a project, as a user or a CI job sees them: with the agent and the namespace that are selected for each.
//!
//! The endpoint is public: requests have the credential of the caller, and not the JWT of kas.

use http::StatusCode;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Deserialize;

use super::{Credential, Endpoint, GitLabClient, GitLabError, client::ObjectIds};

/// The environments of one page.
const PAGE: usize = 100;
/// The most pages of a project. Further environments are found by their slug only.
const MAX_PAGES: usize = 5;

/// An environment of a project.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProjectEnvironment {
    /// The id, which is unique in GitLab.
    pub id: u64,
    /// The id of the project.
    pub project_id: Option<u64>,
    /// The name in URLs and labels. It is unique in the project.
    pub slug: String,
    /// The name for people, like `review/main`.
    pub name: Option<String>,
    /// The name of the tier, in lower case.
    pub tier: String,
    /// The id of the agent and the namespace, if there are both.
    pub place: Option<(u64, String)>,
}

/// An environment in a response.
#[derive(Deserialize)]
struct EnvironmentEntry {
    id: u64,
    slug: String,
    name: Option<String>,
    tier: Option<String>,
    project: Option<Id>,
    cluster_agent: Option<Id>,
    kubernetes_namespace: Option<String>,
}

#[derive(Deserialize)]
struct Id {
    id: u64,
}

impl GitLabClient {
    /// Returns the available environments of a project, at most 500, or the one whose name is `name`. A stopped environment has no place,
    /// and a project that the holder of the credential cannot see has no environment.
    ///
    /// # Errors
    ///
    /// GitLab refuses the credential, or gives no usable answer.
    pub async fn project_environments(
        &self,
        project: &str,
        name: Option<&str>,
        credential: Credential<'_>,
    ) -> Result<Vec<ProjectEnvironment>, GitLabError> {
        let id = utf8_percent_encode(project, NON_ALPHANUMERIC).to_string();
        let mut environments = Vec::new();
        for page in 1..=MAX_PAGES {
            let (page, per_page) = (page.to_string(), PAGE.to_string());
            let query = match name {
                Some(name) => vec![("name", name), ("states", "available")],
                None => vec![("states", "available"), ("per_page", &*per_page), ("page", &*page)],
            };
            let ids = ObjectIds { project: &id, ..ObjectIds::default() };
            let result = self.get_at(Endpoint::ProjectEnvironments, ids, &query, credential).await;
            let found: Vec<EnvironmentEntry> = match result {
                Err(error) if error.is_status(StatusCode::NOT_FOUND) => break,
                result => result?,
            };
            let is_last = found.len() < PAGE;
            environments.extend(found.into_iter().map(EnvironmentEntry::into_environment));
            if is_last {
                break;
            }
        }
        Ok(environments)
    }
}

impl EnvironmentEntry {
    fn into_environment(self) -> ProjectEnvironment {
        ProjectEnvironment {
            id: self.id,
            project_id: self.project.map(|project| project.id),
            slug: self.slug,
            name: self.name,
            tier: self.tier.unwrap_or_default().to_ascii_lowercase(),
            place: self.cluster_agent.and_then(|agent| Some((agent.id, self.kubernetes_namespace?))),
        }
    }
}
