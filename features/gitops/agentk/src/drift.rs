//! Notices changes of objects by others, and commands that another pod has received.
//!
//! There is one watch of metadata for each kind that a project has, shared by all projects, and one for the inventories, whose
//! annotations are the commands.

use std::{collections::BTreeSet, time::Duration};

use futures_util::{FutureExt as _, StreamExt as _, stream::FuturesUnordered};
use gitops_engine::{applyset::PROJECT, inventory::COMPONENT, watch_members};
use kube::core::ObjectMeta;
use kube_cluster::{GroupKind, Kind};
use proto::AgentId;
use tokio::time::sleep;

use super::{
    Gitops,
    stored::{APPROVED, PRUNE, RECOVER, REQUESTED, SUSPENDED, inventory},
};

/// The label of inventories.
const MANAGED: &str = "app.kubernetes.io/managed-by=agentk";
/// The pause before the next watch of a kind. Drift that happens meanwhile is found by the periodic look.
const PAUSE: Duration = Duration::from_secs(1);
/// The pause after a watch that failed, for example because agentk may not watch the kind in all namespaces.
const FAILED_PAUSE: Duration = Duration::from_secs(60);

/// Watches all kinds while this pod leads. The future never completes.
pub(super) async fn run(gitops: &Gitops) {
    let (mut kinds, mut leadership) = (gitops.kinds.subscribe(), gitops.leader.subscribe());
    loop {
        let leading = leadership.borrow_and_update().is_held();
        let work = async {
            let mut watched = BTreeSet::<GroupKind>::new();
            let mut watches = FuturesUnordered::new();
            watches.push(watch_commands(gitops).boxed());
            loop {
                for (name, kind) in &*kinds.borrow_and_update() {
                    if watched.insert(name.clone()) {
                        watches.push(watch(gitops, kind.clone()).boxed());
                    }
                }
                tokio::select! {
                    _ = kinds.changed() => {}
                    Some(()) = watches.next(), if !watches.is_empty() => {}
                }
            }
        };
        let lost = async {
            while leadership.changed().await.is_ok() && leadership.borrow_and_update().is_held() == leading {}
        };
        tokio::select! {
            () = work, if leading => {}
            () = lost => {}
        }
    }
}

/// Wakes the worker of each project whose commands have changed. The future never completes.
async fn watch_commands(gitops: &Gitops) {
    let (kind, _) = inventory(gitops, AgentId(0), "");
    loop {
        let report = |metadata: &ObjectMeta, exists: bool| {
            let annotation = |key: &str| metadata.annotations.as_ref()?.get(key).cloned();
            let Some(project) = annotation(PROJECT).and_then(|id| gitops.find_project(&id)) else { return };
            if !exists {
                // The worker finds that the inventory was lost.
                project.request();
                return;
            }
            let label = |key: &str| metadata.labels.as_ref()?.get(key);
            if label("app.kubernetes.io/component").is_some_and(|name| name == COMPONENT) {
                // The record of the members has no commands.
                return;
            }
            if project.note_commands([SUSPENDED, APPROVED, RECOVER, REQUESTED, PRUNE].map(annotation)) {
                gitops.sources.lock().want(&project.id);
            }
        };
        match gitops
            .leader
            .own_cluster()
            .watch_metadata(&kind, gitops.leader.namespace(), MANAGED, report)
            .await
        {
            Ok(()) => sleep(PAUSE).await,
            Err(error) => {
                tracing::debug!(%error, "inventories are not watched for commands; they are read periodically");
                sleep(FAILED_PAUSE).await;
            }
        }
    }
}

/// Watches one kind. The future never completes.
async fn watch(gitops: &Gitops, kind: Kind) {
    loop {
        let report = |change: gitops_engine::Change| {
            if let Some(project) = gitops.project_of_set(&change.set) {
                project.note_change(change.id, change.fingerprint);
            }
        };
        match watch_members(&gitops.cluster, &kind, report).await {
            Ok(()) => sleep(PAUSE).await,
            Err(error) => {
                tracing::debug!(kind = %kind.kind, %error, "objects are not watched for changes; they are looked at periodically");
                sleep(FAILED_PAUSE).await;
            }
        }
    }
}
