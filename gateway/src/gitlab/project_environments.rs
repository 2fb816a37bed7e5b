//! The environments of a project, as a user or a CI job sees them: by GraphQL, or by REST if GraphQL fails.
//!
//! GraphQL has the agent and the namespace of the last deployment. A GitLab whose schema has no agent in deployments refuses the
//! query, and the tokens of CI jobs are for REST only. REST has the agent and the namespace that are selected for the environment.
//! Both are public endpoints: requests have the credential of the caller, and not the JWT of kas.

use http::StatusCode;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde::{Deserialize, Deserializer, Serialize, de::Error as _};

use super::{Credential, Endpoint, GitLabClient, GitLabError};

/// The environments of one page.
const PAGE: usize = 100;
/// The most pages of a project. Further environments are found by their slug only.
const MAX_PAGES: usize = 5;

/// The query of an environment by its name.
const BY_NAME: &str = "query($project: ID!, $name: String!) { project(fullPath: $project) { id \
    environment(name: $name) { id slug tier lastDeployment(status: SUCCESS) { agent { id kubernetesNamespace } } } } }";
/// The query of the environments of a project, page by page.
const ALL: &str = "query($project: ID!, $after: String) { project(fullPath: $project) { id \
    environments(states: [\"available\"], first: 100, after: $after) { \
    nodes { id slug tier lastDeployment(status: SUCCESS) { agent { id kubernetesNamespace } } } \
    pageInfo { hasNextPage endCursor } } } }";

/// An environment of a project.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProjectEnvironment {
    /// The id, which is unique in GitLab.
    pub id: u64,
    /// The id of the project.
    pub project_id: Option<u64>,
    /// The name in URLs and labels. It is unique in the project.
    pub slug: String,
    /// The name of the tier, in lower case.
    pub tier: String,
    /// The id of the agent and the namespace, if there are both.
    pub place: Option<(u64, String)>,
}

#[derive(Serialize)]
struct Query<'a> {
    query: &'static str,
    variables: Variables<'a>,
}

#[derive(Serialize)]
struct Variables<'a> {
    project: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    after: Option<&'a str>,
}

#[derive(Deserialize)]
struct QueryResponse {
    data: Option<Data>,
    #[serde(default)]
    errors: Vec<QueryError>,
}

#[derive(Deserialize)]
struct QueryError {
    #[serde(default)]
    message: String,
}

#[derive(Deserialize)]
struct Data {
    project: Option<Project>,
}

#[derive(Deserialize)]
struct Project {
    #[serde(deserialize_with = "global_id")]
    id: u64,
    environment: Option<Node>,
    environments: Option<Connection>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Connection {
    nodes: Vec<Node>,
    page_info: PageInfo,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct PageInfo {
    has_next_page: bool,
    end_cursor: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Node {
    #[serde(deserialize_with = "global_id")]
    id: u64,
    slug: String,
    tier: Option<String>,
    last_deployment: Option<LastDeployment>,
}

#[derive(Deserialize)]
struct LastDeployment {
    agent: Option<DeploymentAgent>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct DeploymentAgent {
    #[serde(deserialize_with = "global_id")]
    id: u64,
    kubernetes_namespace: Option<String>,
}

/// An environment in a response of REST.
#[derive(Deserialize)]
struct RestEnvironment {
    id: u64,
    slug: String,
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
    /// Returns the available environments of a project, at most 500, or the one whose name is `name`. A project that the holder of
    /// the credential cannot see has none.
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
        if let Credential::User(_) = credential {
            match self.by_graphql(project, name, credential).await {
                // Only REST may accept the credential, or know the fields.
                Err(GitLabError::Status { status, message }) if status != StatusCode::UNAUTHORIZED => {
                    tracing::debug!(%status, message, "GraphQL query refused by GitLab: REST is used");
                }
                result => return result,
            }
        }
        self.by_rest(project, name, credential).await
    }

    async fn by_graphql(
        &self,
        path: &str,
        name: Option<&str>,
        credential: Credential<'_>,
    ) -> Result<Vec<ProjectEnvironment>, GitLabError> {
        let mut environments = Vec::new();
        let mut after: Option<String> = None;
        for _ in 0..MAX_PAGES {
            let variables = Variables { project: path, name, after: after.as_deref() };
            let query = Query { query: if name.is_some() { BY_NAME } else { ALL }, variables };
            let response: QueryResponse = self.post(Endpoint::GraphQl, &query, credential).await?;
            let Some(project) = response.into_data()?.project else { break };
            let Project { id, environment, environments: connection } = project;
            environments.extend(environment.map(|node| node.into_environment(id)));
            let Some(Connection { nodes, page_info }) = connection else { break };
            environments.extend(nodes.into_iter().map(|node| node.into_environment(id)));
            match page_info.end_cursor.filter(|_| page_info.has_next_page) {
                Some(cursor) => after = Some(cursor),
                None => break,
            }
        }
        Ok(environments)
    }

    async fn by_rest(
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
                Some(name) => vec![("name", name)],
                None => vec![("states", "available"), ("per_page", &*per_page), ("page", &*page)],
            };
            let result = self.get_at(Endpoint::ProjectEnvironments, &id, &query, credential).await;
            let found: Vec<RestEnvironment> = match result {
                Err(error) if error.is_status(StatusCode::NOT_FOUND) => break,
                result => result?,
            };
            let is_last = found.len() < PAGE;
            environments.extend(found.into_iter().map(RestEnvironment::into_environment));
            if is_last {
                break;
            }
        }
        Ok(environments)
    }
}

impl QueryResponse {
    /// Returns the data of a response without errors.
    fn into_data(self) -> Result<Data, GitLabError> {
        match (self.errors.into_iter().next(), self.data) {
            (None, Some(data)) => Ok(data),
            // A GraphQL server responds 200 to a query that it refuses.
            (error, _) => {
                let message = error.map_or_else(|| "no data".to_owned(), |error| error.message);
                Err(GitLabError::refused(&message))
            }
        }
    }
}

impl Node {
    fn into_environment(self, project: u64) -> ProjectEnvironment {
        let agent = self.last_deployment.and_then(|deployment| deployment.agent);
        ProjectEnvironment {
            id: self.id,
            project_id: Some(project),
            slug: self.slug,
            tier: self.tier.unwrap_or_default().to_ascii_lowercase(),
            place: agent.and_then(|agent| Some((agent.id, agent.kubernetes_namespace?))),
        }
    }
}

impl RestEnvironment {
    fn into_environment(self) -> ProjectEnvironment {
        ProjectEnvironment {
            id: self.id,
            project_id: self.project.map(|project| project.id),
            slug: self.slug,
            tier: self.tier.unwrap_or_default().to_ascii_lowercase(),
            place: self.cluster_agent.and_then(|agent| Some((agent.id, self.kubernetes_namespace?))),
        }
    }
}

/// Deserializes an id: a number, or the last part of `gid://gitlab/Environment/1`.
fn global_id<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum GlobalId {
        Number(u64),
        Text(String),
    }
    match GlobalId::deserialize(deserializer)? {
        GlobalId::Number(id) => Ok(id),
        GlobalId::Text(text) => {
            let number = text.rsplit('/').next().and_then(|id| id.parse().ok());
            number.ok_or_else(|| D::Error::custom("not an id"))
        }
    }
}
