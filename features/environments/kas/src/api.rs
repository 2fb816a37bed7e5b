//! The environments and the deployments to them: `GET /api/v1/environments` and `GET /api/v1/deployments` of the internal API, and
//! `GET /environments` and `GET /deployments` of the observability listener, which asks no agent for the health.

use std::{sync::Arc, time::SystemTime};

use axum::{
    Router,
    extract::{RawQuery, State},
    response::{IntoResponse, Response},
    routing::get,
};
use environments_wire::{
    DeploymentOrigin, DeploymentRecords as _, DeploymentStatus, Environment, EnvironmentError,
    EnvironmentReader, EnvironmentSelection, EnvironmentSources, GitLabToken, LastDeployments,
    MissingEnvironments, is_project,
};
use globset::Glob;
use http::{HeaderMap, HeaderName};
use kas_core::api::{
    ApiContext, InternalApiError, QueryError, ok,
    query::{DEFAULT_LIMIT, MAX_LENGTH, decoded, limit, number, set_once},
};
use proto::{AgentId, ReplicaId};
use serde::{Deserialize, Serialize};
use settings::rfc3339;

use super::{
    DeploymentEntry, DeploymentQuery, DeploymentSelection, Deployments,
    discovery::KnownProjects,
    environment_request::{EnvironmentRequest, parse_environments, tier},
    health::{EnvironmentStatus, HealthInquiry},
};

/// The headers in which GitLab accepts the token of a user or a CI job.
const USER_TOKEN: HeaderName = HeaderName::from_static("private-token");
const JOB_TOKEN: HeaderName = HeaderName::from_static("job-token");

/// The first digits of a commit that a query has at least, as Git abbreviates commits, and the digits of SHA-256.
const MIN_COMMIT: usize = 7;
const MAX_COMMIT: usize = 64;

/// The environments of all sources, and the deployments to them.
#[derive(Clone, Debug)]
pub(crate) struct EnvironmentLists {
    pub(crate) replica: ReplicaId,
    pub(crate) environments: EnvironmentSources,
    pub(crate) deployments: Deployments,
}

/// The state of the routes of the internal API.
#[derive(Debug)]
struct EnvironmentsApi {
    lists: EnvironmentLists,
    /// Asks agents for the health of environments.
    health: HealthInquiry,
    context: ApiContext,
}

/// The environments that a query selects.
#[derive(Debug, Serialize, Deserialize)]
pub struct EnvironmentList {
    replica: ReplicaId,
    #[serde(with = "rfc3339")]
    time: SystemTime,
    /// The parts that could not be read, with the reasons.
    missing: Vec<MissingEnvironments>,
    /// The environments, in order of their ids; those of a page in order of project and slug.
    environments: Vec<EnvironmentStatus>,
    /// The value of `continue` for the next page, if there is one.
    #[serde(rename = "continue")]
    next: Option<String>,
}

/// The deployments that a query selects.
#[derive(Debug, Serialize, Deserialize)]
pub struct DeploymentList {
    replica: ReplicaId,
    #[serde(with = "rfc3339")]
    time: SystemTime,
    /// The error because of which deployments are missing.
    missing: Option<String>,
    /// The number of deployments that an environment may have, and of which kas does not know whether the query selects them.
    unclear: usize,
    /// The deployments, the newest first.
    deployments: Vec<DeploymentEntry>,
}

/// The environments of a page.
struct LoadedPage {
    environments: Vec<Environment>,
    missing: Vec<MissingEnvironments>,
    /// The last deployments to each, if they are asked for.
    deployments: Option<Vec<LastDeployments>>,
    next: Option<String>,
}

impl IntoResponse for EnvironmentList {
    fn into_response(self) -> Response {
        ok(&self)
    }
}

impl IntoResponse for DeploymentList {
    fn into_response(self) -> Response {
        ok(&self)
    }
}

/// Returns the routes of the internal API.
pub(crate) fn routes(context: ApiContext, lists: EnvironmentLists, health: HealthInquiry) -> Router {
    Router::new()
        .route("/api/v1/environments", get(list_environments))
        .with_state(Arc::new(EnvironmentsApi { lists: lists.clone(), health, context }))
        .merge(Router::new().route("/api/v1/deployments", get(list_deployments)).with_state(Arc::new(lists)))
}

