//! `GET /api/v1/fleet` of the internal API: the clusters as agentk sees them, with its own rights.

use std::{collections::BTreeMap, sync::Arc};

use access::SourceUnavailable;
use axum::{
    Router,
    extract::{RawQuery, State},
    response::{IntoResponse, Response},
    routing::get,
};
use bytes::Bytes;
use futures_util::future::BoxFuture;
use kas_core::{
    agent_inquiry::AgentInquiry,
    agent_locations::{AgentLocations, KnownAgent},
    api::{ApiContext, InternalApiError, ok},
    fleet_requests::AgentRequests,
};
use proto::AgentId;

use crate::{
    facts::AgentFacts,
    inquiry::{FleetInquiry, FleetMember, ask_all},
    query::parse_fleet,
    summary::Fleet,
};

/// The state of the route.
#[derive(Debug)]
struct FleetApi {
    context: ApiContext,
    agents: AgentInquiry,
    inquiry: Arc<FleetInquiry>,
}

/// Sends requests with the rights of agentk.
#[derive(Debug)]
struct AgentkSender {
    agents: AgentInquiry,
    by_id: BTreeMap<AgentId, KnownAgent>,
}

impl AgentRequests for AgentkSender {
    fn get<'a>(
        &'a self,
        agent: AgentId,
        service: &'static str,
        path: &'a str,
        limit: usize,
    ) -> BoxFuture<'a, Result<Bytes, String>> {
        Box::pin(async move {
            let known = self.by_id.get(&agent).ok_or_else(|| "kas knows no such agent".to_owned())?;
            self.agents.get(known, service, path, limit).await
        })
    }
}

impl IntoResponse for Fleet {
    fn into_response(self) -> Response {
        ok(&self)
    }
}

/// Returns the route of the fleet.
pub(crate) fn routes(context: ApiContext, agents: AgentInquiry, inquiry: Arc<FleetInquiry>) -> Router {
    let api = FleetApi { context, agents, inquiry };
    Router::new().route("/api/v1/fleet", get(get_fleet)).with_state(Arc::new(api))
}

async fn get_fleet(
    State(api): State<Arc<FleetApi>>,
    RawQuery(query): RawQuery,
) -> Result<Fleet, InternalApiError> {
    let FleetApi { context, agents, inquiry } = &*api;
    let filter = parse_fleet(query.as_deref().unwrap_or_default())?;
    let _permit = inquiry.acquire(None).map_err(|error| SourceUnavailable {
        message: error.message,
        retry_after: error.retry_after.unwrap_or_default(),
    })?;
    let mut known = context.lookup.list(filter.project_id()).await;
    known.agents.retain(|agent| filter.selects(agent.attributes(), agent.project));
    let ids: Vec<AgentId> = known.agents.iter().map(|agent| agent.id).collect();
    let mut locations = AgentLocations::lookup(&*context.store, &ids).await;
    let members = known.agents.iter().map(|agent| FleetMember {
        facts: AgentFacts::of_kas(agent, context.lookup.is_in_file(agent.id), &mut locations),
        refusal: None,
    });
    let members = members.collect();
    let by_id = known.agents.iter().map(|agent| (agent.id, agent.clone())).collect();
    let clusters = ask_all(members, &AgentkSender { agents: agents.clone(), by_id }).await;
    Ok(Fleet::new(context.replica, clusters, locations.missing.or(known.missing)))
}
