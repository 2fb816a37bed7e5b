//! The last values of the views of an agent, for `GET /api/v1/agents/<id or name>/views`.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use access::SourceUnavailable;
use axum::{
    extract::{Path, RawQuery, State, rejection::PathRejection},
    response::{IntoResponse, Response},
};
use http::Uri;
use proto::{AgentId, ReplicaId, graph::View};
use serde::{Deserialize, Serialize};
use settings::rfc3339;
use store::StoreError;

use super::{
    ApiServer,
    query::QueryError,
    response::{ApiError, ok},
};

/// The views of one agent, connected or not.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct ViewsResponse {
    replica: ReplicaId,
    #[serde(with = "rfc3339")]
    time: SystemTime,
    agent_id: AgentId,
    /// The values, or none if kas has not received any in the last week.
    values: Option<Values>,
}

/// The values of all views at a time.
#[derive(Debug, Serialize, Deserialize)]
struct Values {
    /// The last time at which the agent had them.
    #[serde(with = "rfc3339")]
    time: SystemTime,
    views: Vec<View>,
}

impl IntoResponse for ViewsResponse {
    fn into_response(self) -> Response {
        ok(&self)
    }
}

pub(super) async fn get_views(
    State(api): State<Arc<ApiServer>>,
    uri: Uri,
    name: Result<Path<String>, PathRejection>,
    RawQuery(query): RawQuery,
) -> Result<ViewsResponse, ApiError> {
    // Fails if the name is not UTF-8.
    let Ok(Path(name)) = name else { return Err(ApiError::no_path(uri.path())) };
    if query.is_some_and(|query| !query.is_empty()) {
        return Err(QueryError::Unexpected.into());
    }
    let known = api.lookup.find(&name).await.map(|agent| agent.id);
    // An agent of GitLab that is away is known by its id only.
    let agent_id = known.or_else(|| name.parse().ok()).ok_or_else(|| ApiError::no_agent(&name))?;
    let last = api.views.last(agent_id).await.map_err(unavailable)?;
    if known.is_none() && last.is_none() {
        return Err(ApiError::no_agent(&name));
    }
    let values = last.map(|record| Values { time: record.time, views: record.views });
    Ok(ViewsResponse { replica: api.replica, time: SystemTime::now(), agent_id, values })
}

fn unavailable(error: StoreError) -> ApiError {
    let message = format!("the views are not known: {error}");
    SourceUnavailable { message, retry_after: Duration::from_secs(1) }.into()
}
