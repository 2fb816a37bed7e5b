//! Jobs: objects that the cluster removes by itself when they have finished.
//!
//! A job that was applied and is gone is no drift: a migration must not run again. It is created again when its manifest changes.

use kube_cluster::{Cluster, Fence};
use proto::gitops::{ObjectError, ObjectId};
use serde_json::Value;
use sha2::{Digest as _, Sha256};

use super::{
    Engine, SyncContext, SyncError, examine::hash, ignored::with_live_values, inventory::StoredInventory,
    members::Members,
};
use crate::{Manifest, hook, order::SyncStage};

/// The fields with which an object says that it is removed some time after its end: of Jobs and of the jobs of KubeRay and Volcano, of
/// those of Kubeflow, and of Workflows of Argo.
const LIFETIMES: [&str; 3] =
    ["/spec/ttlSecondsAfterFinished", "/spec/runPolicy/ttlSecondsAfterFinished", "/spec/ttlStrategy"];
/// Kinds whose objects the control plane always removes: after an hour, for example.
const SHORT_LIVED: [(&str, &str); 3] =
    [("certificates.k8s.io", "CertificateSigningRequest"), ("", "Event"), ("events.k8s.io", "Event")];

/// Returns whether the cluster removes an object by itself when it has finished, or agentk does: hooks.
pub(super) fn is_job(manifest: &Manifest) -> bool {
    let has = |pointer: &&str| manifest.object.pointer(pointer).is_some_and(|value| !value.is_null());
    SHORT_LIVED.contains(&(&*manifest.id.group, &*manifest.id.kind))
        || LIFETIMES.iter().any(has)
        || hook::is_once(manifest)
}

impl Members {
    /// Returns whether a manifest is that of a job that was applied, and that is gone.
    pub(super) fn has_finished(&self, manifest: &Manifest, sync: &SyncContext<'_>) -> bool {
        is_job(manifest)
            && !self.by_id.contains_key(&manifest.id)
            && !self.is_unknown(&manifest.group_kind())
            && self
                .jobs
                .get(&manifest.id.to_string())
                .is_some_and(|applied| *applied == digest(manifest, sync))
    }
}

impl<C: Cluster> Engine<C> {
    /// Writes which jobs of a stage were applied, also if other objects of it have failed.
    pub(super) async fn record_jobs(
        &mut self,
        stage: &SyncStage,
        manifests: &[Manifest],
        stored: &mut StoredInventory,
        sync: &SyncContext<'_>,
    ) -> Result<(), SyncError> {
        let is_applied = |manifest: &&Manifest| {
            let known = self.known.get(&manifest.id);
            known.is_some_and(|known| known.desired == hash(&manifest.object))
        };
        let jobs = stage.objects.iter().map(|index| &manifests[*index]).filter(|manifest| is_job(manifest));
        let applied = jobs.filter(is_applied).map(|job| (job.id.to_string(), digest(job, sync)));
        let is_new = applied.fold(false, |is_new, (id, digest)| {
            let before = stored.inventory.jobs.insert(id, digest.clone());
            is_new | (before != Some(digest))
        });
        if is_new { self.store(stored, sync.fence).await } else { Ok(()) }
    }

    /// Lets failed hooks run again as soon as somebody has deleted them.
    pub(super) async fn record_failed_hooks(
        &mut self,
        failed: &[ObjectError],
        stored: &mut StoredInventory,
        fence: &dyn Fence,
    ) -> Result<(), SyncError> {
        if stored.forget_jobs(failed.iter().filter_map(|error| error.object.as_ref())) {
            self.store(stored, fence).await
        } else {
            Ok(())
        }
    }
}

impl StoredInventory {
    /// Forgets jobs, so that they run again when they are gone. Returns whether they were known.
    fn forget_jobs<'a>(&mut self, jobs: impl Iterator<Item = &'a ObjectId>) -> bool {
        jobs.fold(false, |known, job| self.inventory.jobs.remove(&job.to_string()).is_some() | known)
    }
}

/// Returns a digest of a manifest that is the same in each process. Fields that are left to others do not count.
pub(super) fn digest(manifest: &Manifest, sync: &SyncContext<'_>) -> String {
    let object = with_live_values(&manifest.object, &Value::Null, &sync.ignored_fields(manifest));
    Sha256::digest(object.to_string()).iter().take(8).map(|byte| format!("{byte:02x}")).collect()
}
