//! One stage: a dry run of all objects, then the writes, then the wait.

use std::{borrow::Cow, collections::HashMap};

use futures_util::{StreamExt as _, stream::FuturesOrdered};
use kube_cluster::{Cluster, GroupKind, Kind, Stopped};
use object_health::Assessment;
use proto::{
    agent_configuration::gitops::{DryRunStrategy, PropagationPolicy},
    gitops::{ObjectError, ObjectId, SyncEventKind},
};
use serde_json::Value;

use super::{
    CONCURRENCY, Engine, SyncContext, SyncError,
    awaited::{Awaited, Condition},
    examine::{Change, ExamineError, Known, Seen, Step, hash},
    jobs::is_job,
    members::Members,
    report::Report,
};
use crate::{
    Manifest,
    deletion_plan::Member,
    hook,
    order::SyncStage,
    retry::{ApiCallError, with_retry},
    validate::DEFINITIONS,
};

/// The attempts to write an object that others change at the same time.
const ATTEMPTS: u32 = 5;

/// An object that was applied or was as in Git.
#[derive(Clone, Debug)]
pub(super) struct AppliedObject {
    pub(super) id: ObjectId,
    pub(super) kind: Kind,
    pub(super) uid: String,
}

/// The end of the write of an object.
enum Written {
    Applied(Seen),
    /// A job has finished, and is gone.
    Finished,
    /// A hook runs for an earlier version, in these words.
    Running(String),
    /// It is not changed back yet.
    Contested(Option<Seen>),
    /// It is created again once the old one is gone.
    Terminating {
        uid: String,
        finalizers: String,
    },
}

/// The state of an object that the next stage needs.
enum NeededObject {
    /// It meets its condition.
    Met,
    Awaited(Awaited),
    /// It is a hook that has failed.
    FailedHook(ObjectError),
}

/// Objects that the next stage needs, and that are not there.
#[derive(Default)]
pub(super) struct Unmet {
    pub(super) awaited: Vec<Awaited>,
    pub(super) failed_hooks: Vec<ObjectError>,
}

impl<C: Cluster> Engine<C> {
    /// Assesses an object, by the rule of the user if its kind has one.
    pub(super) fn assess(&self, kind: &Kind, object: &Value) -> Assessment {
        self.health_rules.assess(&kind.kind.group, &kind.kind.kind, &kind.plural, kind.has_status, object)
    }

    /// Returns whether an object, if it exists, meets a condition.
    pub(super) fn is_met(&self, awaited: &Awaited, object: Option<&Value>) -> bool {
        match &awaited.condition {
            Condition::Gone(uid) => object.is_none_or(|object| object["metadata"]["uid"] != **uid),
            condition => {
                let found = object.map(|object| self.assess(&awaited.kind, object));
                condition.unmet_reason(found).is_none()
            }
        }
    }

    /// Returns the part of a stage whose manifests this engine has applied before. It does not wait for the stages before it.
    pub(super) fn applied_part(&self, stage: &SyncStage, manifests: &[Manifest]) -> SyncStage {
        let is_applied = |index: &usize| {
            let manifest = &manifests[*index];
            self.known.get(&manifest.id).is_some_and(|known| known.desired == hash(&manifest.object))
        };
        let objects = stage.objects.iter().copied().filter(is_applied).collect();
        SyncStage { objects, ..SyncStage::default() }
    }

