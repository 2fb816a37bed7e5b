//! The runs of hooks: a hook that runs is deleted and created again for each version of the manifests, and some are deleted at their end.

use kube_cluster::{Cluster, Kind};
use proto::{agent_configuration::gitops::PropagationPolicy, gitops::SyncEventKind};

use super::{
    Engine, SyncContext, SyncError, SyncState,
    awaited::Condition,
    examine::{Seen, Step},
    report::Report,
    stage::AppliedObject,
};
use crate::{
    Manifest,
    deletion_plan::Member,
    hook::RUN,
    order::SyncStage,
    retry::{ApiCallError, with_retry},
};

impl<C: Cluster> Engine<C> {
    /// Returns the next step for a hook that has run, or runs, for another version of the manifests.
    pub(super) async fn next_run(
        &self,
        manifest: &Manifest,
        kind: &Kind,
        sync: &SyncContext<'_>,
    ) -> Result<Option<Step>, ApiCallError> {
        let id = &manifest.id;
        let live = with_retry(sync.fence, || self.cluster.get(kind, id)).await?;
        let Some(live) = live else { return Ok(None) };
        let run = &live["metadata"]["annotations"][RUN];
        // Without one, an older agentk has applied it, or it was no hook: it has run.
        if run.is_null() || *run == manifest.object["metadata"]["annotations"][RUN] {
            return Ok(None);
        }
        let uid = Seen::of(&live).uid;
        if let Some(finalizers) = Member::new(id.clone(), String::new(), &live["metadata"]).deleting {
            return Ok(Some(Step::Terminating { uid, finalizers }));
        }
        // A migration must not be cut off by the next commit.
        if let Some(reason) = Condition::Ended.unmet_reason(Some(self.assess(kind, &live))) {
            return Ok(Some(Step::Running { uid, reason }));
        }
        // An object that the API server would not create must not be deleted.
        with_retry(sync.fence, || self.cluster.try_create(kind, id, &manifest.object)).await?;
        Ok(Some(Step::Recreate { uid }))
    }

    /// Deletes hooks whose phase has ended with this stage, and that have succeeded.
    pub(super) async fn delete_hooks(
        &mut self,
        stage: &SyncStage,
        manifests: &[Manifest],
        state: &mut SyncState,
        sync: &SyncContext<'_>,
        report: &mut Report<'_>,
    ) -> Result<(), SyncError> {
        for id in stage.deleted.iter().map(|index| &manifests[*index].id) {
            // Without an entry, it was deleted before.
            let Some(position) = state.applied.iter().position(|applied| applied.id == *id) else {
                continue;
            };
            let AppliedObject { kind, uid, .. } = &state.applied[position];
            let failed = |error| SyncError::of_project(&format!("the hook {id} cannot be deleted"), error);
            let live = with_retry(sync.fence, || self.cluster.get(kind, id)).await.map_err(failed)?;
            // With `reconcile_timeout: 0s`, it may still run.
            if Condition::Finished.unmet_reason(live.map(|live| self.assess(kind, &live))).is_some() {
                continue;
            }
            let policy = PropagationPolicy::Background;
            with_retry(sync.fence, || self.cluster.delete(kind, id, uid, None, policy))
                .await
                .map_err(failed)?;
            let AppliedObject { id, uid, .. } = state.applied.remove(position);
            self.known.remove(&id);
            report.object(SyncEventKind::Unchanged, &id, "the hook has succeeded, and is deleted");
            state.gone.insert(uid);
        }
        Ok(())
    }
}
