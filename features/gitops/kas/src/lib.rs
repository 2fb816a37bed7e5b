//! GitOps in kas: reads manifests from Git, and sends them to agentk.
//!
//! ```text
//!   configuration of the agent ─► projects ─► repository ─► newest commit ─► files, rendered ─► POST sync through one tunnel ─► agentk
//!                                                               ▲
//!                                                    push event, interval, agentk wants
//! ```
//!
//! Each replica keeps a subscription open at each process of agentk, which chooses one of them as its source. All agents at a replica that
//! follow the same reference of a repository share one look at it, and with Redis all replicas do (`looks`).
#![warn(missing_docs)]

mod commit;
mod commit_status;
mod config;
mod feature;
mod feed;
mod looks;
mod merge_requests;
mod metrics;
mod origins;
mod preview;
mod readers;
mod refusals;
mod sources;
mod versions;

use std::{future::pending, sync::Arc, time::Duration};

use access::{AgentIdentity, Identities};
use futures_util::future::BoxFuture;
use git::RepositorySettings;
use gitops_wire::{
    AgentProjects, CommitStatusApi, MergeRequestApi, ProjectAccessError, ProjectReader, ProjectSource,
};
use kas_core::attachments::{AgentSubscription, Attachment, OpeningTunnel, TunnelFeature};
use parking_lot::Mutex;
use prometheus_client::registry::Registry;
use proto::{ReplicaId, agent_configuration::gitops::ManifestProject};
use store::{GitPush, Store, redis::RedisStore};
use tokio::sync::{
    Semaphore,
    broadcast::{self, error::RecvError},
};
use tunnel::Tunnel;

use self::{
    commit::CommitReader,
    commit_status::CommitStatuses,
    feed::{GitopsFeed, SUBSCRIPTION},
    merge_requests::NoteWriter,
    metrics::GitopsMetrics,
    readers::{AgentReaders, ReaderGuard},
    refusals::Refusals,
    sources::{LookContext, Sources},
};
pub use self::{config::GitopsConfig, origins::ManifestOriginLookup};

/// The time that agentk may take for the response to a small request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);

/// Sends manifests to the agents with tunnels to this replica. Clones are cheap, and share their state.
#[derive(Clone, Debug)]
pub struct GitopsService(Arc<Shared>);

/// The parts of a replica from which the service is built.
pub struct GitopsContext {
    /// The agents of the identity file.
    pub identities: Identities,
    /// The projects of the GitLab, if one is configured.
    pub projects: Option<Arc<dyn ProjectSource>>,
    /// The statuses of commits in GitLab, if the operator wants them.
    pub statuses: Option<Arc<dyn CommitStatusApi>>,
    /// The merge requests in GitLab, if the operator wants notes in them.
    pub merge_requests: Option<Arc<dyn MergeRequestApi>>,
    /// The repository of agents of the identity file without one of their own.
    pub default_repository: Option<Arc<RepositorySettings>>,
    /// The records of all replicas.
    pub store: Arc<dyn Store>,
    /// This replica.
    pub replica: ReplicaId,
    /// The store that replicas share, if there are several.
    pub redis: Option<RedisStore>,
}

#[derive(Debug)]
struct Shared {
    sources: Sources,
    readers: AgentReaders,
    poll_period: Duration,
    min_interval: Duration,
    commits: CommitReader,
    pushes: broadcast::Sender<GitPush>,
    /// The statuses of commits in GitLab, if the operator wants them.
    statuses: Option<CommitStatuses>,
    /// The notes in merge requests of GitLab, if the operator wants them.
    notes: Option<NoteWriter>,
}

/// The tunnel of a process of agentk without GitOps, so that this replica can say so.
#[derive(Debug)]
struct WithoutGitops {
    _reader: ReaderGuard,
}

/// Receives the paths of projects that were pushed to.
pub(crate) struct Pushes(broadcast::Receiver<GitPush>);