    /// Applies the objects of a stage. Returns those that are now as in Git, and those that have to be gone before they are created again.
    pub(super) async fn apply_stage(
        &mut self,
        stage: &SyncStage,
        manifests: &[Manifest],
        members: &Members,
        sync: &SyncContext<'_>,
        report: &mut Report<'_>,
    ) -> Result<(Vec<AppliedObject>, Vec<Awaited>), SyncError> {
        let kinds = self.kinds(stage, manifests, sync).await?;
        let of = |index: usize| (&manifests[index], &kinds[&key(&manifests[index])]);
        let first = report.first_error();
        let this = &*self;
        let examining = stage.objects.iter().copied().map(|index| {
            let (manifest, kind) = of(index);
            let first = &first;
            async move {
                let examined = this.examine(manifest, kind, members, sync).await;
                if let Err(ExamineError::Object(error)) = &examined {
                    first.show(error);
                }
                examined
            }
        });
        let examined = run_all(examining).await;
        let mut steps = Vec::with_capacity(examined.len());
        let mut refused = Vec::new();
        for (index, step) in stage.objects.iter().zip(examined) {
            match step {
                Ok(step) => steps.push((*index, step)),
                Err(ExamineError::Object(error)) => refused.push(error),
                Err(ExamineError::Stopped(stopped)) => return Err(stopped.into()),
            }
        }
        if !refused.is_empty() {
            return Err(SyncError::Refused(refused));
        }

        let writes = sync.writes();
        let writing = steps.into_iter().map(|(index, step)| {
            let (manifest, kind) = of(index);
            let first = &first;
            async move {
                let result = match (&step, writes) {
                    (Step::Unchanged(seen) | Step::Drifted(seen, _), _) => Ok(Written::Applied(seen.clone())),
                    (Step::Terminating { uid, finalizers }, _) => {
                        Ok(Written::Terminating { uid: uid.clone(), finalizers: finalizers.clone() })
                    }
                    (Step::Finished, _) => Ok(Written::Finished),
                    (Step::Running { reason, .. }, _) => Ok(Written::Running(reason.clone())),
                    (Step::Contested(seen), _) => Ok(Written::Contested(seen.clone())),
                    (_, false) => Ok(Written::Applied(Seen { uid: String::new(), fingerprint: 0 })),
                    (step, true) => this.write_examined(step, manifest, kind, members, sync).await,
                };
                if let Err(ApiCallError::Api(error)) = &result {
                    first.show(&manifest.error(error.describe(&manifest.id)));
                }
                (manifest, kind, step, result)
            }
        });
        let written = run_all(writing).await;
        let (mut applied, mut terminating) = (Vec::with_capacity(written.len()), Vec::new());
        let mut stopped = None;
        for (manifest, kind, step, result) in written {
            match result {
                Ok(Written::Terminating { uid, finalizers }) => {
                    self.known.remove(&manifest.id);
                    let id = manifest.id.clone();
                    terminating.push(Awaited::until_gone(id, kind.clone(), uid, &finalizers));
                }
                Ok(Written::Running(reason)) => {
                    let reason = format!("the hook runs for an earlier version: {reason}");
                    let (id, kind, condition) = (manifest.id.clone(), kind.clone(), Condition::Ended);
                    terminating.push(Awaited { id, kind, reason, condition, since: None });
                }
                Ok(Written::Contested(seen)) => {
                    report.postponed += 1;
                    applied.extend(seen.map(|seen| AppliedObject {
                        id: manifest.id.clone(),
                        kind: kind.clone(),
                        uid: seen.uid,
                    }));
                }
                Ok(Written::Finished) => {
                    self.known.remove(&manifest.id);
                    report_step(report, &manifest.id, &step, false);
                }
                Ok(Written::Applied(seen)) => {
                    let (id, desired) = (manifest.id.clone(), hash(&manifest.object));
                    let again = self.known.get(&id).is_some_and(|known| known.desired == desired);
                    if let Some(change) = reverted_by(&step, again) {
                        report.reverted(&id, change.what().to_owned());
                        self.note_revert(&id, change, sync.input.now);
                    }
                    report_step(report, &id, &step, again);
                    if !matches!(step, Step::Drifted(..)) {
                        self.known.insert(id.clone(), Known { desired, live: seen.fingerprint });
                    }
                    applied.push(AppliedObject { id, kind: kind.clone(), uid: seen.uid });
                }
                Err(ApiCallError::Api(error)) => report.error(manifest.error(error.describe(&manifest.id))),
                Err(ApiCallError::Stopped(reason)) => stopped = Some(reason),
            }
        }
        match stopped {
            Some(reason) => Err(SyncError::Stopped(reason)),
            None if report.objects.failed > 0 => Err(SyncError::Objects),
            None => Ok((applied, terminating)),
        }
    }

