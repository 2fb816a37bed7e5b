//! GitOps in agentk: kas sends the manifests of commits, and the pod that leads applies them.
//!
//! ```text
//!   kas ─► manifests (kas only): source, projects, sync ─┐
//!   callers ─► gitops: status, sync, suspend, approve ───┴─► project ─► worker ─► engine ─► API of the cluster
//!                                                                        ▲
//!                                                            Lease: one pod leads
//! ```
//!
//! What a worker sends to the API of the cluster passes the scope and the policy of the cluster's owner, as the service `gitops`. The
//! inventory, the status and the Lease are agentk's own, in its namespace.

mod cluster;
mod drift;
mod handlers;
mod project;
mod sources;
mod worker;

use std::{
    collections::BTreeMap,
    sync::{Arc, OnceLock},
};

use futures_util::{StreamExt as _, stream::FuturesUnordered};
use gitops_engine::{Candidate, GroupKind, Kind, KubeCluster, Leadership, applyset::ApplySet};
use parking_lot::Mutex;
use proto::AgentId;
use tokio::sync::{Notify, mpsc, watch};
use tokio_util::sync::CancellationToken;

pub(crate) use self::{
    cluster::cluster_client,
    handlers::{GitopsHandler, ManifestsHandler},
};
use self::{project::Project, sources::Sources};

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
    projects: Mutex<BTreeMap<String, Arc<Project>>>,
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
            projects: Mutex::default(),
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

impl GitopsTasks {
    /// Returns a token that is cancelled once [`Self::run`] has given the Lease back.
    pub(crate) fn ended(&self) -> CancellationToken {
        self.ended.clone()
    }

    /// Runs the candidacy and the workers until `shutdown`, and gives the Lease back then.
    pub(crate) async fn run(mut self, shutdown: CancellationToken) {
        let gitops = &self.gitops;
        let ended = self.ended.drop_guard();
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
                // Its workers stop before their next write.
                gitops.leadership.send_replace(Leadership::default());
                gitops.sources.lock().close();
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
            let mut workers = FuturesUnordered::new();
            loop {
                tokio::select! {
                    Some(project) = self.new_projects.recv() => {
                        let worker = tokio::spawn(worker::run(Arc::clone(gitops), project));
                        workers.push(tokio_util::task::AbortOnDropHandle::new(worker));
                    }
                    Some(ended) = workers.next(), if !workers.is_empty() => {
                        if let Err(error) = ended {
                            tracing::error!(%error, "the worker of a project has panicked; this is a defect");
                        }
                    }
                }
            }
        };
        tokio::join!(lead, choose, work, drift::run(gitops));
    }
}

impl std::fmt::Debug for Gitops {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Gitops").field("namespace", &self.namespace).finish_non_exhaustive()
    }
}