/// Returns the routes of the observability listener.
pub(crate) fn admin_routes(lists: EnvironmentLists) -> Router {
    Router::new()
        .route("/environments", get(list_without_health))
        .route("/deployments", get(list_deployments))
        .with_state(Arc::new(lists))
}

async fn list_environments(
    State(api): State<Arc<EnvironmentsApi>>,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
) -> Result<EnvironmentList, InternalApiError> {
    let EnvironmentsApi { lists, health, context } = &*api;
    let request = parse_environments(query.as_deref().unwrap_or_default())?;
    // The clients of this API may list all agents, so that the token of the operator is for them, too.
    let token = gitlab_token(&headers)?;
    let reader = token.as_ref().map_or(EnvironmentReader::Operator, EnvironmentReader::Holder);
    let discovered = async |selection: EnvironmentSelection| {
        if !request.with_discovered {
            return Ok(selection);
        }
        let records = lists.deployments.list().await.unwrap_or_default();
        let mut projects = KnownProjects::new(&records, &selection.environments);
        if let Some(project) = request.query.project.as_deref().filter(|path| is_project(path)) {
            projects.add(None, project);
        }
        let mut all = selection.with(health.discover(&context.lookup, projects).await?);
        all.environments.retain(|environment| request.query.selects(environment));
        Ok(all)
    };
    let LoadedPage { environments, missing, deployments, next } =
        lists.load(&request, reader, discovered).await?;
    let environments = if request.with_health {
        health.complete(environments, &context.lookup).await?
    } else {
        environments.into_iter().map(EnvironmentStatus::from).collect()
    };
    Ok(lists.list(environments, missing, deployments, next))
}

async fn list_without_health(
    State(lists): State<Arc<EnvironmentLists>>,
    RawQuery(query): RawQuery,
) -> Result<EnvironmentList, InternalApiError> {
    let request = parse_environments(query.as_deref().unwrap_or_default())?;
    if request.with_health {
        let what = "health: only GET /api/v1/environments of the internal API asks for the health";
        return Err(InternalApiError::BadRequest(what.to_owned()));
    }
    if request.with_discovered {
        let what =
            "discovered: only GET /api/v1/environments of the internal API asks agents for environments";
        return Err(InternalApiError::BadRequest(what.to_owned()));
    }
    // Everybody can reach the listener: no token of a stranger goes to GitLab, and they get nothing by that of the operator.
    let LoadedPage { environments, missing, deployments, next } =
        lists.load(&request, EnvironmentReader::Public, async |selection| Ok(selection)).await?;
    let environments = environments.into_iter().map(EnvironmentStatus::from).collect();
    Ok(lists.list(environments, missing, deployments, next))
}

async fn list_deployments(
    State(lists): State<Arc<EnvironmentLists>>,
    RawQuery(query): RawQuery,
) -> Result<DeploymentList, InternalApiError> {
    let (query, limit) = parse_deployments(query.as_deref().unwrap_or_default())?;
    let (selection, missing) = match lists.deployments.select(&query, limit).await {
        Ok(selection) => (selection, None),
        Err(error) => (DeploymentSelection::default(), Some(error.to_string())),
    };
    let DeploymentSelection { entries: deployments, unclear } = selection;
    Ok(DeploymentList { replica: lists.replica, time: SystemTime::now(), missing, unclear, deployments })
}

impl EnvironmentLists {
    /// Returns the page that a request selects, of the list that `complete` returns, with the last deployments if the request asks for them.
    async fn load(
        &self,
        request: &EnvironmentRequest,
        reader: EnvironmentReader<'_>,
        complete: impl AsyncFnOnce(EnvironmentSelection) -> Result<EnvironmentSelection, InternalApiError>,
    ) -> Result<LoadedPage, InternalApiError> {
        let selection = self.environments.list(&request.of_sources(), reader).await.map_err(refusal)?;
        let (page, next) = request.page(complete(selection).await?);
        let EnvironmentSelection { environments, missing } = page.bounded();
        let deployments = if request.with_deployments {
            Some(self.last_deployments(&environments, reader).await)
        } else {
            None
        };
        Ok(LoadedPage { environments, missing, deployments, next })
    }

