//! The Leases of an agent: the pod that holds that of a feature does its work, and the other pods wait.
//!
//! Each feature has its own Lease, because the pods of an agent may run different features: one that does not run a feature must not keep
//! others from it.

use std::{sync::Arc, time::Duration};

use kube_cluster::{
    ApiError, Fence, KubeCluster, LEASE_PREFIX, LeaderElector, Leadership, Stopped, while_open,
};
use proto::AgentId;
use tokio::{sync::watch, time::Instant};
use tokio_util::{
    sync::{CancellationToken, DropGuard},
    task::{TaskTracker, task_tracker::TaskTrackerToken},
};

/// The time after the start for which a pod waits for a kas that names the agent, before it takes itself for one without a Lease.
const AGENT_WAIT: Duration = Duration::from_secs(30);

/// The Lease of a feature of which one pod of an agent does the work.
#[derive(Clone, Copy, Debug)]
pub struct LeaseDefinition {
    /// The end of the name of the Lease, which begins with `agentk-` and the id of the agent.
    pub suffix: &'static str,
    /// The name of the feature in logs.
    pub feature: &'static str,
    /// The time from which a pod is a candidate.
    pub candidacy: Candidacy,
}

/// The time from which a pod is a candidate for a Lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Candidacy {
    /// A kas has named the agent to this feature, which it does with the first work.
    WithWork,
    /// A kas has named the agent to any feature: no request of kas is about this one.
    WithAgent,
}

/// A process of agentk, as it takes part in the choice of leaders.
#[derive(Clone)]
pub struct CandidateProcess {
    /// The cluster as agentk uses it itself.
    pub own: KubeCluster,
    /// The namespace of agentk.
    pub namespace: String,
    /// The name of this process in the Leases, which differs for each one.
    pub identity: String,
    /// The agent, once a kas has said which one this is.
    pub agent: watch::Sender<Option<AgentId>>,
}

/// The leadership of this pod in a feature, as its workers see it.
pub struct Leader {
    lease: LeaseDefinition,
    process: CandidateProcess,
    /// The agent, once this pod is a candidate.
    agent: watch::Sender<Option<AgentId>>,
    leadership: watch::Sender<Leadership>,
    started: Instant,
    /// Cancelled when the workers must stop writing, because the Lease is given back.
    stopping: CancellationToken,
    workers: TaskTracker,
}

/// The candidacy of this pod.
pub struct LeaderTask {
    leader: Arc<Leader>,
    ended: DropGuard,
}

impl Leader {
    /// Returns the leadership of the pod that holds this Lease, and its task.
    pub fn new(lease: LeaseDefinition, process: CandidateProcess) -> (Arc<Self>, LeaderTask) {
        let agent = match lease.candidacy {
            Candidacy::WithWork => watch::Sender::default(),
            Candidacy::WithAgent => process.agent.clone(),
        };
        let leader = Arc::new(Self {
            lease,
            process,
            agent,
            leadership: watch::Sender::default(),
            started: Instant::now(),
            stopping: CancellationToken::new(),
            workers: TaskTracker::new(),
        });
        (Arc::clone(&leader), LeaderTask { leader, ended: CancellationToken::new().drop_guard() })
    }

    /// Notes which agent this is, and that the feature has work. All replicas of kas say the same.
    pub fn set_agent(&self, agent: AgentId) {
        for known in [&self.agent, &self.process.agent] {
            known.send_if_modified(|known| known.replace(agent).is_none());
        }
    }

    /// Returns the agent, once a kas has said which one this is.
    pub fn agent(&self) -> Option<AgentId> {
        *self.agent.borrow()
    }

    /// Returns the cluster as agentk uses it itself.
    pub fn own_cluster(&self) -> &KubeCluster {
        &self.process.own
    }

    /// Returns the namespace of agentk.
    pub fn namespace(&self) -> &str {
        &self.process.namespace
    }

