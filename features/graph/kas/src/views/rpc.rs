//! The RPC `GetAgentViews`, with which GitLab reads the views of agents.

use axum::Router;
use prost::Message;
use proto::AgentId;
use tonic::Status;

use super::ViewsService;
use kas_core::api::grpc::{Timestamp, positive, unary};

/// The most agents of one request, of which each may have 160 KiB.
const MAX_AGENTS: usize = 20;

/// `kas.agent_views.rpc.GetAgentViewsRequest`.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct GetAgentViewsRequest {
    /// The agents, at most 20.
    #[prost(int64, repeated, tag = "1")]
    pub agent_ids: Vec<i64>,
}

/// `kas.agent_views.rpc.GetAgentViewsResponse`.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct GetAgentViewsResponse {
    /// The agents with views, in the order of the request.
    #[prost(message, repeated, tag = "1")]
    pub agents: Vec<AgentViews>,
}

/// The last values of the views of an agent.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct AgentViews {
    /// The agent.
    #[prost(int64, tag = "1")]
    pub agent_id: i64,
    /// The last time at which the agent had these values.
    #[prost(message, optional, tag = "2")]
    pub time: Option<Timestamp>,
    /// The views, in the order of the configuration.
    #[prost(message, repeated, tag = "3")]
    pub views: Vec<View>,
}

/// A count or a table of objects.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct View {
    /// The name in the configuration of the agent.
    #[prost(string, tag = "1")]
    pub name: String,
    /// The number of objects.
    #[prost(uint64, tag = "2")]
    pub count: u64,
    /// The names of the columns.
    #[prost(string, repeated, tag = "3")]
    pub columns: Vec<String>,
    /// The rows.
    #[prost(message, repeated, tag = "4")]
    pub rows: Vec<ViewRow>,
    /// The number of rows that were left out.
    #[prost(uint64, tag = "5")]
    pub omitted: u64,
    /// The reasons why something may be missing, one sentence each.
    #[prost(string, repeated, tag = "6")]
    pub partial: Vec<String>,
}

/// A row of a view.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct ViewRow {
    /// A text for each column, in order.
    #[prost(string, repeated, tag = "1")]
    pub cells: Vec<String>,
}

/// Returns the route of the RPC.
pub(crate) fn routes(views: ViewsService) -> Router {
    let method = "/kas.agent_views.rpc.AgentViews/GetAgentViews";
    Router::new().route(method, unary(get_agent_views)).with_state(views)
}

async fn get_agent_views(
    service: ViewsService,
    GetAgentViewsRequest { agent_ids }: GetAgentViewsRequest,
) -> Result<GetAgentViewsResponse, Status> {
    if agent_ids.len() > MAX_AGENTS {
        let what = format!("the request has more than {MAX_AGENTS} agents");
        return Err(Status::invalid_argument(what));
    }
    let mut agents = Vec::new();
    for id in agent_ids {
        let agent = AgentId(positive("agent_ids", id)?);
        let last = service.last(agent).await;
        let last = last.map_err(|error| Status::unavailable(format!("the views are not known: {error}")))?;
        agents.extend(last.map(|last| AgentViews {
            agent_id: id,
            time: Some(last.time.into()),
            views: last.views.into_iter().map(view).collect(),
        }));
    }
    Ok(GetAgentViewsResponse { agents })
}

fn view(view: proto::graph::View) -> View {
    let proto::graph::View { name, count, columns, rows, omitted, partial } = view;
    let rows = rows.into_iter().map(|cells| ViewRow { cells }).collect();
    View { name, count, columns, rows, omitted, partial }
}