    /// Returns the last deployments to environments: those that GitLab shows the holder of the token, and otherwise those of the records.
    async fn last_deployments(
        &self,
        environments: &[Environment],
        reader: EnvironmentReader<'_>,
    ) -> Vec<LastDeployments> {
        let of_gitlab = match reader {
            EnvironmentReader::Holder(token) => self.environments.last_deployments(environments, token).await,
            EnvironmentReader::Public | EnvironmentReader::Operator => {
                environments.iter().map(|_| None).collect()
            }
        };
        let records = if of_gitlab.iter().all(Option::is_some) {
            Ok(Arc::default())
        } else {
            self.deployments.list().await
        };
        let of_records = |environment: &Environment| match &records {
            Ok(records) => LastDeployments::of_records(environment, &**records),
            Err(error) => LastDeployments::unknown(DeploymentOrigin::Jobs, error.to_string()),
        };
        let all = environments.iter().zip(of_gitlab);
        all.map(|(environment, found)| found.unwrap_or_else(|| of_records(environment))).collect()
    }

    fn list(
        &self,
        mut environments: Vec<EnvironmentStatus>,
        missing: Vec<MissingEnvironments>,
        deployments: Option<Vec<LastDeployments>>,
        next: Option<String>,
    ) -> EnvironmentList {
        if let Some(deployments) = deployments {
            let all = environments.into_iter().zip(deployments);
            environments = all.map(|(environment, last)| environment.with_deployments(last)).collect();
        }
        EnvironmentList { replica: self.replica, time: SystemTime::now(), missing, environments, next }
    }
}

/// Returns the error of a request for which the sources have this one.
fn refusal(error: EnvironmentError) -> InternalApiError {
    match error {
        EnvironmentError::Unavailable(unavailable) => unavailable.into(),
        EnvironmentError::Refused(_) => InternalApiError::Forbidden(error.to_string()),
        EnvironmentError::NoProject => InternalApiError::BadRequest(error.to_string()),
    }
}

/// Parses the query of deployments. Returns it with the largest number of deployments.
pub fn parse_deployments(text: &str) -> Result<(DeploymentQuery, usize), QueryError> {
    if text.len() > MAX_LENGTH {
        return Err(QueryError::TooLong);
    }
    let (mut query, mut most) = (DeploymentQuery::default(), None);
    for pair in text.split('&').filter(|pair| !pair.is_empty()) {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        match key {
            "project_id" | "project" | "environment" | "tier" | "agent" | "commit" | "status" | "limit"
                if value.is_empty() => {}
            "project_id" => {
                let project = number("project_id", value, "the number of a project")?;
                set_once("project_id", &mut query.project_id, project)?;
            }
            "project" => set_once("project", &mut query.project, decoded("project", value)?)?,
            "environment" => {
                let text = decoded("environment", value)?;
                let pattern = Glob::new(&text).map_err(|_| {
                    let text = text.chars().take(100).collect();
                    QueryError::Value("environment", text, "a slug or a pattern of slugs, like prod*")
                })?;
                set_once("environment", &mut query.environment, pattern.compile_matcher())?;
            }
            "tier" => set_once("tier", &mut query.tier, tier(&decoded("tier", value)?)?)?,
            "agent" => {
                let agent = AgentId(number("agent", value, "the number of an agent")?);
                set_once("agent", &mut query.agent, agent)?;
            }
            "commit" => set_once("commit", &mut query.commit, commit(value)?)?,
            "status" => set_once("status", &mut query.status, status(value)?)?,
            "limit" => set_once("limit", &mut most, limit(value)?)?,
            _ => {
                let known = "project_id, project, environment, tier, agent, commit, status and limit";
                return Err(QueryError::Unknown(key.chars().take(100).collect(), known));
            }
        }
    }
    Ok((query, most.unwrap_or(DEFAULT_LIMIT)))
}