    /// Returns whether this pod leads.
    pub fn is_leading(&self) -> bool {
        self.leadership.borrow().is_held()
    }

    /// Returns why no pod leads, as far as this one knows, if that is so for more than a moment.
    pub fn unattended(&self) -> Option<String> {
        self.leadership.borrow().unattended().map(str::to_owned)
    }

    /// Returns whether this pod leads, or no pod can: without a feature with work of kas, no kas names the agent, and there is no Lease.
    pub fn is_leading_or_unnamed(&self) -> bool {
        self.is_leading() || (self.agent().is_none() && Instant::now() >= self.agent_deadline())
    }

    /// Returns the time until which a pod without an agent waits for a kas that names it.
    pub fn agent_deadline(&self) -> Instant {
        self.started + AGENT_WAIT
    }

    /// Returns a receiver of changes of the leadership.
    pub fn subscribe(&self) -> watch::Receiver<Leadership> {
        self.leadership.subscribe()
    }

    /// Registers a worker. The Lease is given back after the token was dropped.
    pub fn begin_work(&self) -> TaskTrackerToken {
        self.workers.token()
    }

    /// Completes when the workers must stop writing.
    pub async fn stopping(&self) {
        self.stopping.cancelled().await;
    }

    /// Sends a request of the leader. It is dropped when the Lease ends, so that it replaces nothing that the next leader writes.
    pub async fn while_leading<T>(
        &self,
        request: impl Future<Output = Result<T, ApiError>> + Send,
    ) -> Result<T, ApiError> {
        let ended = while_open(self, request).await;
        ended.unwrap_or_else(|stopped| Err(ApiError { message: stopped.to_string(), ..ApiError::default() }))
    }

    async fn agent_when_known(&self) -> AgentId {
        let mut agent = self.agent.subscribe();
        let known = agent.wait_for(Option::is_some).await;
        known.ok().and_then(|agent| *agent).expect("the sender is in self")
    }
}

impl Fence for Leader {
    fn check(&self) -> Result<Instant, Stopped> {
        self.leadership.borrow().until().ok_or(Stopped::LostLease)
    }
}

impl LeaderTask {
    /// Returns a token that is cancelled once [`Self::run`] has given the Lease back.
    pub fn ended(&self) -> CancellationToken {
        self.ended.token().clone()
    }

    /// Holds the Lease whenever that is possible until `shutdown`, and gives it back then.
    pub async fn run(self, shutdown: CancellationToken) {
        let Self { leader, ended: _ended } = self;
        // The workers stop also if this task panics.
        let _stopping = leader.stopping.clone().drop_guard();
        let Some(agent) = shutdown.run_until_cancelled(leader.agent_when_known()).await else {
            leader.stopping.cancel();
            return;
        };
        let CandidateProcess { own, namespace, identity, .. } = &leader.process;
        let LeaseDefinition { suffix, feature, .. } = leader.lease;
        let lease = format!("{LEASE_PREFIX}{agent}{suffix}");
        let mut candidate = LeaderElector::new(own.clone(), feature, namespace, &lease, identity);
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
        f.debug_struct("Leader").field("lease", &self.lease).finish_non_exhaustive()
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
            let process = CandidateProcess {
                own: cluster,
                namespace: "default".to_owned(),
                identity: "pod".to_owned(),
                agent: watch::Sender::default(),
            };
            let candidacy = Candidacy::WithAgent;
            let lease = LeaseDefinition { suffix: "-alerts", feature: "alerts", candidacy };
            Leader::new(lease, process).0
        };
        let (named, unnamed) = (new(), new());
        assert!(!named.is_leading_or_unnamed() && !unnamed.is_leading_or_unnamed());
        named.set_agent(AgentId(7));
        advance(AGENT_WAIT).await;
        assert!(!named.is_leading_or_unnamed(), "another pod may hold the Lease");
        assert!(unnamed.is_leading_or_unnamed());
    }
}
