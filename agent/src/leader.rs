//! The Lease of an agent: the pod that holds it writes to the cluster, and the other pods wait.
//!
//! GitOps and events share it, so that one pod does all work of an agent.

use std::{
    sync::{Arc, OnceLock},
    time::Duration,
};

use gitops_engine::{ApiError, Candidate, Fence, KubeCluster, Leadership, Stopped, while_open};
use proto::AgentId;
use tokio::{
    sync::{Notify, watch},
    time::Instant,
};
use tokio_util::{
    sync::{CancellationToken, DropGuard},
    task::{TaskTracker, task_tracker::TaskTrackerToken},
};

/// The time after the start for which a pod waits for a kas that names the agent, before it takes itself for one without a Lease.
const AGENT_WAIT: Duration = Duration::from_secs(30);

/// The leadership of this pod, as its workers see it.
pub(crate) struct Leader {
    /// The cluster as agentk uses it itself.
    own: KubeCluster,
    namespace: String,
    /// The name of this process in the Lease.
    identity: String,
    /// The agent, once a kas has said which one this is.
    agent: OnceLock<AgentId>,
    agent_known: Notify,
    leadership: watch::Sender<Leadership>,
    started: Instant,
    /// Cancelled when the workers must stop writing, because the Lease is given back.
    stopping: CancellationToken,
    workers: TaskTracker,
}

/// The candidacy of this pod.
pub(crate) struct LeaderTask {
    leader: Arc<Leader>,
    ended: DropGuard,
}

impl Leader {
    /// Returns the leadership and its task. `namespace` is that of agentk, and `identity` differs for each process.
    pub(crate) fn new(own: KubeCluster, namespace: String, identity: String) -> (Arc<Self>, LeaderTask) {
        let leader = Arc::new(Self {
            own,
            namespace,
            identity,
            agent: OnceLock::new(),
            agent_known: Notify::new(),
            leadership: watch::Sender::default(),
            started: Instant::now(),
            stopping: CancellationToken::new(),
            workers: TaskTracker::new(),
        });
        (Arc::clone(&leader), LeaderTask { leader, ended: CancellationToken::new().drop_guard() })
    }

    /// Notes which agent this is. All replicas of kas say the same.
    pub(crate) fn set_agent(&self, agent: AgentId) {
        if self.agent.set(agent).is_ok() {
            self.agent_known.notify_one();
        }
    }

    /// Returns the agent, once a kas has said which one this is.
    pub(crate) fn agent(&self) -> Option<AgentId> {
        self.agent.get().copied()
    }

    /// Returns the cluster as agentk uses it itself.
    pub(crate) fn own_cluster(&self) -> &KubeCluster {
        &self.own
    }

    /// Returns the namespace of agentk.
    pub(crate) fn namespace(&self) -> &str {
        &self.namespace
    }

    pub(crate) fn is_leading(&self) -> bool {
        self.leadership.borrow().is_held()
    }

    /// Returns whether this pod leads, or no pod can: without GitOps and events of projects, no kas names the agent, and there is no Lease.
    pub(crate) fn is_leading_or_unnamed(&self) -> bool {
        self.is_leading() || (self.agent().is_none() && Instant::now() >= self.agent_deadline())
    }

    /// Returns the time until which a pod without an agent waits for a kas that names it.
    pub(crate) fn agent_deadline(&self) -> Instant {
        self.started + AGENT_WAIT
    }

    /// Returns a receiver of changes of the leadership.
    pub(crate) fn subscribe(&self) -> watch::Receiver<Leadership> {
        self.leadership.subscribe()
    }

    /// Registers a worker. The Lease is given back after the token was dropped.
    pub(crate) fn begin_work(&self) -> TaskTrackerToken {
        self.workers.token()
    }

    /// Completes when the workers must stop writing.
    pub(crate) async fn stopping(&self) {
        self.stopping.cancelled().await;
    }

    /// Sends a request of the leader. It is dropped when the Lease ends, so that it replaces nothing that the next leader writes.
    pub(crate) async fn while_leading<T>(
        &self,
        request: impl Future<Output = Result<T, ApiError>> + Send,
    ) -> Result<T, ApiError> {
        let ended = while_open(self, request).await;
        ended.unwrap_or_else(|stopped| Err(ApiError { message: stopped.to_string(), ..ApiError::default() }))
    }

    async fn agent_when_known(&self) -> AgentId {
        loop {
            match self.agent() {
                Some(agent) => return agent,
                None => self.agent_known.notified().await,
            }
        }
    }
}

impl Fence for Leader {
    fn check(&self) -> Result<Instant, Stopped> {
        self.leadership.borrow().until().ok_or(Stopped::LostLease)
    }
}

impl LeaderTask {
    /// Returns a token that is cancelled once [`Self::run`] has given the Lease back.
    pub(crate) fn ended(&self) -> CancellationToken {
        self.ended.token().clone()
    }

    /// Holds the Lease whenever that is possible until `shutdown`, and gives it back then.
    pub(crate) async fn run(self, shutdown: CancellationToken) {
        let Self { leader, ended: _ended } = self;
        let Some(agent) = shutdown.run_until_cancelled(leader.agent_when_known()).await else {
            leader.stopping.cancel();
            return;
        };
        // The name of older versions, in which GitOps alone had a Lease.
        let name = format!("agentk-{agent}-gitops");
        let mut candidate = Candidate::new(leader.own.clone(), &leader.namespace, &name, &leader.identity);
        shutdown.run_until_cancelled(candidate.run(&leader.leadership)).await;
        leader.leadership.send_replace(Leadership::default());
        // The next leader must not meet a write of this one.
        leader.stopping.cancel();
        leader.workers.close();
        leader.workers.wait().await;
        candidate.release().await;
    }
}

impl std::fmt::Debug for Leader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Leader").field("namespace", &self.namespace).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn pod_waits_for_the_name_of_its_agent_before_it_acts_without_a_lease() {
        let new = || {
            let cluster = KubeCluster::new(|| panic!("no request is sent"));
            Leader::new(cluster, "default".to_owned(), "pod".to_owned()).0
        };
        let (named, unnamed) = (new(), new());
        assert!(!named.is_leading_or_unnamed() && !unnamed.is_leading_or_unnamed());
        named.set_agent(AgentId(7));
        advance(AGENT_WAIT).await;
        assert!(!named.is_leading_or_unnamed(), "another pod may hold the Lease");
        assert!(unnamed.is_leading_or_unnamed());
    }
}
