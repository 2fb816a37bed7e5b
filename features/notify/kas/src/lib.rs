//! Events into clusters: each change of a Git project reaches the agents whose configuration names the project.
//!
//! ```text
//!   GitPushEvent, POST /api/v1/events, look at a repository ─► latest event of each reference (Redis or memory)
//!                                                                     │  pushes of all replicas
//!                                                                     ▼
//!                                              feed of each process ─► POST /v1/events ─► agentk
//! ```
//!
//! The latest event of each reference is kept, so that an agent that was away receives it once it is back. agentk compares ids, so that
//! an event that arrives from several replicas has one effect.
#![warn(missing_docs)]

mod access;
mod api;
mod feature;
mod feed;
pub mod git_push;
mod metrics;
mod outbox;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use parking_lot::Mutex;
use prometheus_client::registry::Registry;
use proto::{ServiceName, notify::ProjectEvent};
use sha2::{Digest as _, Sha256};
use store::{GitPush, RecordedEvent, Store, StoreError};
use tokio::{
    sync::broadcast::{self, error::RecvError},
    time::{MissedTickBehavior, interval, sleep},
};

use self::access::EventSections;
use self::feed::{NotifyFeed, SUBSCRIPTION};
use self::metrics::NotifyMetrics;
use gitops_wire::AgentProjects;
use kas_core::{
    attachments::{AgentSubscription, Attachment, OpeningTunnel, TunnelFeature},
    configuration::ConfigurationState,
};

/// The events that a feed may be behind before it reads the latest ones again.
const QUEUE: usize = 1024;
/// The time after which the events of all wanted projects are read again: Redis delivers each message at most once.
const RESYNC: Duration = Duration::from_secs(300);
/// The pause after the store did not answer.
const PAUSE: Duration = Duration::from_secs(1);

/// Keeps the events of projects, and sends them to the agents with tunnels to this replica. Clones are cheap, and share their state.
#[derive(Clone, Debug)]
pub struct NotifyService(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    store: Arc<dyn Store>,
    /// The latest events of a project, after each change.
    live: broadcast::Sender<Arc<[ProjectEvent]>>,
    /// The number of feeds that want the events of each project.
    wanted: Mutex<BTreeMap<String, usize>>,
    /// The repositories of projects, and which agents may read them.
    projects: Arc<dyn AgentProjects>,
    metrics: NotifyMetrics,
}

/// The origin of an event, as a label of metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EventOrigin {
    /// GitLab reported a push.
    GitLab,
    /// A program sent the event.
    Api,
    /// kas looked at the repository.
    Poll,
}

/// The projects that one feed wants. Dropping it withdraws them.
struct WantedGuard<'a> {
    service: &'a NotifyService,
    projects: BTreeSet<String>,
}

impl NotifyService {
    /// Builds the service of a replica.
    pub fn new(store: Arc<dyn Store>, projects: Arc<dyn AgentProjects>, registry: &mut Registry) -> Self {
        Self(Arc::new(Shared {
            store,
            live: broadcast::Sender::new(QUEUE),
            wanted: Mutex::default(),
            projects,
            metrics: NotifyMetrics::register(registry),
        }))
    }

    /// Keeps an event as the latest one of its reference, and announces a new one to all replicas.
    ///
    /// # Errors
    ///
    /// Redis did not answer. Recording the same event again is safe.
    pub(crate) async fn record(
        &self,
        event: &ProjectEvent,
        origin: EventOrigin,
    ) -> Result<RecordedEvent, StoreError> {
        let mut recorded = self.0.store.record_event(event).await;
        if matches!(recorded, Ok(RecordedEvent::UnknownProject)) && self.is_wanted(event.project()) {
            // Redis has lost the names.
            self.0.store.name_projects(&[event.project().to_owned()]).await?;
            recorded = self.0.store.record_event(event).await;
        }
        self.0.metrics.count_event(origin, &recorded);
        if let Ok(RecordedEvent::New(event)) = &recorded {
            let (project, reference, id) = (event.project(), event.reference(), event.id());
            tracing::info!(project, reference, id, origin = origin.as_str(), "event of a project");
        }
        // The replica that recorded it first may have died before it could announce it.
        if matches!(recorded, Ok(RecordedEvent::New(_) | RecordedEvent::Known)) {
            let push = GitPush::of_path(event.project());
            self.0.store.send_push(push.expect("the path of an event was checked"));
        }
        recorded
    }

