//! Events into the cluster: kas sends what happened to Git projects, and the pod that leads acts in the cluster.
//!
//! ```text
//!   kas ─► notify (kas only): subscription, events ─► plan: the targets of the event
//!                                                       │ one lane for each target, project and reference
//!                                                       ▼
//!                         records: was it done before? ─► webhook, Repository, Flux, Argo CD ─► records
//!                                                       ▲
//!                                           Lease: one pod leads
//! ```
//!
//! The requests to the API of the cluster pass the scope and the policy of the cluster's owner, as the service `notify`. Webhooks go to the
//! URLs that the policy lists. The records are agentk's own, in its namespace.
#![warn(missing_docs)]

mod argocd;
mod check;
mod definition;
mod flux;
mod handler;
mod lane;
mod metrics;
mod objects;
mod plan;
mod record;
mod repository;
mod sources;
#[cfg(test)]
mod tests;
mod webhook;

use std::{
    collections::{BTreeMap, BTreeSet},
    mem,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use agentk_core::{
    leader::{Candidacy, Leader, LeaseDefinition},
    policy::PolicyEnforcer,
};
use kube_cluster::KubeCluster;
use parking_lot::Mutex;
use proto::{
    agent_configuration::notify::{Flux, Notify as NotifySection},
    notify::{MAX_PROJECTS, ProjectEvent},
};
use tokio::{
    sync::{Semaphore, mpsc, watch},
    task::JoinSet,
};

pub use self::definition::DEFINITION;
pub(crate) use self::{handler::NotifyHandler, metrics::NotifyMetrics};
use self::{
    lane::{Lane, LaneKey},
    plan::{Target, targets},
    record::Records,
    webhook::WebhookClient,
};

/// The Lease of the pod that acts on events.
pub(crate) const LEASE: LeaseDefinition =
    LeaseDefinition { suffix: "-notify", feature: "project events", candidacy: Candidacy::WithWork };

/// The most webhooks, and the most effects on objects, at the same time. Others wait.
const MAX_EFFECTS: usize = 32;

/// The state that the handler and the lanes share.
pub(crate) struct Notify {
    leader: Arc<Leader>,
    /// The cluster as the scope and the policy allow it.
    cluster: KubeCluster,
    policy: Option<Arc<PolicyEnforcer>>,
    /// The sections as kas has sent them, of which the policy may refuse parts.
    configured: Mutex<EventSections>,
    sections: watch::Sender<EventSections>,
    /// The number of the subscription's lines, see [`proto::notify::Subscription`].
    generation: watch::Sender<u64>,
    /// The projects of the sources of Flux.
    flux_projects: watch::Sender<BTreeSet<String>>,
    lanes: Mutex<BTreeMap<LaneKey, Lane>>,
    /// The number of the next lane.
    lane_number: AtomicU64,
    /// Starts the task of a new lane.
    new_lanes: mpsc::UnboundedSender<(LaneKey, u64)>,
    records: Records,
    webhooks: WebhookClient,
    /// Limits the webhooks at the same time: receivers that do not respond must not delay the other effects.
    webhook_effects: Semaphore,
    /// Limits the effects on objects at the same time.
    object_effects: Semaphore,
    metrics: NotifyMetrics,
}

/// The sections of the configuration about events.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct EventSections {
    /// The projects, without the webhooks that the policy refuses.
    pub(crate) notify: NotifySection,
    pub(crate) flux: Option<Flux>,
}

/// The tasks of events.
pub(crate) struct NotifyTasks {
    notify: Arc<Notify>,
    new_lanes: mpsc::UnboundedReceiver<(LaneKey, u64)>,
}

impl Notify {
    /// Returns the shared state and its tasks.
    pub(crate) fn new(
        cluster: KubeCluster,
        leader: Arc<Leader>,
        policy: Option<Arc<PolicyEnforcer>>,
        metrics: NotifyMetrics,
    ) -> (Arc<Self>, NotifyTasks) {
        let (sender, new_lanes) = mpsc::unbounded_channel();
        let notify = Arc::new(Self {
            leader,
            cluster,
            policy,
            configured: Mutex::default(),
            sections: watch::Sender::default(),
            generation: watch::Sender::default(),
            flux_projects: watch::Sender::default(),
            lanes: Mutex::default(),
            lane_number: AtomicU64::new(0),
            new_lanes: sender,
            records: Records::default(),
            webhooks: WebhookClient::default(),
            webhook_effects: Semaphore::new(MAX_EFFECTS),
            object_effects: Semaphore::new(MAX_EFFECTS),
            metrics,
        });
        (Arc::clone(&notify), NotifyTasks { notify, new_lanes })
    }

    /// Uses new sections of the configuration. Returns a sentence for each key that the policy refuses, with its place in the file.
    pub(crate) fn set_sections(
        &self,
        sections: EventSections,
        places: &BTreeMap<String, String>,
    ) -> Vec<String> {
        *self.configured.lock() = sections;
        let sentence = |(key, what): (String, String)| match places.get(&key) {
            Some(place) => format!("{place}: {key}: {what}"),
            None => format!("{key}: {what}"),
        };
        self.apply_policy().into_iter().map(sentence).collect()
    }

