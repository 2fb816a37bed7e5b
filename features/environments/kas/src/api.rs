//! The environments and the deployments to them, for `GET /api/v1/environments` and `GET /api/v1/deployments`.

use std::{sync::Arc, time::SystemTime};

use axum::{
    Router,
    extract::{RawQuery, State},
    response::{IntoResponse, Response},
    routing::get,
};
use environments_wire::{
    Deployment, EnvironmentError, EnvironmentQuery, EnvironmentSources, GitLabToken, Tier,
};
use http::{HeaderMap, HeaderName};
use kas_core::api::{
    ApiContext, InternalApiError, QueryError, ok,
    query::{DEFAULT_LIMIT, MAX_LENGTH, decoded, limit, number, set_once},
};
use proto::{AgentId, ReplicaId};
use serde::{Deserialize, Serialize};
use settings::rfc3339;

use super::{
    DeploymentQuery, Deployments,
    health::{EnvironmentStatus, HealthInquiry},
};

/// The headers in which GitLab accepts the token of a user or a CI job.
const USER_TOKEN: HeaderName = HeaderName::from_static("private-token");
const JOB_TOKEN: HeaderName = HeaderName::from_static("job-token");

/// The sources of the routes.
#[derive(Debug)]
pub(crate) struct EnvironmentsApi {
    /// The environments of all sources.
    pub(crate) environments: EnvironmentSources,
    /// Asks agents for the health of environments.
    pub(crate) health: HealthInquiry,
    /// The deployments of CI jobs.
    pub(crate) deployments: Deployments,
}

/// The state of the routes.
type ApiState = Arc<(ApiContext, EnvironmentsApi)>;

/// The environments that a query selects.
#[derive(Debug, Serialize, Deserialize)]
pub struct EnvironmentList {
    replica: ReplicaId,
    #[serde(with = "rfc3339")]
    time: SystemTime,
    /// The environments, in order of their ids.
    environments: Vec<EnvironmentStatus>,
}

/// The deployments that a query selects.
#[derive(Debug, Serialize, Deserialize)]
pub struct DeploymentList {
    replica: ReplicaId,
    #[serde(with = "rfc3339")]
    time: SystemTime,
    /// The error because of which deployments are missing.
    missing: Option<String>,
    /// The deployments, the newest first.
    deployments: Vec<Deployment>,
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

/// Returns the routes of environments and deployments.
pub(crate) fn routes(context: ApiContext, sources: EnvironmentsApi) -> Router {
    Router::new()
        .route("/api/v1/environments", get(list_environments))
        .route("/api/v1/deployments", get(list_deployments))
        .with_state(Arc::new((context, sources)))
}

async fn list_environments(
    State(state): State<ApiState>,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
) -> Result<EnvironmentList, InternalApiError> {
    let (context, sources) = &*state;
    let (query, with_health) = parse_environments(query.as_deref().unwrap_or_default())?;
    let token = gitlab_token(&headers)?;
    let environments = sources.environments.list(&query, token.as_ref()).await.map_err(refusal)?;
    let environments = if with_health {
        sources.health.complete(environments, &context.lookup).await?
    } else {
        environments.into_iter().map(EnvironmentStatus::without_health).collect()
    };
    Ok(EnvironmentList { replica: context.replica, time: SystemTime::now(), environments })
}

async fn list_deployments(
    State(state): State<ApiState>,
    RawQuery(query): RawQuery,
) -> Result<DeploymentList, InternalApiError> {
    let (context, sources) = &*state;
    let (query, limit) = parse_deployments(query.as_deref().unwrap_or_default())?;
    let (deployments, missing) = match sources.deployments.list(&query, limit).await {
        Ok(deployments) => (deployments, None),
        Err(error) => (Vec::new(), Some(error.to_string())),
    };
    Ok(DeploymentList { replica: context.replica, time: SystemTime::now(), missing, deployments })
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
            "project_id" | "environment" | "agent" | "limit" if value.is_empty() => {}
            "project_id" => {
                let project = number("project_id", value, "the number of a project")?;
                set_once("project_id", &mut query.project_id, project)?;
            }
            "environment" => {
                set_once("environment", &mut query.environment, decoded("environment", value)?)?;
            }
            "agent" => {
                let agent = AgentId(number("agent", value, "the number of an agent")?);
                set_once("agent", &mut query.agent, agent)?;
            }
            "limit" => set_once("limit", &mut most, limit(value)?)?,
            _ => {
                let known = "project_id, environment, agent and limit";
                return Err(QueryError::Unknown(key.chars().take(100).collect(), known));
            }
        }
    }
    Ok((query, most.unwrap_or(DEFAULT_LIMIT)))
}

