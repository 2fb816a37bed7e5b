//! Asks the clusters of all agents of a caller, all at the same time and until one deadline.

use std::{collections::HashSet, fmt::Debug, marker::PhantomData, sync::Arc, time::Duration};

use access::{CallerAgents, CallerNames, MissingAgents, RequestError};
use futures_util::future::BoxFuture;
use kas_core::{
    agent_answers::AnswerDeadline,
    agent_locations::{AgentLocations, UnreadableRecords},
    fleet_requests::{AgentRequests, FleetRequest, FleetRequests},
};
use parking_lot::Mutex;
use proto::{AgentId, Reason, ReplicaId, ServiceName, Verb};
use serde::Serialize;
use store::Store;
use tokio::sync::{Semaphore, SemaphorePermit};

use crate::{
    cluster_answer::{ClusterAnswer, parse},
    facts::AgentFacts,
    query::fleet_of_caller,
};

/// The most clusters of one answer that are asked. All are asked at the same time, so that one that hangs takes the turn of no other one.
const MAX_ASKED: usize = 500;
/// The largest answers of all clusters together, in bytes. The more clusters are asked, the smaller is the largest answer of each.
const MAX_TOTAL: usize = 16 << 20;
/// The answers for callers that a replica makes at the same time, and those for programs. A caller may ask for one.
const MAX_FLEETS: usize = 16;
const MAX_OF_PROGRAMS: usize = 4;

/// Limits the answers that are made at the same time.
#[derive(Debug)]
pub(crate) struct FleetInquiry {
    fleets: Semaphore,
    /// Callers are many, and take no place of a program.
    of_programs: Semaphore,
    /// The callers that wait for an answer.
    callers: Mutex<HashSet<(String, Option<String>)>>,
}

/// An answer about all clusters.
pub(crate) trait FleetAnswer: Serialize + Debug + Send + 'static {
    /// The answer of each cluster.
    type Cluster: ClusterAnswer;

    /// Summarizes the answers of clusters. `missing` is the reason for which agents may be missing.
    fn summarize(
        replica: ReplicaId,
        clusters: Vec<AskedCluster<Self::Cluster>>,
        missing: Option<String>,
    ) -> Self;
}

/// Answers requests of callers about all of their clusters.
#[derive(Debug)]
pub(crate) struct FleetSummaryRequests<A> {
    replica: ReplicaId,
    store: Arc<dyn Store>,
    inquiry: Arc<FleetInquiry>,
    answer: PhantomData<fn() -> A>,
}

/// The cluster of an agent with its answer, or with the reason why there is none.
#[derive(Debug)]
pub(crate) struct AskedCluster<T> {
    pub(crate) facts: AgentFacts,
    pub(crate) answer: Result<T, String>,
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

impl<A: FleetAnswer> FleetRequests for FleetSummaryRequests<A> {
    fn path(&self) -> &'static str {
        A::Cluster::OF_CALLERS
    }

    fn answer<'a>(&'a self, request: FleetRequest<'a>) -> BoxFuture<'a, Result<String, RequestError>> {
        Box::pin(async move {
            let fleet = self.summarize(request).await?;
            Ok(serde_json::to_string(&fleet).expect("it has keys that are text") + "\n")
        })
    }
}

impl<A: FleetAnswer> FleetSummaryRequests<A> {
    /// Returns the requests of a replica.
    pub(crate) fn new(replica: ReplicaId, store: &Arc<dyn Store>, inquiry: &Arc<FleetInquiry>) -> Self {
        let (store, inquiry) = (Arc::clone(store), Arc::clone(inquiry));
        Self { replica, store, inquiry, answer: PhantomData }
    }

    async fn summarize(&self, request: FleetRequest<'_>) -> Result<A, RequestError> {
        let FleetRequest { query, agents: CallerAgents { grant, mut agents, missing }, sender } = request;
        let filter = fleet_of_caller(query)?;
        let _permit = self.inquiry.acquire(Some(grant.caller.names()))?;
        agents.retain(|agent| filter.selects(agent.names(), None));
        UnreadableRecords::check(agents.is_empty(), missing.as_ref().and_then(MissingAgents::unreadable))?;
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
        Ok(A::summarize(
            self.replica,
            clusters,
            locations.missing.or_else(|| missing.map(MissingAgents::into_text)),
        ))
    }
}

/// Asks the clusters of the members that are connected and may be asked. One that has not answered at the deadline is missing.
pub(crate) async fn ask_all<T: ClusterAnswer>(
    members: Vec<FleetMember>,
    sender: &dyn AgentRequests,
) -> Vec<AskedCluster<T>> {
    let deadline = AnswerDeadline::start();
    let path = T::path();
    let mut asked = 0;
    let members = members.into_iter().map(|FleetMember { facts, refusal }| {
        let refusal = refusal.or_else(|| refusal_of(&facts, &mut asked));
        (facts, refusal)
    });
    let members: Vec<_> = members.collect();
    let most = largest_answer::<T>(asked);
    let questions = members.iter().map(|(facts, refusal)| {
        let request = sender.get(facts.id, ServiceName::GRAPH, &path, most);
        async move {
            match refusal {
                Some(refusal) => Err(refusal.clone()),
                None => parse(&request.await?),
            }
        }
    });
    let answers = deadline.answers(questions.collect(), MAX_ASKED).await;
    let clusters = members.into_iter().zip(answers);
    clusters.map(|((facts, _), answer)| AskedCluster { facts, answer }).collect()
}

/// Returns the largest answer of a cluster in bytes, if so many are asked.
fn largest_answer<T: ClusterAnswer>(asked: usize) -> usize {
    T::MAX_BYTES.min(MAX_TOTAL / asked.clamp(1, MAX_ASKED))
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

#[cfg(test)]
mod tests {
    use std::future::pending;

    use bytes::Bytes;
    use kas_core::agent_locations::AgentState;
    use proto::graph::{ApplicationList, Capacity};

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

    #[test]
    fn answers_of_many_clusters_have_a_limit_together() {
        assert_eq!(largest_answer::<ApplicationList>(0), ApplicationList::MAX_BYTES);
        assert_eq!(largest_answer::<ApplicationList>(100), ApplicationList::MAX_BYTES);
        assert!(largest_answer::<ApplicationList>(MAX_ASKED) * MAX_ASKED <= MAX_TOTAL);
        assert_eq!(largest_answer::<Capacity>(MAX_ASKED + 1), Capacity::MAX_BYTES, "a capacity always fits");
    }

    #[tokio::test(start_paused = true)]
    async fn agents_that_hang_hide_no_other_one() {
        let last = u64::try_from(MAX_ASKED).unwrap();
        let members = (1..=last + 1).map(member).collect();
        let clusters = ask_all::<Capacity>(members, &Hanging(AgentId(last))).await;
        let missing = |id: u64| {
            clusters.iter().find(|cluster| cluster.facts.id == AgentId(id)).unwrap().answer.clone().err()
        };
        assert_eq!(missing(last), None);
        assert!(missing(1).unwrap().contains("did not respond within 12 s"));
        assert!(missing(last + 1).unwrap().contains("kas asks 500 clusters at once"));
    }
}
