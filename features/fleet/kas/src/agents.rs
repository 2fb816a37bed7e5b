//! `GET /agents`: the agents that a caller may use, with what is known of each without a request to its cluster.

use std::{collections::BTreeMap, sync::Arc, time::SystemTime};

use access::{CallerAgent, CallerAgents, MissingAgents, RequestError};
use futures_util::future::BoxFuture;
use kas_core::{
    agent_locations::{AgentLocations, UnreadableRecords},
    fleet_requests::{FleetRequest, FleetRequests},
};
use proto::{AgentId, ReplicaId, ServiceName, Verb};
use serde::{Deserialize, Serialize};
use settings::rfc3339;
use store::Store;

use crate::{facts::AgentFacts, query::agents_of_caller};

/// Lists the agents of callers.
#[derive(Debug)]
pub(crate) struct AgentListRequests {
    pub(crate) replica: ReplicaId,
    pub(crate) store: Arc<dyn Store>,
}

/// A page of the agents of a caller.
#[derive(Debug, Serialize, Deserialize)]
pub struct CallerAgentList {
    replica: ReplicaId,
    #[serde(with = "rfc3339")]
    time: SystemTime,
    /// The reason for which agents, or their tunnels to other replicas, may be missing.
    missing: Option<String>,
    /// The agents, in order of their ids.
    agents: Vec<ListedAgent>,
    /// The value of `continue` for the next page, if there is one.
    #[serde(rename = "continue")]
    next: Option<String>,
}

#[derive(Debug, Serialize, Deserialize)]
struct ListedAgent {
    #[serde(flatten)]
    facts: AgentFacts,
    /// The services that the caller may use, each with its verbs.
    rights: BTreeMap<String, Vec<Verb>>,
}

impl FleetRequests for AgentListRequests {
    fn path(&self) -> &'static str {
        "/agents"
    }

    fn answer<'a>(&'a self, request: FleetRequest<'a>) -> BoxFuture<'a, Result<String, RequestError>> {
        Box::pin(async move {
            let list = self.list(request.query, request.agents).await?;
            Ok(serde_json::to_string(&list).expect("it has keys that are text") + "\n")
        })
    }
}

impl AgentListRequests {
    async fn list(&self, query: &str, all: CallerAgents) -> Result<CallerAgentList, RequestError> {
        let query = agents_of_caller(query)?;
        let CallerAgents { mut agents, missing, .. } = all;
        agents.retain(|agent| query.is_after(agent.id) && query.filter.selects(agent.names(), None));
        UnreadableRecords::check(agents.is_empty(), missing.as_ref().and_then(MissingAgents::unreadable))?;
        agents.sort_by_key(|agent| agent.id);
        let has_more = agents.len() > query.limit;
        agents.truncate(query.limit);
        let ids: Vec<AgentId> = agents.iter().map(|agent| agent.id).collect();
        let mut locations = AgentLocations::lookup(&*self.store, &ids).await;
        let listed = agents.iter().map(|agent| ListedAgent {
            facts: AgentFacts::of_caller(agent, &mut locations),
            rights: rights(agent),
        });
        Ok(CallerAgentList {
            replica: self.replica,
            time: SystemTime::now(),
            agents: listed.collect(),
            missing: locations.missing.or_else(|| missing.map(MissingAgents::into_text)),
            next: ids.last().filter(|_| has_more).map(AgentId::to_string),
        })
    }
}

fn rights(agent: &CallerAgent) -> BTreeMap<String, Vec<Verb>> {
    let services = ServiceName::OF_CALLERS.into_iter().chain([ServiceName::EVENTS]);
    agent.caller.verbs_of(services).into_iter().map(|(service, verbs)| (service.to_owned(), verbs)).collect()
}
