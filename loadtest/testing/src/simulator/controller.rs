//! The controller of deployments: creates, starts and deletes pods, and writes the status.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use serde_json::{Value, json};
use tokio::time::Instant;

use crate::simulator::{
    admission, clock,
    cluster::Cluster,
    pods::{self, TEMPLATE_HASH},
    resources::{DEPLOYMENTS, PODS},
    response::StatusError,
    selector::{fields, items, number, text},
    store::{Key, WriteMode},
};

/// Controls the pods of a cluster. Each change reconciles all deployments, which a small cluster can
/// afford, so the only state is the start times of pending pods.
#[derive(Debug)]
pub(crate) struct Controller {
    cluster: Arc<Cluster>,
    /// The time since when a pod has been pending, by uid.
    pending: HashMap<String, Instant>,
}

type Pod = (Key, Arc<Value>);

impl Controller {
    pub(crate) fn new(cluster: Arc<Cluster>) -> Self {
        Self { cluster, pending: HashMap::new() }
    }

    /// Reconciles until all pods run, without waiting for their start times.
    pub(crate) fn reconcile_all(&mut self) {
        let mut before = None;
        loop {
            self.reconcile(Duration::ZERO);
            let revision = Some(self.cluster.store.list(&PODS, None).revision);
            if before == revision {
                return;
            }
            before = revision;
        }
    }