    /// Reads the events of a project when any replica receives a push to it. The future never completes.
    async fn follow_pushes(&self, mut pushes: broadcast::Receiver<GitPush>) {
        let mut unread = BTreeSet::new();
        let mut resync = interval(RESYNC);
        resync.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                push = pushes.recv() => match push {
                    Ok(push) if self.is_wanted(push.path()) => {
                        unread.insert(push.path().to_owned());
                    }
                    Ok(_) => continue,
                    Err(RecvError::Lagged(_)) => unread.extend(self.wanted()),
                    Err(RecvError::Closed) => return std::future::pending().await,
                },
                _ = resync.tick() => {
                    let wanted = self.wanted();
                    // Redis may have lost the names, and keeps those that were named last.
                    if !wanted.is_empty() && let Err(error) = self.0.store.name_projects(&wanted).await {
                        tracing::debug!(%error, "the projects of agents are not named");
                    }
                    unread.extend(wanted);
                }
                () = sleep(PAUSE), if !unread.is_empty() => {}
            }
            for project in std::mem::take(&mut unread) {
                match self.0.store.latest_events(&project).await {
                    // Fails if no feed is open.
                    Ok(events) => drop(self.0.live.send(events.into())),
                    Err(error) => {
                        tracing::debug!(project, %error, "the events of a project are not known yet");
                        unread.insert(project);
                    }
                }
            }
        }
    }

    fn is_wanted(&self, project: &str) -> bool {
        self.0.wanted.lock().contains_key(project)
    }

    fn wanted(&self) -> Vec<String> {
        self.0.wanted.lock().keys().cloned().collect()
    }
}

impl TunnelFeature for NotifyService {
    fn is_needed(&self, configuration: &ConfigurationState) -> bool {
        !EventSections::new(configuration).is_empty()
    }

    fn attach(&self, opening: &OpeningTunnel<'_>) -> Option<Box<dyn Attachment>> {
        if !opening.hello.serves(ServiceName::NOTIFY) {
            return None;
        }
        Some(Box::new(NotifyFeed {
            service: self.clone(),
            token: opening.token.clone(),
            configuration: opening.configuration.clone(),
            subscription: AgentSubscription::new(&SUBSCRIPTION, opening),
        }))
    }
}

impl<'a> WantedGuard<'a> {
    fn new(service: &'a NotifyService, projects: BTreeSet<String>) -> Self {
        let mut wanted = service.0.wanted.lock();
        for project in &projects {
            *wanted.entry(project.clone()).or_default() += 1;
        }
        drop(wanted);
        Self { service, projects }
    }
}

impl Drop for WantedGuard<'_> {
    fn drop(&mut self) {
        let mut wanted = self.service.0.wanted.lock();
        for project in &self.projects {
            if let Some(count) = wanted.get_mut(project) {
                *count -= 1;
                if *count == 0 {
                    wanted.remove(project);
                }
            }
        }
    }
}

/// Returns the id of the event that a reference has a commit, which is the same whoever reports it.
pub(crate) fn commit_event_id(project: &str, reference: &str, commit: &str) -> String {
    let mut hash = Sha256::new();
    for part in [project, reference, commit] {
        hash.update(part);
        hash.update([0]);
    }
    hash.finalize()[..16].iter().map(|byte| format!("{byte:02x}")).collect()
}

impl EventOrigin {
    const ALL: [Self; 3] = [Self::GitLab, Self::Api, Self::Poll];

    fn as_str(self) -> &'static str {
        match self {
            Self::GitLab => "gitlab",
            Self::Api => "api",
            Self::Poll => "poll",
        }
    }
}
