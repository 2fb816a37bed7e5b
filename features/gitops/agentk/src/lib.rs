//! GitOps in agentk: kas sends the manifests of commits, and the pod that leads applies them.
//!
//! ```text
//!   kas ─► manifests (kas only): source, projects, sync ─┐
//!   callers ─► gitops: status, sync, approve, recover, … ┴─► project ─► worker ─► engine ─► API of the cluster
//!   callers ─► gitops: diff ─────────────────────────────────────────────────────────┘
//!                                                                        ▲
//!                                                            Lease: one pod leads
//! ```
//!
//! The requests of a worker to the API of the cluster pass the scope and the policy of the cluster's owner, as the service `gitops`.
//! The inventory, the status and the Lease are agentk's own, in its namespace.
#![warn(missing_docs)]

mod attendance;
mod check;
mod cluster;
mod commands;
mod definition;
mod diff;
mod drift;
mod events;
mod handlers;
mod metrics;
mod preview;
mod project;
mod recovery;
mod schedule;
mod settled;
mod sources;
mod stored;
#[cfg(test)]
mod tests;
mod worker;

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, SystemTime},
};

use agentk_core::{
    EventLog,
    leader::{Candidacy, Leader, LeaseDefinition},
    services::{ServiceError, caller_permits::CallerPermits},
};
use gitops_engine::{HealthRules, applyset::ApplySet};
use kube_cluster::{GroupKind, Kind, KubeCluster};
use parking_lot::Mutex;
use proto::AgentId;
use tokio::{
    sync::{Semaphore, mpsc, watch},
    task::JoinSet,
    time::{Instant, timeout_at},
};

pub use self::definition::DEFINITION;
pub(crate) use self::{
    cluster::cluster_client,
    handlers::{GitopsHandler, ManifestsHandler},
    metrics::GitopsMetrics,
};
use self::{preview::Previews, project::Project, sources::Sources};

/// The Lease of the pod that applies manifests.
pub(crate) const LEASE: LeaseDefinition =
    LeaseDefinition { suffix: "-gitops", feature: "GitOps", candidacy: Candidacy::WithWork };

/// The most diffs at the same time. Others wait.
const MAX_DIFFS: usize = 2;
/// The time for which a caller waits for the first subscription.
const SUBSCRIPTION_WAIT: Duration = Duration::from_secs(5);

/// The state that the services and the workers share.
pub(crate) struct Gitops {
    /// The cluster as the scope and the policy allow it.
    cluster: KubeCluster,
    leader: Arc<Leader>,
    sources: Mutex<Sources>,
    /// The result of the last subscription, if there was one. It is an error if the inventories could not be listed.
    subscribed: watch::Sender<Option<Result<(), ServiceError>>>,
    previews: Previews,
    /// Limits the diffs at the same time, each of which holds the files of a project.
    diffs: Arc<Semaphore>,
    /// Limits the bytes of the bodies of requests for diffs.
    diff_bodies: CallerPermits,
    projects: Mutex<BTreeMap<String, Arc<Project>>>,
    metrics: GitopsMetrics,
    /// The rules of the configuration for the health of kinds.
    health_rules: HealthRules,
    /// Reports to kas.
    log: EventLog,
    /// The kinds of objects that are watched for changes.
    kinds: watch::Sender<BTreeMap<GroupKind, Kind>>,
    /// Starts the worker of a new project.
    new_projects: mpsc::UnboundedSender<Arc<Project>>,
}

/// The tasks of GitOps.
pub(crate) struct GitopsTasks {
    gitops: Arc<Gitops>,
    new_projects: mpsc::UnboundedReceiver<Arc<Project>>,
}

impl Gitops {
    /// Returns the shared state and its tasks.
    pub(crate) fn new(
        cluster: KubeCluster,
        leader: Arc<Leader>,
        metrics: GitopsMetrics,
        log: EventLog,
    ) -> (Arc<Self>, GitopsTasks) {
        let (sender, new_projects) = mpsc::unbounded_channel();
        let gitops = Arc::new(Self {
            cluster,
            leader,
            sources: Mutex::default(),
            subscribed: watch::Sender::default(),
            previews: Previews::default(),
            diffs: Arc::new(Semaphore::new(MAX_DIFFS)),
            diff_bodies: CallerPermits::in_halves(diff::MAX_BODIES),
            projects: Mutex::default(),
            metrics,
            health_rules: HealthRules::default(),
            log,
            kinds: watch::Sender::default(),
            new_projects: sender,
        });
        (Arc::clone(&gitops), GitopsTasks { gitops, new_projects })
    }

