//! The list of environments, for `GET /api/v1/environments`.

use std::{sync::Arc, time::SystemTime};

use axum::{
    extract::{RawQuery, State},
    response::{IntoResponse, Response},
};
use percent_encoding::percent_decode_str;
use proto::ReplicaId;
use serde::{Deserialize, Serialize};

use super::{
    ApiServer,
    query::QueryError,
    response::{ApiError, ok},
};
use crate::{
    agent_locations::rfc3339,
    environments::{Environment, EnvironmentQuery, Tier},
};

/// The longest query, in bytes.
const MAX_LENGTH: usize = 8192;

/// The environments that a query selects.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct EnvironmentList {
    replica: ReplicaId,
    #[serde(with = "rfc3339")]
    time: SystemTime,
    /// The environments, in order of their ids.
    environments: Vec<Environment>,
}

impl IntoResponse for EnvironmentList {
    fn into_response(self) -> Response {
        ok(&self)
    }
}

pub(super) async fn list_environments(
    State(api): State<Arc<ApiServer>>,
    RawQuery(query): RawQuery,
) -> Result<EnvironmentList, ApiError> {
    let query = parse(query.as_deref().unwrap_or_default())?;
    let environments = match &api.environments {
        Some(source) => source.list(&query).await?,
        None => Vec::new(),
    };
    Ok(EnvironmentList { replica: api.replica, time: SystemTime::now(), environments })
}

fn parse(text: &str) -> Result<EnvironmentQuery, QueryError> {
    if text.len() > MAX_LENGTH {
        return Err(QueryError::TooLong);
    }
    let mut query = EnvironmentQuery::default();
    for pair in text.split('&').filter(|pair| !pair.is_empty()) {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        let value = percent_decode_str(value).decode_utf8_lossy().into_owned();
        let (key, given_before) = match key {
            "project" => ("project", query.project.replace(value).is_some()),
            "slug" => ("slug", query.slug.replace(value).is_some()),
            "group" => ("group", query.group.replace(value).is_some()),
            "agent" => ("agent", query.agent.replace(value).is_some()),
            "tier" => ("tier", query.tier.replace(tier(&value)?).is_some()),
            _ => {
                let known = "project, slug, tier, group and agent";
                return Err(QueryError::Unknown(key.chars().take(100).collect(), known));
            }
        };
        if given_before {
            return Err(QueryError::Twice(key));
        }
    }
    Ok(query)
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
        let query = parse("project=g%2Fapp&slug=s&tier=staging&group=g&agent=7").unwrap();
        let text = |text: &str| Some(text.to_owned());
        let expected = EnvironmentQuery {
            project: text("g/app"),
            slug: text("s"),
            tier: Some(Tier::Staging),
            group: text("g"),
            agent: text("7"),
        };
        assert_eq!(query, expected);
        assert_eq!(parse("project=g/app&").unwrap().project, text("g/app"));
        assert_eq!(parse("").unwrap(), EnvironmentQuery::default());
    }

    #[test]
    fn invalid_query_is_refused() {
        for (query, expected) in [
            (
                "name=x",
                "\"name\" is not a parameter: the parameters are project, slug, tier, group and agent",
            ),
            ("tier=prod", "tier: \"prod\" is not production, staging"),
            ("slug=a&slug=b", "slug is given twice"),
            (&"&".repeat(9000), "longer than 8192 bytes"),
        ] {
            let error = parse(query).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }
}
