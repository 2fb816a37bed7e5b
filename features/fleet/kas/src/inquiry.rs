//! `GET /agents/fleet`: asks the clusters of all agents of a caller for their capacity, all at the same time and until one deadline.

use std::{collections::HashSet, sync::Arc, time::Duration};

use access::{CallerAgents, CallerNames, RequestError};
use bytes::Bytes;
use futures_util::{StreamExt as _, future::BoxFuture, stream};
use kas_core::{
    agent_locations::AgentLocations,
    fleet_requests::{AgentRequests, FleetRequest, FleetRequests},
};
use parking_lot::Mutex;
use proto::{
    AgentId, Reason, ReplicaId, ServiceName, Verb,
    graph::{CAPACITY_PATH, Capacity},
};
use store::Store;
use tokio::{
    sync::{Semaphore, SemaphorePermit},
    time::{Instant, timeout_at},
};

use crate::{
    facts::AgentFacts,
    query::fleet_of_caller,
    summary::{ClusterSummary, Fleet},
};

/// The most clusters of one answer that are asked. All are asked at the same time, so that one that hangs takes the turn of no other one.
const MAX_ASKED: usize = 500;
/// The answers for callers that a replica makes at the same time, and those for programs. A caller may ask for one.
const MAX_FLEETS: usize = 16;
const MAX_OF_PROGRAMS: usize = 4;
/// The time for all clusters. An agent waits up to ten seconds until the objects of its cluster are loaded.
const DEADLINE: Duration = Duration::from_secs(12);
/// The largest answer of a cluster, in bytes: that of an honest one has 20 versions and 21 sentences.
const MAX_ANSWER: usize = 16 << 10;
/// The most entries and the longest text of an answer that are kept.
const MAX_ENTRIES: usize = 32;
const MAX_TEXT: usize = 512;

/// Limits the answers that are made at the same time.
#[derive(Debug)]
pub(crate) struct FleetInquiry {
    fleets: Semaphore,
    /// Callers are many, and take no place of a program.
    of_programs: Semaphore,
    /// The callers that wait for an answer.
    callers: Mutex<HashSet<(String, Option<String>)>>,
}

/// Summarizes the fleets of callers.
#[derive(Debug)]
pub(crate) struct FleetSummaryRequests {
    pub(crate) replica: ReplicaId,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) inquiry: Arc<FleetInquiry>,
}

/// An agent of a fleet, and the reason why its cluster is not asked.
pub(crate) struct FleetMember {
    pub(crate) facts: AgentFacts,
    pub(crate) refusal: Option<String>,
}

/// Holds the place of an answer, until it is dropped.
pub(crate) struct FleetPermit<'a> {
    inquiry: &'a FleetInquiry,
    caller: Option<(String, Option<String>)>,
    _permit: SemaphorePermit<'a>,
}

impl Default for FleetInquiry {
    fn default() -> Self {
        Self {
            fleets: Semaphore::new(MAX_FLEETS),
            of_programs: Semaphore::new(MAX_OF_PROGRAMS),
            callers: Mutex::default(),
        }
    }
}

impl FleetInquiry {
    /// Takes the place of an answer, for a caller or for a program.
    pub(crate) fn acquire(&self, caller: Option<CallerNames>) -> Result<FleetPermit<'_>, RequestError> {
        let busy = |what: String| {
            RequestError::new(Reason::TooManyRequests, what).with_retry_after(Duration::from_secs(1))
        };
        let (fleets, most) =
            if caller.is_some() { (&self.fleets, MAX_FLEETS) } else { (&self.of_programs, MAX_OF_PROGRAMS) };
        let permit = fleets.try_acquire();
        let permit = permit.map_err(|_| busy(format!("{most} requests for a fleet are being answered")))?;
        let caller = caller.map(|CallerNames { name, user }| (name, user));
        if let Some(caller) = &caller
            && !self.callers.lock().insert(caller.clone())
        {
            return Err(busy("another request of this caller for its fleet is being answered".to_owned()));
        }
        Ok(FleetPermit { inquiry: self, caller, _permit: permit })
    }
}

impl Drop for FleetPermit<'_> {
    fn drop(&mut self) {
        if let Some(caller) = &self.caller {
            self.inquiry.callers.lock().remove(caller);
        }
    }
}

