//! `GET /api/v1/fleet`, `applications` and `components` of the internal API: the clusters as agentk sees them, with its own rights.

use std::{collections::BTreeMap, sync::Arc};

use access::SourceUnavailable;
use axum::{
    Router,
    extract::{RawQuery, State},
    response::Response,
    routing::get,
};
use bytes::Bytes;
use futures_util::future::BoxFuture;
use kas_core::{
    agent_inquiry::AgentInquiry,
    agent_locations::{AgentLocations, KnownAgent, UnreadableRecords},
    api::{ApiContext, InternalApiError, ok},
    fleet_requests::AgentRequests,
};
use proto::{
    AgentId,
    graph::{ApplicationList, ComponentList},
};

use crate::{
    cluster_answer::ClusterAnswer as _,
    facts::AgentFacts,
    inquiry::{FleetAnswer, FleetInquiry, FleetMember, ask_all},
    lists::FleetList,
    query::parse_fleet,
    summary::Fleet,
};

/// The state of the routes.
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

/// Returns the routes of answers about all clusters.
pub(crate) fn routes(context: ApiContext, agents: AgentInquiry, inquiry: Arc<FleetInquiry>) -> Router {
    let api = FleetApi { context, agents, inquiry };
    let router = with_route::<Fleet>(Router::new());
    let router = with_route::<FleetList<ApplicationList>>(router);
    with_route::<FleetList<ComponentList>>(router).with_state(Arc::new(api))
}

fn with_route<A: FleetAnswer>(router: Router<Arc<FleetApi>>) -> Router<Arc<FleetApi>> {
    router.route(A::Cluster::OF_PROGRAMS, get(get_answer::<A>))
}

async fn get_answer<A: FleetAnswer>(
    State(api): State<Arc<FleetApi>>,
    RawQuery(query): RawQuery,
) -> Result<Response, InternalApiError> {
    let FleetApi { context, agents, inquiry } = &*api;
    let filter = parse_fleet(query.as_deref().unwrap_or_default())?;
    let _permit = inquiry.acquire(None).map_err(|error| SourceUnavailable {
        message: error.message,
        retry_after: error.retry_after.unwrap_or_default(),
    })?;
    let mut known = context.lookup.list(filter.project_id()).await;
    known.agents.retain(|agent| filter.selects(agent.attributes(), agent.project));
    UnreadableRecords::check(known.agents.is_empty(), known.missing.as_deref())?;
    let ids: Vec<AgentId> = known.agents.iter().map(|agent| agent.id).collect();
    let mut locations = AgentLocations::lookup(&*context.store, &ids).await;
    let members = known.agents.iter().map(|agent| FleetMember {
        facts: AgentFacts::of_kas(agent, context.lookup.is_in_file(agent.id), &mut locations),
        refusal: None,
    });
    let members = members.collect();
    let by_id = known.agents.iter().map(|agent| (agent.id, agent.clone())).collect();
    let clusters = ask_all(members, &AgentkSender { agents: agents.clone(), by_id }).await;
    Ok(ok(&A::summarize(context.replica, clusters, locations.missing.or(known.missing))))
}