    /// Uses the sections as far as the policy in force allows them. Returns the keys that it refuses, each with the reason.
    fn apply_policy(&self) -> Vec<(String, String)> {
        let mut sections = self.configured.lock().clone();
        let refused = plan::remove_refused(&mut sections, |url, signed| {
            let allowed = self.policy.as_ref().and_then(|policy| policy.allowed_webhook(url));
            match allowed {
                Some(webhook) if signed && webhook.secret_file().is_none() => {
                    Err("the policy of the cluster's owner has no secretFile for this URL".to_owned())
                }
                Some(_) => Ok(()),
                None => Err(format!("the policy of the cluster's owner does not list {url} (webhooks)")),
            }
        });
        let differs = self.sections.send_if_modified(|current| {
            let differs = *current != sections;
            *current = sections;
            differs
        });
        if differs {
            // An event may have targets that it did not have before.
            self.generation.send_modify(|generation| *generation += 1);
        }
        refused
    }

    /// Returns the projects whose events this pod wants: none, unless it leads.
    fn wanted(&self) -> Vec<String> {
        if !self.leader.is_leading() {
            return Vec::new();
        }
        let sections = self.sections.borrow();
        let named: BTreeSet<&String> = sections.notify.projects.iter().map(|project| &project.id).collect();
        let flux = self.flux_projects.borrow();
        // People who may create sources of Flux must not crowd out the projects of the configuration.
        let wanted = named.iter().copied().chain(flux.iter().filter(|project| !named.contains(project)));
        wanted.take(MAX_PROJECTS).cloned().collect()
    }

    /// Adds an event to the lanes of its targets. The latest event of each reference replaces the one before.
    fn accept(&self, event: &ProjectEvent) {
        let targets = targets(&self.sections.borrow(), &self.flux_projects.borrow(), event);
        let mut lanes = self.lanes.lock();
        for target in targets {
            let key = LaneKey::new(target, event);
            if let Some(lane) = lanes.get_mut(&key) {
                lane.offer(event);
            } else {
                let number = self.lane_number.fetch_add(1, Relaxed);
                lanes.insert(key.clone(), Lane::new(number, event));
                // Fails only while agentk stops.
                let _ = self.new_lanes.send((key, number));
            }
        }
    }

    /// Returns whether an event has a target, as the configuration is now.
    fn has_target(&self, target: &Target, event: &ProjectEvent) -> bool {
        targets(&self.sections.borrow(), &self.flux_projects.borrow(), event).contains(target)
    }

    /// Has events that were refused sent again when another version of the policy comes into force, and when the labels of namespaces become
    /// known: either may allow a write that was refused. Never completes.
    async fn follow_policy(&self, policy: &PolicyEnforcer) {
        let (mut versions, mut announcements) = (policy.changes(), policy.labels().announcements());
        let mut labels_known = policy.label_problem().is_none();
        loop {
            let is_new_version = tokio::select! {
                // The senders live as long as the policy.
                _ = versions.changed() => true,
                _ = announcements.changed() => false,
            };
            let were_known = mem::replace(&mut labels_known, policy.label_problem().is_none());
            if is_new_version {
                for (key, what) in self.apply_policy() {
                    tracing::warn!(key, what, "the new policy refuses a key of the configuration");
                }
            }
            if is_new_version || (labels_known && !were_known) {
                self.records.forget_refused();
                self.generation.send_modify(|generation| *generation += 1);
            }
        }
    }

    /// Returns the number of effects that are not done yet.
    fn pending(&self) -> usize {
        self.lanes.lock().len()
    }
}

impl NotifyTasks {
    /// Runs the lanes until the Lease is given back.
    pub(crate) async fn run(mut self) {
        let notify = &self.notify;
        let working = notify.leader.begin_work();
        let lanes = async {
            let mut lanes = JoinSet::new();
            let mut leadership = notify.leader.subscribe();
            loop {
                tokio::select! {
                    Some((key, number)) = self.new_lanes.recv() => {
                        lanes.spawn(lane::run(Arc::clone(notify), key, number));
                    }
                    () = notify.leader.stopping() => break,
                    _ = leadership.changed() => {
                        if !leadership.borrow_and_update().is_held() {
                            // The next leader receives the latest events from kas.
                            lanes.shutdown().await;
                            notify.lanes.lock().clear();
                            notify.records.forget();
                            notify.generation.send_modify(|generation| *generation += 1);
                        }
                    }
                    Some(ended) = lanes.join_next() => {
                        if let Err(error) = ended && error.is_panic() {
                            tracing::error!(%error, "the work on an event has panicked; this is a defect");
                        }
                    }
                }
            }
            lanes.shutdown().await;
            drop(working);
        };
        let follow_policy = async {
            match &notify.policy {
                Some(policy) => notify.follow_policy(policy).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            _ = async { tokio::join!(lanes, flux::follow_sources(notify)) } => {}
            () = follow_policy => {}
        }
    }
}

impl std::fmt::Debug for Notify {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Notify").field("leader", &self.leader).finish_non_exhaustive()
    }
}
