//! The audit log of a cluster, joined with the requests of callers.
//!
//! ```text
//!   caller ──► proxy ─ Audit-ID ──► agentk ──► API server ──► webhook of agentk ──► ring
//!                └─ AccessRing                                                       │
//!   reader ◄── join ◄── lines of the service `audit` ◄───────────────────────────────┘
//!                └─ AccessRing of this replica, and of all others
//! ```
//!
//! kas gives each request to a Kubernetes API an id that nobody can guess, which the API server writes into its audit log. An event
//! with such an id is that of the request if it also has the agent, the verb, the object and the user of the request: somebody who
//! has seen an id, and has another access to the cluster, cannot act under the name of its caller.

mod body;
mod matching;

use std::{collections::HashMap, sync::Arc};

use proto::{
    AgentId,
    audit::{ClusterEvent, ID_PREFIX, JoinedEvent, SyncOrigin, Through, parse_id},
};
use router::RouteStore;

pub(crate) use self::body::join_body;
use crate::{
    metrics::ClusterAuditMetrics,
    peers::PeerClient,
    recent::{AccessAnswer, AccessQuery, AccessRing, AccessView, MAX_IDS, PeerQuestion},
};

/// Joins the events of one agent with the requests of callers.
#[derive(Clone, Debug)]
pub(crate) struct AuditJoiner {
    pub(crate) accesses: Arc<AccessRing>,
    pub(crate) peers: PeerClient,
    pub(crate) store: Arc<dyn RouteStore>,
    pub(crate) metrics: ClusterAuditMetrics,
    pub(crate) agent: AgentId,
    /// The name or the id of the agent.
    pub(crate) label: String,
    /// Only events of this caller, or of this user of the cluster.
    pub(crate) user: Option<String>,
}

/// The requests that replicas know.
#[derive(Debug, Default)]
struct KnownRequests {
    by_id: HashMap<String, AccessView>,
    /// A replica has not answered.
    is_incomplete: bool,
}

impl AuditJoiner {
    /// Joins events. Those that the reader has not asked for are left out.
    async fn join(&self, events: Vec<ClusterEvent>) -> Vec<JoinedEvent> {
        let known = self.lookup(&events).await;
        let joined = events.into_iter().map(|event| self.join_one(event, &known));
        joined
            .filter(|event| self.user.as_deref().is_none_or(|user| matching::is_of_user(event, user)))
            .collect()
    }

    fn join_one(&self, event: ClusterEvent, known: &KnownRequests) -> JoinedEvent {
        let found = known.by_id.get(&event.audit_id);
        let request = found.filter(|access| {
            let same = matching::is_event_of(&event, access);
            if !same {
                self.metrics.count_mismatch();
            }
            same
        });
        let through = match request {
            Some(_) => Through::Kas,
            None if found.is_none() && known.is_incomplete && parse_id(&event.audit_id).is_some() => {
                Through::Unknown
            }
            None if event.of_agentk => Through::Agentk,
            None => Through::Direct,
        };
        self.metrics.count(through);
        let request = request.map(|access| access.request.clone());
        // agentk itself says so, and only about requests with its own credential.
        let sync =
            event.user_agent.as_deref().filter(|_| through == Through::Agentk).and_then(SyncOrigin::parse);
        JoinedEvent { agent: self.label.clone(), through, request, sync, event }
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
            let missing: Vec<&str> = ids
                .iter()
                .copied()
                .filter(|id| !known.by_id.contains_key(&format!("{ID_PREFIX}{id}")))
                .collect();
            if missing.is_empty() {
                continue;
            }
            let question = PeerQuestion::Accesses { accesses: query(&missing) };
            for (replica, answer) in self.peers.ask_all::<AccessAnswer>(&*self.store, &question).await {
                match answer {
                    Ok(answer) => known.add(answer),
                    Err(error) => {
                        known.is_incomplete = true;
                        tracing::debug!(replica = %replica.id, %error, "a replica does not say who has sent requests");
                    }
                }
            }
        }
        known
    }
}

impl KnownRequests {
    fn add(&mut self, answer: AccessAnswer) {
        self.by_id.extend(answer.accesses.into_iter().map(|access| (access.audit_id.clone(), access)));
    }
}