impl FleetRequests for FleetSummaryRequests {
    fn path(&self) -> &'static str {
        "/agents/fleet"
    }

    fn answer<'a>(&'a self, request: FleetRequest<'a>) -> BoxFuture<'a, Result<String, RequestError>> {
        Box::pin(async move {
            let fleet = self.summarize(request).await?;
            Ok(serde_json::to_string(&fleet).expect("it has keys that are text") + "\n")
        })
    }
}

impl FleetSummaryRequests {
    async fn summarize(&self, request: FleetRequest<'_>) -> Result<Fleet, RequestError> {
        let FleetRequest { query, agents: CallerAgents { grant, mut agents, missing }, sender } = request;
        let filter = fleet_of_caller(query)?;
        let _permit = self.inquiry.acquire(Some(grant.caller.names()))?;
        agents.retain(|agent| filter.selects(agent.names(), None));
        let ids: Vec<AgentId> = agents.iter().map(|agent| agent.id).collect();
        let mut locations = AgentLocations::lookup(&*self.store, &ids).await;
        let graph: ServiceName = ServiceName::GRAPH.parse().expect("a constant that is a service name");
        let members = agents.iter().map(|agent| {
            let may_read = agent.caller.may(&graph, Verb::Read);
            let refusal =
                (!may_read).then(|| "the caller may not read the service graph of this agent".to_owned());
            FleetMember { facts: AgentFacts::of_caller(agent, &mut locations), refusal }
        });
        let members: Vec<_> = members.collect();
        let clusters = ask_all(members, sender).await;
        Ok(Fleet::new(self.replica, clusters, locations.missing.or(missing)))
    }
}

/// Asks the clusters of the members that are connected and may be asked. One that has not answered at the deadline is missing.
pub(crate) async fn ask_all(members: Vec<FleetMember>, sender: &dyn AgentRequests) -> Vec<ClusterSummary> {
    let end = Instant::now() + DEADLINE;
    let mut asked = 0;
    let members = members.into_iter().map(|FleetMember { facts, refusal }| {
        let refusal = refusal.or_else(|| refusal_of(&facts, &mut asked));
        (facts, refusal)
    });
    let members: Vec<_> = members.collect();
    let clusters = stream::iter(members).map(async |(facts, refusal): (AgentFacts, Option<String>)| {
        let answer = match refusal {
            Some(refusal) => Err(refusal),
            None => timeout_at(end, ask(sender, facts.id)).await.unwrap_or_else(|_| Err(late())),
        };
        let (capacity, missing) = match answer.and_then(|body| parse(&body)) {
            Ok(capacity) => (Some(capacity), None),
            Err(reason) => (None, Some(reason)),
        };
        ClusterSummary { facts, missing, capacity }
    });
    clusters.buffer_unordered(MAX_ASKED).collect().await
}

async fn ask(sender: &dyn AgentRequests, agent: AgentId) -> Result<Bytes, String> {
    sender.get(agent, ServiceName::GRAPH, CAPACITY_PATH, MAX_ANSWER).await
}

/// Returns the reason why a cluster is not asked, and counts those that are.
fn refusal_of(facts: &AgentFacts, asked: &mut usize) -> Option<String> {
    if !facts.is_connected() {
        return Some("the agent is not connected".to_owned());
    }
    *asked += 1;
    (*asked > MAX_ASKED).then(|| {
        format!("kas asks {MAX_ASKED} clusters at once: select fewer agents with group, project, name or id")
    })
}

fn late() -> String {
    format!("the agent did not respond within {} s", DEADLINE.as_secs())
}