    /// Returns the rules for the health of kinds, which the configuration sets.
    pub(crate) fn health_rules(&self) -> &HealthRules {
        &self.health_rules
    }

    /// Returns the agent, or `None` if it has no projects. Waits a moment for the first subscription, which names the agent.
    ///
    /// # Errors
    ///
    /// The inventories could not be listed.
    async fn agent_with_projects(&self) -> Result<Option<AgentId>, ServiceError> {
        let mut subscribed = self.subscribed.subscribe();
        let is_known = |result: &Option<_>| result.is_some() || self.leader.agent().is_some();
        // An older kas does not subscribe without projects.
        let limit = self.leader.agent_deadline().min(Instant::now() + SUBSCRIPTION_WAIT);
        let result = match timeout_at(limit, subscribed.wait_for(is_known)).await {
            Ok(Ok(result)) => result.clone().unwrap_or(Ok(())),
            _ => Ok(()),
        };
        match self.leader.agent() {
            Some(agent) => Ok(Some(agent)),
            None => result.map(|()| None),
        }
    }

    /// Watches the objects of more kinds for changes.
    fn watch_kinds<'a>(&self, kinds: impl Iterator<Item = &'a Kind>) {
        self.kinds.send_if_modified(|watched| {
            let before = watched.len();
            for kind in kinds {
                watched.entry(kind.kind.clone()).or_insert_with(|| kind.clone());
            }
            watched.len() > before
        });
    }

    /// Returns the project with an ApplySet, if it exists.
    fn project_of_set(&self, set: &str) -> Option<Arc<Project>> {
        let agent = self.leader.agent()?;
        let projects = self.projects.lock();
        let found = projects
            .values()
            .find(|project| ApplySet::new(agent, &project.id, self.leader.namespace()).id() == set);
        found.cloned()
    }

    /// Returns the project with an id, which may be new.
    fn project(&self, id: &str) -> Arc<Project> {
        let mut projects = self.projects.lock();
        if let Some(project) = projects.get(id) {
            return Arc::clone(project);
        }
        let project = Arc::new(Project::new(id));
        projects.insert(id.to_owned(), Arc::clone(&project));
        // Fails only while agentk stops.
        let _ = self.new_projects.send(Arc::clone(&project));
        project
    }

    /// Returns the project with an id, if it exists.
    fn find_project(&self, id: &str) -> Option<Arc<Project>> {
        self.projects.lock().get(id).cloned()
    }
}

impl GitopsTasks {
    /// Runs the workers until the Lease is given back.
    pub(crate) async fn run(mut self) {
        let gitops = &self.gitops;
        let leader = &gitops.leader;
        let working = leader.begin_work();
        let choose = async {
            let mut leadership = leader.subscribe();
            loop {
                let leading = leadership.borrow_and_update().is_held();
                if !leading {
                    gitops.projects.lock().values().for_each(|project| project.forget());
                }
                gitops.sources.lock().set_leading(leading);
                if leadership.changed().await.is_err() {
                    return;
                }
            }
        };
        let work = async {
            let mut workers = JoinSet::new();
            loop {
                tokio::select! {
                    Some(project) = self.new_projects.recv() => {
                        workers.spawn(worker::run(Arc::clone(gitops), project));
                    }
                    () = leader.stopping() => break,
                    Some(ended) = workers.join_next() => {
                        if let Err(error) = ended {
                            tracing::error!(%error, "the worker of a project has panicked; this is a defect");
                        }
                    }
                }
            }
            gitops.sources.lock().close();
            workers.shutdown().await;
            drop(working);
        };
        tokio::select! {
            () = work => {}
            _ = async { tokio::join!(choose, drift::run(gitops)) } => {}
        }
    }
}

/// Returns the time in milliseconds since 1970.
fn now_millis() -> u64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_millis()).unwrap_or(u64::MAX)
}

impl std::fmt::Debug for Gitops {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Gitops").field("leader", &self.leader).finish_non_exhaustive()
    }
}