    /// Returns what the next stage needs and is not there yet. `objects` are all objects so far.
    pub(super) async fn unmet(
        &self,
        stage: &SyncStage,
        manifests: &[Manifest],
        objects: &[AppliedObject],
        sync: &SyncContext<'_>,
    ) -> Result<Unmet, SyncError> {
        let kinds: HashMap<&ObjectId, &Kind> =
            objects.iter().map(|object| (&object.id, &object.kind)).collect();
        let is_definition = |index: &&usize| {
            let ObjectId { group, kind, .. } = &manifests[**index].id;
            (&**group, &**kind) == DEFINITIONS
        };
        let definitions = stage.objects.iter().filter(|index| stage.established && is_definition(index));
        let waits = !sync.input.settings.reconcile_timeout.is_zero();
        let healthy = stage.healthy.iter().filter(|_| waits);
        let conditions =
            definitions.map(|index| (index, Condition::Established)).chain(healthy.map(|index| {
                if is_job(&manifests[*index]) {
                    (index, Condition::Finished)
                } else {
                    (index, Condition::Healthy)
                }
            }));
        let wanted: Vec<_> = conditions
            .filter_map(|(index, condition)| {
                let manifest = &manifests[*index];
                Some((manifest, kinds.get_key_value(&manifest.id)?, condition))
            })
            .collect();
        let has_definitions = wanted.iter().any(|(.., condition)| *condition == Condition::Established);
        let reads = wanted.into_iter().map(async |(manifest, (id, kind), condition)| {
            let object = with_retry(sync.fence, || self.cluster.get(kind, id)).await;
            let object =
                object.map_err(|error| SyncError::of_project(&format!("{id} cannot be read"), error))?;
            let (id, kind) = ((*id).clone(), (*kind).clone());
            let found = object.map(|object| self.assess(&kind, &object));
            let Some(reason) = condition.unmet_reason(found.clone()) else { return Ok(NeededObject::Met) };
            let runs = hook::runs(manifest);
            if runs && Condition::Ended.unmet_reason(found).is_none() {
                let error = manifest.error(format!("the hook has failed: {reason}"));
                return Ok(NeededObject::FailedHook(error));
            }
            // The sync goes on when a hook fails, too.
            let condition = if runs { Condition::Ended } else { condition };
            Ok(NeededObject::Awaited(Awaited { id, kind, reason, condition, since: None }))
        });
        let found = run_all(reads).await.into_iter().collect::<Result<Vec<_>, SyncError>>()?;
        if has_definitions {
            self.cluster.forget_kinds();
        }
        let mut unmet = Unmet::default();
        for needed in found {
            match needed {
                NeededObject::Met => {}
                NeededObject::Awaited(awaited) => unmet.awaited.push(awaited),
                NeededObject::FailedHook(error) => unmet.failed_hooks.push(error),
            }
        }
        Ok(unmet)
    }

    /// Returns the kinds of the objects of a stage.
    async fn kinds(
        &self,
        stage: &SyncStage,
        manifests: &[Manifest],
        sync: &SyncContext<'_>,
    ) -> Result<HashMap<(GroupKind, String), Kind>, SyncError> {
        let mut kinds = HashMap::new();
        for manifest in stage.objects.iter().map(|index| &manifests[*index]) {
            let key = key(manifest);
            if kinds.contains_key(&key) {
                continue;
            }
            let Some(kind) = self.resolve(&key.0, Some(&key.1), sync.fence).await?.found() else {
                let what = if sync.input.settings.dry_run_strategy == DryRunStrategy::None {
                    format!("the cluster does not serve the kind {} in version {}", key.0, key.1)
                } else {
                    format!("a dry run cannot check it: its kind {} is in the same commit", key.0)
                };
                return Err(SyncError::Refused(vec![manifest.error(what)]));
            };
            if kind.namespaced == manifest.id.namespace.is_empty() {
                let what =
                    format!("the scope of the kind {} is not the one that its definition in Git says", key.0);
                return Err(SyncError::Refused(vec![manifest.error(what)]));
            }
            kinds.insert(key, kind);
        }
        Ok(kinds)
    }

    /// Writes an object as it was examined. If somebody has changed it since then, it is examined again: what a frozen process had
    /// begun to send must not replace what the next leader has written meanwhile.
    async fn write_examined(
        &self,
        step: &Step,
        manifest: &Manifest,
        kind: &Kind,
        members: &Members,
        sync: &SyncContext<'_>,
    ) -> Result<Written, ApiCallError> {
        let mut step = Cow::Borrowed(step);
        for _ in 1..ATTEMPTS {
            let stale = match self.write(&step, manifest, kind, sync).await {
                Err(ApiCallError::Api(error)) if error.is_stale() => error,
                result => return result,
            };
            let examined = match self.try_apply(manifest, kind, members, sync).await {
                Ok(examined) => examined.step,
                Err(ExamineError::Object(_)) => return Err(stale.into()),
                Err(ExamineError::Stopped(stopped)) => return Err(stopped.into()),
            };
            match (&*step, examined) {
                (_, Step::Unchanged(seen)) => return Ok(Written::Applied(seen)),
                (Step::Update { uid: before, .. }, Step::Update { uid, version, drift })
                    if *before == uid =>
                {
                    step = Cow::Owned(Step::Update { uid, version, drift });
                }
                _ => return Err(stale.into()),
            }
        }
        self.write(&step, manifest, kind, sync).await
    }