/// Parses the answer of a cluster, which is not trusted.
fn parse(body: &[u8]) -> Result<Capacity, String> {
    let mut capacity: Capacity = serde_json::from_slice(body)
        .map_err(|error| format!("the response of the agent is not a capacity: {error}"))?;
    let cut = |text: &mut String| {
        text.truncate(text.floor_char_boundary(MAX_TEXT));
        text.shrink_to_fit();
    };
    capacity.kubelet_versions.truncate(MAX_ENTRIES);
    capacity.kubelet_versions.shrink_to_fit();
    capacity.kubelet_versions.iter_mut().for_each(|kubelet| cut(&mut kubelet.version));
    capacity.partial.truncate(MAX_ENTRIES);
    capacity.partial.shrink_to_fit();
    capacity.partial.iter_mut().for_each(cut);
    Ok(capacity)
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use kas_core::agent_locations::AgentState;

    use super::*;

    /// Hangs for each agent but this one.
    #[derive(Debug)]
    struct Hanging(AgentId);

    impl AgentRequests for Hanging {
        fn get<'a>(
            &'a self,
            agent: AgentId,
            _: &'static str,
            _: &'a str,
            _: usize,
        ) -> BoxFuture<'a, Result<Bytes, String>> {
            Box::pin(async move {
                if agent != self.0 {
                    pending::<()>().await;
                }
                Ok(Bytes::from(serde_json::to_vec(&Capacity::default()).unwrap()))
            })
        }
    }

    fn member(id: u64) -> FleetMember {
        let facts = AgentFacts {
            id: AgentId(id),
            name: id.to_string(),
            title: None,
            project: None,
            state: AgentState::Connected,
            tunnels: 2,
            agentk_versions: Vec::new(),
            kubernetes_version: None,
            cluster: None,
        };
        FleetMember { facts, refusal: None }
    }

    fn names(name: &str) -> Option<CallerNames> {
        Some(CallerNames { name: name.to_owned(), user: None })
    }

    #[test]
    fn caller_asks_for_one_fleet_at_a_time() {
        let inquiry = FleetInquiry::default();
        let first = inquiry.acquire(names("alice")).unwrap();
        let second = inquiry.acquire(names("alice")).err().unwrap();
        assert_eq!(second.reason, Reason::TooManyRequests);
        let _other = inquiry.acquire(names("bob")).unwrap();
        drop(first);
        assert!(inquiry.acquire(names("alice")).is_ok());
        let jobs = |job: usize| inquiry.acquire(names(&format!("job-{job}"))).unwrap();
        let all: Vec<_> = (0..MAX_FLEETS - 1).map(jobs).collect();
        assert!(inquiry.acquire(names("carol")).err().unwrap().message.contains("16 requests"));
        let programs: Vec<_> = (0..MAX_OF_PROGRAMS).map(|_| inquiry.acquire(None).unwrap()).collect();
        assert!(inquiry.acquire(None).err().unwrap().message.contains("4 requests"));
        drop((all, programs));
        assert!(inquiry.acquire(names("carol")).is_ok(), "a refused caller holds nothing");
    }

    #[tokio::test(start_paused = true)]
    async fn agents_that_hang_hide_no_other_one() {
        let last = u64::try_from(MAX_ASKED).unwrap();
        let members = (1..=last + 1).map(member).collect();
        let clusters = ask_all(members, &Hanging(AgentId(last))).await;
        let missing = |id: u64| {
            clusters.iter().find(|cluster| cluster.facts.id == AgentId(id)).unwrap().missing.clone()
        };
        assert_eq!(missing(last), None);
        assert!(missing(1).unwrap().contains("did not respond within 12 s"));
        assert!(missing(last + 1).unwrap().contains("kas asks 500 clusters at once"));
    }

    #[test]
    fn hostile_answer_is_cut() {
        let versions = vec![serde_json::json!({"version": "é".repeat(MAX_TEXT), "nodes": 1}); 100];
        let answer = serde_json::json!({"nodes": null, "allocatable": null, "requested": null, "kubelet_versions": versions,
            "partial": vec!["x".repeat(2000); 100]});
        let capacity = parse(answer.to_string().as_bytes()).unwrap();
        assert_eq!((capacity.kubelet_versions.len(), capacity.partial.len()), (MAX_ENTRIES, MAX_ENTRIES));
        assert!(capacity.partial.capacity() < 100, "the rest is not kept");
        assert!(capacity.kubelet_versions.iter().all(|kubelet| kubelet.version.len() <= MAX_TEXT));
        assert!(capacity.partial.iter().all(|reason| reason.capacity() <= MAX_TEXT));
        assert!(parse(b"[]").unwrap_err().contains("is not a capacity"));
    }
}