/// Returns the first digits of a commit in lower case.
fn commit(text: &str) -> Result<String, QueryError> {
    let is_commit =
        (MIN_COMMIT..=MAX_COMMIT).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    if !is_commit {
        let text = text.chars().take(100).collect();
        return Err(QueryError::Value("commit", text, "a commit, or 7 or more of its first digits"));
    }
    Ok(text.to_ascii_lowercase())
}

fn status(name: &str) -> Result<DeploymentStatus, QueryError> {
    let status = DeploymentStatus::ALL.into_iter().find(|(known, _)| *known == name);
    let expected = "running, success, failed, canceled or unknown";
    status
        .map(|(_, status)| status)
        .ok_or_else(|| QueryError::Value("status", name.chars().take(100).collect(), expected))
}

/// Returns the token with which the caller sees environments of GitLab.
fn gitlab_token(headers: &HeaderMap) -> Result<Option<GitLabToken>, QueryError> {
    let mut tokens = [USER_TOKEN, JOB_TOKEN].into_iter().flat_map(|name| {
        let values = headers.get_all(&name).iter();
        values.map(move |value| (name.clone(), value)).collect::<Vec<_>>()
    });
    match (tokens.next(), tokens.next()) {
        (None, _) => Ok(None),
        (Some((name, value)), None) => {
            let token = value.to_str().ok().filter(|token| !token.is_empty());
            let token = token.ok_or(QueryError::Token)?.into();
            Ok(Some(if name == USER_TOKEN { GitLabToken::Personal(token) } else { GitLabToken::Job(token) }))
        }
        (Some(_), Some(_)) => Err(QueryError::Token),
    }
}

#[cfg(test)]
mod tests {
    use environments_wire::Tier;

    use super::*;

    #[test]
    fn token_of_gitlab_is_in_one_header() {
        let parse = |pairs: &[(HeaderName, &'static str)]| {
            let mut headers = HeaderMap::new();
            for (name, value) in pairs {
                headers.append(name, http::HeaderValue::from_static(value));
            }
            gitlab_token(&headers)
        };
        assert!(matches!(parse(&[]), Ok(None)));
        assert!(matches!(parse(&[(USER_TOKEN, "a")]), Ok(Some(GitLabToken::Personal(_)))));
        assert!(matches!(parse(&[(JOB_TOKEN, "a")]), Ok(Some(GitLabToken::Job(_)))));
        for headers in [
            &[(USER_TOKEN, "a"), (JOB_TOKEN, "b")][..],
            &[(JOB_TOKEN, "a"), (JOB_TOKEN, "a")],
            &[(USER_TOKEN, "")],
        ] {
            assert!(matches!(parse(headers), Err(QueryError::Token)), "{headers:?}");
        }
    }

    #[test]
    fn query_of_deployments_is_parsed() {
        let text = "project_id=7&project=shop%2Fweb&environment=prod*&tier=production&agent=1&commit=0A1B2C3\
                    &status=success&limit=5";
        let (query, limit) = parse_deployments(text).unwrap();
        assert_eq!((query.project_id, query.agent, limit), (Some(7), Some(AgentId(1)), 5));
        assert_eq!((query.project.as_deref(), query.commit.as_deref()), (Some("shop/web"), Some("0a1b2c3")));
        assert_eq!((query.tier, query.status), (Some(Tier::Production), Some(DeploymentStatus::Success)));
        let pattern = query.environment.unwrap();
        assert_eq!(["prod-eu", "staging"].map(|slug| pattern.is_match(slug)), [true, false]);
        let empty = "project_id=&project=&environment=&tier=&agent=&commit=&status=&limit=";
        for text in ["", empty] {
            let (query, limit) = parse_deployments(text).unwrap();
            assert_eq!((format!("{query:?}"), limit), (format!("{:?}", DeploymentQuery::default()), 100));
        }
        for query in [
            "project_id=x",
            "limit=0",
            "limit=501",
            "job=1",
            "agent=1&agent=2",
            "environment=[",
            "tier=prod",
            "status=ok",
            "commit=0a1b2c",
            "commit=main567",
            &format!("commit={}", "0".repeat(65)),
        ] {
            assert!(parse_deployments(query).is_err(), "{query}");
        }
    }
}