    async fn write(
        &self,
        step: &Step,
        manifest: &Manifest,
        kind: &Kind,
        sync: &SyncContext<'_>,
    ) -> Result<Written, ApiCallError> {
        let id = &manifest.id;
        let (mut object, mut options) = (Cow::Borrowed(&manifest.object), sync.options(false));
        if let Step::Update { .. } | Step::Adopt { .. } = step {
            // The version of an update is that of the same values.
            (object, _) = self.desired(manifest, kind, sync).await?;
        }
        match step {
            Step::Adopt { patch: Some(patch), .. } => {
                drop(with_retry(sync.fence, || self.cluster.patch(kind, id, patch)).await?);
            }
            Step::Recreate { uid } => {
                if let Some(finalizers) = self.delete_for_new(kind, id, uid, sync).await? {
                    return Ok(Written::Terminating { uid: uid.clone(), finalizers });
                }
            }
            // The object did not exist when it was examined: fields of somebody who has created it since then stay.
            Step::Create => options.force = false,
            _ => {}
        }
        if let Step::Update { uid, .. } | Step::Adopt { uid, .. } = step {
            // The API server refuses another object of the same name.
            object.to_mut()["metadata"]["uid"] = uid.as_str().into();
        }
        if let Step::Update { version, .. } = step {
            // The API server refuses another version of the object.
            object.to_mut()["metadata"]["resourceVersion"] = version.as_str().into();
        }
        let applied = with_retry(sync.fence, || self.cluster.apply(kind, id, &object, options)).await?;
        Ok(Written::Applied(Seen::of(&applied.object)))
    }

    /// Deletes an object that a new one shall replace. Returns its finalizers if it is not gone at once.
    async fn delete_for_new(
        &self,
        kind: &Kind,
        id: &ObjectId,
        uid: &str,
        sync: &SyncContext<'_>,
    ) -> Result<Option<String>, ApiCallError> {
        let policy = PropagationPolicy::Background;
        if with_retry(sync.fence, || self.cluster.delete(kind, id, uid, None, policy)).await? {
            return Ok(None);
        }
        let live = with_retry(sync.fence, || self.cluster.get(kind, id)).await?;
        let live = live.filter(|live| live["metadata"]["uid"] == uid);
        Ok(live.map(|live| {
            let member = Member::new(id.clone(), String::new(), &live["metadata"]);
            member.deleting.unwrap_or_default()
        }))
    }
}

/// Runs futures, some of them at the same time, and returns their results in their order. Each is made when its turn comes: those of
/// thousands of objects would need more memory than the objects.
pub(super) async fn run_all<F: Future>(futures: impl Iterator<Item = F>) -> Vec<F::Output> {
    let (mut running, mut results) = (FuturesOrdered::new(), Vec::new());
    for future in futures {
        if running.len() == CONCURRENCY {
            results.extend(running.next().await);
        }
        running.push_back(future);
    }
    while let Some(result) = running.next().await {
        results.push(result);
    }
    results
}

fn key(manifest: &Manifest) -> (GroupKind, String) {
    (manifest.group_kind(), manifest.version.clone())
}

/// Reports a step. `again` says that the same manifest was applied before.
fn report_step(report: &mut Report<'_>, id: &ObjectId, step: &Step, again: bool) {
    match step {
        Step::Unchanged(_) => report.object(SyncEventKind::Unchanged, id, "as in Git"),
        Step::Finished => {
            let what =
                "it was applied, and the cluster has removed it; it runs again when its manifest changes";
            report.object(SyncEventKind::Unchanged, id, what);
        }
        Step::Drifted(_, by) => report.object(SyncEventKind::Drifted, id, by.clone()),
        Step::Create if again => report.object(SyncEventKind::Applied, id, "created again"),
        Step::Create => report.object(SyncEventKind::Applied, id, "created"),
        Step::Update { drift: None, .. } => report.object(SyncEventKind::Applied, id, "changed"),
        Step::Update { drift: Some(_), .. } => report.object(SyncEventKind::Applied, id, "changed back"),
        Step::Adopt { .. } if again => report.object(SyncEventKind::Applied, id, "taken back"),
        Step::Adopt { .. } => report.object(SyncEventKind::Applied, id, "taken over"),
        Step::Recreate { .. } => report.object(SyncEventKind::Applied, id, "deleted and created again"),
        Step::Terminating { .. } | Step::Running { .. } | Step::Contested(_) => {}
    }
}

/// Returns the change by somebody else that a step has reverted. `again` says that the same manifest was applied before.
fn reverted_by(step: &Step, again: bool) -> Option<Change> {
    match step {
        Step::Create if again => Some(Change::deletion()),
        Step::Update { drift, .. } => drift.clone(),
        Step::Adopt { owner, .. } if again => {
            Some(Change::take_over(owner.as_deref().unwrap_or("somebody without a label")))
        }
        _ => None,
    }
}

impl From<Stopped> for ExamineError {
    fn from(stopped: Stopped) -> Self {
        Self::Stopped(stopped)
    }
}
