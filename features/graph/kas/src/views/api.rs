//! The last values of the views of an agent, for `GET /api/v1/agents/<id or name>/views`.

use std::time::SystemTime;

use axum::{
    Router,
    extract::{Path, RawQuery, State, rejection::PathRejection},
    response::{IntoResponse, Response},
    routing::get,
};
use http::Uri;
use proto::{AgentId, ReplicaId, graph::View};
use serde::{Deserialize, Serialize};
use settings::rfc3339;

use super::ViewsService;
use kas_core::api::{ApiContext, InternalApiError, QueryError, ok, unavailable};

/// The state of the routes.
#[derive(Clone)]
struct ViewsApi {
    context: ApiContext,
    views: ViewsService,
}

/// The views of one agent, connected or not.
#[derive(Debug, Serialize, Deserialize)]
pub struct ViewsResponse {
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

/// Returns the routes of the views.
pub(crate) fn routes(context: ApiContext, views: ViewsService) -> Router {
    let path = "/api/v1/agents/{agent}/views";
    Router::new().route(path, get(get_views)).with_state(ViewsApi { context, views })
}

async fn get_views(
    State(ViewsApi { context, views }): State<ViewsApi>,
    uri: Uri,
    name: Result<Path<String>, PathRejection>,
    RawQuery(query): RawQuery,
) -> Result<ViewsResponse, InternalApiError> {
    // Fails if the name is not UTF-8.
    let Ok(Path(name)) = name else { return Err(InternalApiError::no_path(uri.path())) };
    if query.is_some_and(|query| !query.is_empty()) {
        return Err(QueryError::Unexpected.into());
    }
    let known = context.lookup.find(&name).await;
    // An agent of GitLab that is away is known by its id only.
    let agent_id = match &known {
        Ok(Some(agent)) => Some(agent.id),
        Ok(None) | Err(_) => name.parse().ok(),
    };
    let agent_id = agent_id.ok_or_else(|| InternalApiError::no_agent(&name))?;
    let last = views.last(agent_id).await;
    let last = last.map_err(|error| unavailable(format!("the views are not known: {error}")))?;
    if last.is_none() && known?.is_none() {
        return Err(InternalApiError::no_agent(&name));
    }
    let values = last.map(|record| Values { time: record.time, views: record.views });
    Ok(ViewsResponse { replica: context.replica, time: SystemTime::now(), agent_id, values })
}
