//! GitOps in agentk: kas sends the manifests of commits, and the pod that leads applies them.
//!
//! ```text
//!   kas ─► manifests (kas only): source, projects, sync ─┐
//!   callers ─► gitops: status, sync, suspend, approve ───┴─► project ─► worker ─► engine ─► API of the cluster
//!   callers ─► gitops: diff ─────────────────────────────────────────────────────────┘
//!                                                                        ▲
//!                                                            Lease: one pod leads
//! ```
//!
//! The requests of a worker to the API of the cluster pass the scope and the policy of the cluster's owner, as the service `gitops`.
//! The inventory, the status and the Lease are agentk's own, in its namespace.

mod cluster;
mod diff;
mod drift;
mod events;
mod handlers;
mod metrics;
mod preview;
mod project;
mod schedule;
mod sources;
mod worker;

use std::{
    collections::BTreeMap,
    sync::{Arc, OnceLock},
};

use gitops_engine::{
    ApiError, Candidate, Fence, GroupKind, Kind, KubeCluster, Leadership, Stopped, applyset::ApplySet,
    while_open,
};
use parking_lot::Mutex;
use proto::AgentId;
use tokio::{
    sync::{Notify, Semaphore, mpsc, watch},
    task::JoinSet,
    time::Instant,
};
use tokio_util::sync::CancellationToken;

pub(crate) use self::{
    cluster::cluster_client,
    handlers::{GitopsHandler, ManifestsHandler},
    metrics::GitopsMetrics,
};
use self::{preview::Previews, project::Project, sources::Sources};

/// The most diffs at the same time. Others wait.
const MAX_DIFFS: usize = 2;

/// The state that the services and the workers share.
pub(crate) struct Gitops {
    /// The cluster as the scope and the policy allow it.
    cluster: KubeCluster,
    /// The cluster as agentk uses it itself.
    own: KubeCluster,
    namespace: String,
    /// The name of this process in the Lease.
    identity: String,
    /// The agent, once a kas has said which one this is.
    agent: OnceLock<AgentId>,
    agent_known: Notify,
    leadership: watch::Sender<Leadership>,
    sources: Mutex<Sources>,
    previews: Previews,
    /// Limits the diffs at the same time, each of which holds the files of a project.
    diffs: Arc<Semaphore>,
    projects: Mutex<BTreeMap<String, Arc<Project>>>,
    metrics: GitopsMetrics,
    /// The kinds of objects that are watched for changes.
    kinds: watch::Sender<BTreeMap<GroupKind, Kind>>,
    /// Starts the worker of a new project.
    new_projects: mpsc::UnboundedSender<Arc<Project>>,
}

/// The tasks of GitOps.
pub(crate) struct GitopsTasks {
    gitops: Arc<Gitops>,
    new_projects: mpsc::UnboundedReceiver<Arc<Project>>,
    ended: CancellationToken,
}

impl Gitops {
    /// Returns the shared state and its tasks. `namespace` is that of agentk, and `identity` differs for each process.
    pub(crate) fn new(
        cluster: KubeCluster,
        own: KubeCluster,
        namespace: String,
        identity: String,
        metrics: GitopsMetrics,
    ) -> (Arc<Self>, GitopsTasks) {
        let (sender, new_projects) = mpsc::unbounded_channel();
        let gitops = Arc::new(Self {
            cluster,
            own,
            namespace,
            identity,
            agent: OnceLock::new(),
            agent_known: Notify::new(),
            leadership: watch::Sender::default(),
            sources: Mutex::default(),
            previews: Previews::default(),
            diffs: Arc::new(Semaphore::new(MAX_DIFFS)),
            projects: Mutex::default(),
            metrics,
            kinds: watch::Sender::default(),
            new_projects: sender,
        });
        (Arc::clone(&gitops), GitopsTasks { gitops, new_projects, ended: CancellationToken::new() })
    }

    /// Notes which agent this is. All replicas of kas say the same.
    fn set_agent(&self, agent: AgentId) {
        if self.agent.set(agent).is_ok() {
            self.agent_known.notify_one();
        }
    }

    fn is_leading(&self) -> bool {
        self.leadership.borrow().is_held()
    }

    /// Sends a request of the leader. It is dropped when the Lease ends, so that it replaces nothing that the next leader writes.
    async fn while_leading<T>(
        &self,
        request: impl Future<Output = Result<T, ApiError>> + Send,
    ) -> Result<T, ApiError> {
        let ended = while_open(self, request).await;
        ended.unwrap_or_else(|stopped| Err(ApiError { message: stopped.to_string(), ..ApiError::default() }))
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
        let agent = *self.agent.get()?;
        let projects = self.projects.lock();
        let found =
            projects.values().find(|project| ApplySet::new(agent, &project.id, &self.namespace).id() == set);
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

impl Fence for Gitops {
    fn check(&self) -> Result<Instant, Stopped> {
        self.leadership.borrow().until().ok_or(Stopped::LostLease)
    }
}

impl GitopsTasks {
    /// Returns a token that is cancelled once [`Self::run`] has given the Lease back.
    pub(crate) fn ended(&self) -> CancellationToken {
        self.ended.clone()
    }

    /// Runs the candidacy and the workers until `shutdown`, and gives the Lease back then.
    pub(crate) async fn run(mut self, shutdown: CancellationToken) {
        let gitops = &self.gitops;
        let ended = self.ended.drop_guard();
        let (stop_work, work_ended) = (CancellationToken::new(), CancellationToken::new());
        let lead = async {
            let _ended = ended;
            if shutdown.run_until_cancelled(gitops.agent_known.notified()).await.is_none() {
                return;
            }
            let Some(agent) = gitops.agent.get() else { return };
            let name = format!("agentk-{agent}-gitops");
            let mut candidate =
                Candidate::new(gitops.own.clone(), &gitops.namespace, &name, &gitops.identity);
            let running = candidate.run(&gitops.leadership);
            if shutdown.run_until_cancelled(running).await.is_none() {
                gitops.leadership.send_replace(Leadership::default());
                gitops.sources.lock().close();
                // The next leader must not meet a write of this one.
                stop_work.cancel();
                work_ended.cancelled().await;
                candidate.release().await;
            }
        };
        let choose = async {
            let mut leadership = gitops.leadership.subscribe();
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
                    () = stop_work.cancelled() => break,
                    Some(ended) = workers.join_next() => {
                        if let Err(error) = ended {
                            tracing::error!(%error, "the worker of a project has panicked; this is a defect");
                        }
                    }
                }
            }
            workers.shutdown().await;
            work_ended.cancel();
        };
        tokio::join!(lead, choose, work, drift::run(gitops));
    }
}

impl std::fmt::Debug for Gitops {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Gitops").field("namespace", &self.namespace).finish_non_exhaustive()
    }
}