/// Parses the query of environments. Returns it with whether their health is asked for.
pub fn parse_environments(text: &str) -> Result<(EnvironmentQuery, bool), QueryError> {
    if text.len() > MAX_LENGTH {
        return Err(QueryError::TooLong);
    }
    let (mut query, mut health) = (EnvironmentQuery::default(), None);
    for pair in text.split('&').filter(|pair| !pair.is_empty()) {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        let value = decoded("query", value)?;
        let (key, given_before) = match key {
            "project" | "slug" | "group" | "agent" | "tier" | "health" if value.is_empty() => continue,
            "project" => ("project", query.project.replace(value).is_some()),
            "slug" => ("slug", query.slug.replace(value).is_some()),
            "group" => ("group", query.group.replace(value).is_some()),
            "agent" => ("agent", query.agent.replace(value).is_some()),
            "tier" => ("tier", query.tier.replace(tier(&value)?).is_some()),
            "health" => ("health", health.replace(boolean("health", &value)?).is_some()),
            _ => {
                let known = "project, slug, tier, group, agent and health";
                return Err(QueryError::Unknown(key.chars().take(100).collect(), known));
            }
        };
        if given_before {
            return Err(QueryError::Twice(key));
        }
    }
    Ok((query, health.unwrap_or_default()))
}

fn boolean(key: &'static str, value: &str) -> Result<bool, QueryError> {
    value.parse().map_err(|_| QueryError::Value(key, value.chars().take(100).collect(), "true or false"))
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

fn tier(name: &str) -> Result<Tier, QueryError> {
    let tier = Tier::ALL.into_iter().find(|(known, _)| *known == name);
    let expected = "production, staging, testing, development or other";
    tier.map(|(_, tier)| tier)
        .ok_or_else(|| QueryError::Value("tier", name.chars().take(100).collect(), expected))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn query_is_parsed_and_decoded() {
        let (query, with_health) =
            parse_environments("project=g%2Fapp&slug=s&tier=staging&group=g&agent=7").unwrap();
        let text = |text: &str| Some(text.to_owned());
        let expected = EnvironmentQuery {
            project: text("g/app"),
            slug: text("s"),
            tier: Some(Tier::Staging),
            group: text("g"),
            agent: text("7"),
        };
        assert_eq!((query, with_health), (expected, false));
        assert_eq!(parse_environments("project=g/app&").unwrap().0.project, text("g/app"));
        assert_eq!(parse_environments("").unwrap(), (EnvironmentQuery::default(), false));
        let empty = "project=&slug=&tier=&group=&agent=&health=";
        assert_eq!(parse_environments(empty).unwrap(), (EnvironmentQuery::default(), false));
        assert_eq!(parse_environments("project=my+group%2Fapp").unwrap().0.project, text("my group/app"));
        assert!(
            parse_environments("health=true").unwrap().1 && !parse_environments("health=false").unwrap().1
        );
    }

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
        let (query, limit) = parse_deployments("project_id=7&environment=live&agent=1&limit=5").unwrap();
        let expected = DeploymentQuery {
            project_id: Some(7),
            environment: Some("live".into()),
            agent: Some(AgentId(1)),
        };
        assert_eq!((query, limit), (expected, 5));
        let none = (DeploymentQuery::default(), 100);
        assert_eq!(parse_deployments("").unwrap(), none);
        assert_eq!(parse_deployments("project_id=&environment=&agent=&limit=").unwrap(), none);
        for query in ["project_id=x", "limit=0", "limit=501", "job=1", "agent=1&agent=2"] {
            assert!(parse_deployments(query).is_err(), "{query}");
        }
    }

    #[test]
    fn invalid_query_is_refused() {
        for (query, expected) in [
            (
                "name=x",
                "\"name\" is not a parameter: the parameters are project, slug, tier, group, agent and health",
            ),
            ("health=1", "health: \"1\" is not true or false"),
            ("health=true&health=true", "health is given twice"),
            ("tier=prod", "tier: \"prod\" is not production, staging"),
            ("slug=a&slug=b", "slug is given twice"),
            (&"&".repeat(9000), "longer than 8192 bytes"),
        ] {
            let error = parse_environments(query).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }
}