impl GitopsService {
    /// Builds the service of a replica.
    pub fn new(context: GitopsContext, gitops: &GitopsConfig, registry: &mut Registry) -> Self {
        let GitopsContext { identities, projects, default_repository, redis, .. } = context;
        let metrics = GitopsMetrics::register(registry);
        let statuses = context.statuses.map(|api| CommitStatuses::new(api, metrics.clone()));
        let (store, replica) = (context.store, context.replica);
        let looks = LookContext {
            redis,
            metrics: metrics.clone(),
            polls_per_second: gitops.polls_per_server_per_second,
            addresses: gitops.addresses(),
            throttles: Mutex::default(),
        };
        let configured = Arc::clone(&gitops.sources);
        Self(Arc::new(Shared {
            sources: Sources::new(identities, default_repository, configured, projects, looks),
            readers: AgentReaders::default(),
            poll_period: gitops.poll_period,
            min_interval: gitops.min_interval,
            commits: CommitReader {
                limits: gitops.limits(),
                renderer: gitops.renderer(),
                refusals: Refusals::default(),
                metrics,
            },
            pushes: broadcast::Sender::new(64),
            statuses,
            notes: context.merge_requests.map(|api| NoteWriter::new(api, store, replica)),
        }))
    }

    /// Looks at repositories at once when they receive a push. The future never completes.
    async fn follow_pushes(&self, mut pushes: broadcast::Receiver<GitPush>) {
        loop {
            match pushes.recv().await {
                // Fails if no project is followed.
                Ok(push) => drop(self.0.pushes.send(push)),
                // Each project looks again after its period.
                Err(RecvError::Lagged(_)) => {}
                Err(RecvError::Closed) => pending().await,
            }
        }
    }

    /// Sets the statuses of commits in GitLab. The future never completes.
    async fn report_statuses(&self) {
        match &self.0.statuses {
            Some(statuses) => statuses.run().await,
            None => pending().await,
        }
    }

    /// Subscribes to the pushes that [`Self::follow_pushes`] receives.
    pub(crate) fn pushes(&self) -> Pushes {
        Pushes(self.0.pushes.subscribe())
    }
}

impl AgentProjects for GitopsService {
    fn is_configured_by_operator(&self, agent: &AgentIdentity) -> bool {
        self.0.sources.is_in_identity_file(agent)
    }

    fn check_access<'a>(
        &'a self,
        reader: ProjectReader<'a>,
        project: &'a str,
    ) -> BoxFuture<'a, Result<(), ProjectAccessError>> {
        let project = ManifestProject { id: Some(project.to_owned()), ..ManifestProject::default() };
        Box::pin(async move {
            let followed = self.0.sources.follow((reader.agent, reader.token), &project, reader.own).await;
            followed.map(drop)
        })
    }

    fn newest_commit<'a>(
        &'a self,
        reader: ProjectReader<'a>,
        project: &'a str,
        age: Duration,
    ) -> BoxFuture<'a, Result<Option<(String, String)>, String>> {
        let project = ManifestProject { id: Some(project.to_owned()), ..ManifestProject::default() };
        Box::pin(async move {
            let followed = self.0.sources.follow((reader.agent, reader.token), &project, reader.own).await;
            let followed = followed.map_err(|error| error.to_string())?;
            let commit = followed.newest(age).await.map_err(|error| error.to_string())?;
            Ok(commit.map(|commit| (followed.reference(&commit.branch), commit.id.to_string())))
        })
    }
}

impl TunnelFeature for GitopsService {
    fn attach(&self, opening: &OpeningTunnel<'_>) -> Option<Box<dyn Attachment>> {
        let reader = self.0.readers.add(opening);
        if !reader.serves_gitops {
            return Some(Box::new(WithoutGitops { _reader: reader }));
        }
        Some(Box::new(GitopsFeed {
            service: self.clone(),
            reader,
            subscription: AgentSubscription::new(&SUBSCRIPTION, opening),
            kubernetes: opening.hello.kubernetes_version.clone(),
            preview_turn: Semaphore::new(1),
        }))
    }
}

impl Attachment for WithoutGitops {
    fn run<'a>(&'a mut self, _: &'a Tunnel) -> BoxFuture<'a, ()> {
        Box::pin(pending())
    }
}

impl Pushes {
    /// Returns the path of the next project, or `None` if some were missed.
    pub(crate) async fn recv(&mut self) -> Option<String> {
        match self.0.recv().await {
            Ok(push) => Some(push.path().to_owned()),
            Err(RecvError::Lagged(_)) => None,
            Err(RecvError::Closed) => pending().await,
        }
    }
}