    /// Reconciles after each change until the cluster stops.
    pub(crate) async fn run(mut self) {
        let cluster = Arc::clone(&self.cluster);
        let mut latest = cluster.store.subscribe();
        loop {
            latest.mark_unchanged();
            let next_start = self.reconcile(START_DELAY);
            let next_start = async {
                match next_start {
                    Some(at) => tokio::time::sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = cluster.stop.cancelled() => return,
                _ = latest.changed() => {}
                () = next_start => {}
            }
            // Reconcile once for a burst of changes.
            tokio::select! {
                () = cluster.stop.cancelled() => return,
                () = tokio::time::sleep(BURST) => {}
            }
        }
    }

    /// Reconciles once. Returns when the next pending pod may start.
    fn reconcile(&mut self, start_delay: Duration) -> Option<Instant> {
        let next_start = self.start_pods(start_delay);
        let deployments = self.cluster.store.list(&DEPLOYMENTS, None).objects;
        let mut owned = self.owned_pods();
        for (_, deployment) in &deployments {
            let pods = owned.remove(text(deployment, "/metadata/uid")).unwrap_or_default();
            self.scale(deployment, pods);
        }
        // Delete pods whose deployment is deleted.
        owned.into_values().flatten().for_each(|(key, pod)| self.delete(&key, &pod));
        let mut owned = self.owned_pods();
        for (key, deployment) in &deployments {
            let pods = owned.remove(text(deployment, "/metadata/uid")).unwrap_or_default();
            self.report(key, text(deployment, "/metadata/uid"), &pods);
        }
        next_start
    }

    fn start_pods(&mut self, start_delay: Duration) -> Option<Instant> {
        let now = Instant::now();
        let mut still_pending = HashSet::new();
        let mut next_start = None::<Instant>;
        for (key, pod) in self.cluster.store.list(&PODS, None).objects {
            if pods::is_running(&pod) {
                continue;
            }
            let uid = text(&pod, "/metadata/uid");
            let start =
                *self.pending.entry(uid.to_owned()).or_insert(now) + start_delay + pods::initial_delay(&pod);
            if start <= now {
                let serial = self.cluster.store.serial();
                self.edit(&key, uid, |pod| pods::start(pod, serial));
            } else {
                still_pending.insert(uid.to_owned());
                next_start = Some(next_start.map_or(start, |next| next.min(start)));
            }
        }
        self.pending.retain(|uid, _| still_pending.contains(uid));
        next_start
    }

    fn owned_pods(&self) -> HashMap<String, Vec<Pod>> {
        let mut owned = HashMap::<String, Vec<Pod>>::new();
        for (key, pod) in self.cluster.store.list(&PODS, None).objects {
            if let Some(owner) = pods::owner(&pod) {
                owned.entry(owner.to_owned()).or_default().push((key, pod));
            }
        }
        owned
    }

    /// Creates or deletes pods of one deployment. Pods of an earlier template are deleted when the new ones run.
    fn scale(&self, deployment: &Value, pods: Vec<Pod>) {
        let wanted = wanted(deployment);
        let hash = pods::template_hash(deployment);
        let (mut current, earlier): (Vec<_>, Vec<_>) =
            pods.into_iter().partition(|(_, pod)| pod["metadata"]["labels"][TEMPLATE_HASH] == hash);
        for _ in current.len()..wanted {
            if let Err(failure) = self.create(deployment, &hash) {
                tracing::warn!(%failure, "cannot create a pod");
            }
        }
        // Delete pods that do not run yet first.
        current.sort_by_key(|(_, pod)| !pods::is_ready(pod));
        current.iter().skip(wanted).for_each(|(key, pod)| self.delete(key, pod));
        let ready = current.iter().filter(|(_, pod)| pods::is_ready(pod)).count();
        if ready >= wanted {
            earlier.iter().for_each(|(key, pod)| self.delete(key, pod));
        }
    }

    fn create(&self, deployment: &Value, hash: &str) -> Result<(), StatusError> {
        let store = &self.cluster.store;
        let pod = pods::from_template(deployment, hash, store.serial());
        let (key, pod) = admission::create(store, &PODS, deployment["metadata"]["namespace"].as_str(), pod)?;
        store.put(&key, WriteMode::Commit, |present| match present {
            None => Ok(pod),
            Some(_) => Err(StatusError::already_exists(&PODS, &key.name)),
        })?;
        Ok(())
    }

    fn report(&self, key: &Key, uid: &str, pods: &[Pod]) {
        self.edit(key, uid, |deployment| {
            let status = status(deployment, pods.iter().map(|(_, pod)| pod.as_ref()));
            fields(deployment).insert("status".to_owned(), status);
        });
    }

    fn edit(&self, key: &Key, uid: &str, edit: impl FnOnce(&mut Value)) {
        let edited = self.cluster.store.put(key, WriteMode::Commit, |present| {
            let mut object =
                present.filter(|object| object["metadata"]["uid"] == uid).ok_or(ConflictError)?.clone();
            edit(&mut object);
            Ok(object)
        });
        // The pod may have been deleted meanwhile.
        if let Err(ConflictError) = edited {
            tracing::debug!(?key, "gone");
        }
    }

    fn delete(&self, key: &Key, pod: &Value) {
        let same = |present: &Value| {
            if present["metadata"]["uid"] == pod["metadata"]["uid"] { Ok(()) } else { Err(ConflictError) }
        };
        if !matches!(self.cluster.store.remove(key, WriteMode::Commit, same), Ok(Some(_))) {
            tracing::debug!(?key, "gone");
        }
    }
}

/// The time that a pod is pending, so that callers can observe it.
const START_DELAY: Duration = Duration::from_millis(300);

const BURST: Duration = Duration::from_millis(10);

/// The object was changed or deleted meanwhile.
#[derive(Debug)]
struct ConflictError;

/// Returns the number of replicas in the specification.
fn wanted(deployment: &Value) -> usize {
    let replicas = number(deployment, "/spec/replicas").unwrap_or_default();
    usize::try_from(replicas).unwrap_or_default()
}

/// Returns the status of a deployment, computed from its pods. It equals the existing one, including times, if nothing changed.
fn status<'pods>(deployment: &Value, pods: impl Iterator<Item = &'pods Value>) -> Value {
    let wanted = wanted(deployment);
    let hash = pods::template_hash(deployment);
    let (mut all, mut updated, mut ready) = (0, 0, 0);
    for pod in pods {
        all += 1;
        updated += usize::from(pod["metadata"]["labels"][TEMPLATE_HASH] == hash);
        ready += usize::from(pods::is_ready(pod));
    }
    let complete = (all, updated, ready) == (wanted, wanted, wanted);
    let available = if ready >= wanted {
        ["Available", "True", "MinimumReplicasAvailable", "Deployment has minimum availability."]
    } else {
        ["Available", "False", "MinimumReplicasUnavailable", "Deployment does not have minimum availability."]
    };
    let progressing = if complete {
        ["Progressing", "True", "NewReplicaSetAvailable", "All simulated pods are running."]
    } else {
        ["Progressing", "True", "ReplicaSetUpdated", "Simulated pods are starting or stopping."]
    };
    let mut status = json!({
        "observedGeneration": deployment["metadata"]["generation"],
        "replicas": all,
        "updatedReplicas": updated,
        "readyReplicas": ready,
        "availableReplicas": ready,
        "conditions": [condition(deployment, available), condition(deployment, progressing)],
    });
    if wanted > ready {
        status["unavailableReplicas"] = (wanted - ready).into();
    }
    status
}

fn condition(deployment: &Value, [kind, status, reason, message]: [&str; 4]) -> Value {
    let present = items(deployment, "/status/conditions").iter().find(|present| present["type"] == kind);
    let kept = |same: &str, time: &str, value: &str| {
        let present = present.filter(|present| present[same] == value);
        present.map(|present| text(present, time).to_owned()).unwrap_or_else(clock::timestamp)
    };
    json!({
        "type": kind,
        "status": status,
        "reason": reason,
        "message": message,
        "lastUpdateTime": kept("reason", "/lastUpdateTime", reason),
        "lastTransitionTime": kept("status", "/lastTransitionTime", status),
    })
}
