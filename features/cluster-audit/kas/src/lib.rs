//! The audit log of a cluster, joined with the requests of callers.
//!
//! ```text
//!   caller ──► `requests` ─ Audit-ID ──► agentk ──► API server ──► webhook of agentk ──► ring
//!                └─ AccessRing                                                            │
//!   reader ◄── `selection` ◄── `body` ◄── lines of the service `audit` ◄──────────────────┘
//!                                 ├─ `matching`: AccessRing of this replica, and of all others
//!                                 └─ `deployments`: the records of jobs
//! ```
//!
//! kas gives each request to a Kubernetes API an id that nobody can guess, which the API server writes into its audit log. An event
//! with such an id is that of the request if it also has the agent, the verb, the object and the user of the request, and the credential
//! of agentk: another client of the cluster that has seen an id cannot act under the name of its caller.
#![warn(missing_docs)]

mod accesses;
mod body;
mod deployments;
mod environment_slug;
mod feature;
mod matching;
mod metrics;
mod request_type;
mod requests;
mod selection;

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
};

use environments_wire::DeploymentRecords;
use proto::{
    AgentId,
    audit::{ClusterEvent, ID_PREFIX, JoinedEvent, Stage, SyncOrigin, Through, parse_id},
};
use store::Store;

pub use self::feature::ClusterAuditFeature;
use self::{
    accesses::{AccessAnswer, AccessQuery, AccessQuestion, AccessRing, AccessView, MAX_IDS},
    deployments::add_deployments,
    matching::Relation,
    metrics::ClusterAuditMetrics,
    selection::EventSelection,
};
use kas_core::peers::PeerClient;

/// The most requests whose end is remembered for a reader.
const MAX_ENDED: usize = 10_000;

/// Joins the events of one agent with the requests of callers.
#[derive(Clone, Debug)]
struct AuditJoiner {
    accesses: Arc<AccessRing>,
    peers: PeerClient,
    store: Arc<dyn Store>,
    deployments: Arc<dyn DeploymentRecords>,
    metrics: ClusterAuditMetrics,
    agent: AgentId,
    /// The name or the id of the agent.
    label: String,
    selection: EventSelection,
    ended: EndedRequests,
}

/// The requests whose end the reader has seen, with the times of the events. The oldest ones leave first.
#[derive(Clone, Debug, Default)]
struct EndedRequests {
    times: HashMap<u128, String>,
    order: VecDeque<u128>,
}

/// The requests that replicas know, by their audit ids.
#[derive(Debug, Default)]
struct KnownRequests(HashMap<String, AccessView>);

impl AuditJoiner {
    /// Joins events. Those that the reader has not asked for are left out.
    async fn join(&mut self, events: Vec<ClusterEvent>) -> Vec<JoinedEvent> {
        let known = self.lookup(&events).await;
        let mut joined: Vec<JoinedEvent> =
            events.into_iter().map(|event| self.join_one(event, &known)).collect();
        add_deployments(&*self.deployments, self.agent, &mut joined).await;
        joined.retain(|event| self.selection.selects(event));
        joined
    }

    fn join_one(&mut self, event: ClusterEvent, known: &KnownRequests) -> JoinedEvent {
        let id = parse_id(&event.audit_id);
        let found = known.0.get(&event.audit_id).map(|access| match matching::relation(&event, access) {
            // Without a known user of agentk, another client may repeat the request with its id.
            Relation::Same if event.of_agentk.is_none() && !self.ended.admits(id, &event) => {
                (Relation::Other, access)
            }
            relation => (relation, access),
        });
        let through = match (found, event.of_agentk) {
            (Some((Relation::Same, _)), _) => Through::Kas,
            (_, Some(false)) => Through::Direct,
            (Some((Relation::Unclear, _)), _) => Through::Unknown,
            // A request of a caller that no replica remembers, for example after a restart.
            (None, _) if id.is_some() => Through::Unknown,
            (Some((Relation::Other, _)), Some(true)) => Through::Unknown,
            (_, Some(true)) => Through::Agentk,
            (_, None) => Through::Direct,
        };
        if matches!(found, Some((Relation::Other, _))) {
            self.metrics.count_mismatch();
        }
        self.metrics.count(through);
        let request = found.filter(|_| through == Through::Kas).map(|(_, access)| access.request.clone());
        // A caller chooses its `User-Agent`.
        let is_own = through == Through::Agentk;
        let sync = event.user_agent.as_deref().filter(|_| is_own).and_then(SyncOrigin::parse);
        JoinedEvent { agent: self.label.clone(), through, request, deployment: None, sync, event }
    }

    /// Looks up the requests of events, at this replica and then at all others.
    async fn lookup(&self, events: &[ClusterEvent]) -> KnownRequests {
        let ids = events.iter().filter(|event| parse_id(&event.audit_id).is_some());
        let mut ids: Vec<&str> = ids.filter_map(|event| event.audit_id.strip_prefix(ID_PREFIX)).collect();
        ids.sort_unstable();
        ids.dedup();
        let mut known = KnownRequests::default();
        for ids in ids.chunks(MAX_IDS) {
            let query = |ids: &[&str]| AccessQuery {
                agent: self.agent.0,
                ids: ids.iter().map(|id| (*id).to_owned()).collect(),
            };
            known.add(self.accesses.find(&query(ids)));
            let missing: Vec<&str> =
                ids.iter().copied().filter(|id| !known.0.contains_key(&format!("{ID_PREFIX}{id}"))).collect();
            if missing.is_empty() {
                continue;
            }
            let question = AccessQuestion { accesses: query(&missing) };
            for (replica, answer) in self.peers.ask_all::<AccessAnswer>(&*self.store, &question).await {
                match answer {
                    Ok(answer) => known.add(answer),
                    Err(error) => {
                        tracing::debug!(replica = %replica.id, %error, "a replica does not say who has sent requests");
                    }
                }
            }
        }
        known
    }
}

impl EndedRequests {
    /// Returns whether an event may be that of the request with this id, which ends once.
    fn admits(&mut self, id: Option<u128>, event: &ClusterEvent) -> bool {
        let Some(id) = id.filter(|_| event.stage == Stage::Complete) else { return true };
        if let Some(time) = self.times.get(&id) {
            return *time == event.time;
        }
        if self.order.len() >= MAX_ENDED
            && let Some(oldest) = self.order.pop_front()
        {
            self.times.remove(&oldest);
        }
        self.order.push_back(id);
        self.times.insert(id, event.time.clone());
        true
    }
}

impl KnownRequests {
    fn add(&mut self, answer: AccessAnswer) {
        self.0.extend(answer.accesses.into_iter().map(|access| (access.audit_id.clone(), access)));
    }
}
