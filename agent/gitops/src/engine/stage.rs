//! One stage: a dry run of all objects, then the writes, then the wait.

use std::{borrow::Cow, collections::HashMap, time::Duration};

use futures_util::{StreamExt as _, stream::FuturesOrdered};
use proto::{
    gitops::{EventKind, ObjectError, ObjectId},
    graph::HealthState,
};
use tokio::time::{Instant, sleep};

use super::{
    CONCURRENCY, Engine, Failure, Stopped, SyncContext,
    examine::{ExamineError, Known, Seen, Step, hash},
    members::Members,
    report::Report,
};
use crate::{
    Cluster, GroupKind, Kind, Manifest,
    order::Stage,
    retry::{CallError, with_retry},
    validate::DEFINITIONS,
};

/// The time until a definition is established.
const ESTABLISHED_TIMEOUT: Duration = Duration::from_secs(60);
/// The time until a deleted object is gone, before it is created again.
const RECREATE_TIMEOUT: Duration = Duration::from_secs(60);
/// The attempts to write an object that others change at the same time.
const ATTEMPTS: u32 = 5;
/// The first and the longest time between two looks at an object.
const LOOK: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(3));

/// An object that was applied or was as in Git, with its kind and its UID.
pub(super) type AppliedObject = (ObjectId, Kind, String);

impl<C: Cluster> Engine<C> {
    /// Applies the objects of a stage. Returns those that are now as in Git.
    pub(super) async fn apply_stage(
        &mut self,
        stage: &Stage,
        manifests: &[Manifest],
        members: &Members,
        sync: &SyncContext<'_>,
        report: &mut Report<'_>,
    ) -> Result<Vec<AppliedObject>, Failure> {
        let kinds = self.kinds(stage, manifests, sync).await?;
        let of = |index: usize| (&manifests[index], &kinds[&key(&manifests[index])]);
        let examining = stage.objects.iter().copied().map(|index| {
            let (manifest, kind) = of(index);
            self.examine(manifest, kind, members, sync)
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
            return Err(Failure::Refused(refused));
        }

        let writes = sync.writes() && sync.input.heal;
        let this = &*self;
        let writing = steps.into_iter().map(|(index, step)| {
            let (manifest, kind) = of(index);
            async move {
                let result = match (&step, writes) {
                    (Step::Unchanged(seen) | Step::Drifted(seen, _), _) => Ok(seen.clone()),
                    (_, false) => Ok(Seen { uid: String::new(), fingerprint: 0 }),
                    (step, true) => this.write_examined(step, manifest, kind, members, sync).await,
                };
                (manifest, kind, step, result)
            }
        });
        let written = run_all(writing).await;
        let mut applied = Vec::with_capacity(written.len());
        let mut stopped = None;
        for (manifest, kind, step, result) in written {
            match result {
                Ok(seen) => {
                    let (id, desired) = (manifest.id.clone(), hash(&manifest.object));
                    let known = self.known.get(&id);
                    report_step(report, &id, &step, known.is_some_and(|known| known.desired == desired));
                    if !matches!(step, Step::Drifted(..)) {
                        self.known.insert(id.clone(), Known { desired, live: seen.fingerprint });
                    }
                    applied.push((id, kind.clone(), seen.uid));
                }
                Err(CallError::Api(error)) => report.error(manifest.error(error.describe(&manifest.id))),
                Err(CallError::Stopped(reason)) => stopped = Some(reason),
            }
        }
        match stopped {
            Some(reason) => Err(Failure::Stopped(reason)),
            None if report.objects.failed > 0 => Err(Failure::Objects),
            None => Ok(applied),
        }
    }

    /// Waits for what the next stage needs. `objects` are all objects so far, with their kinds.
    pub(super) async fn wait(
        &self,
        stage: &Stage,
        manifests: &[Manifest],
        objects: &[(ObjectId, Kind)],
        sync: &SyncContext<'_>,
        report: &mut Report<'_>,
    ) -> Result<(), Failure> {
        let kinds: HashMap<&ObjectId, &Kind> = objects.iter().map(|(id, kind)| (id, kind)).collect();
        let is_definition = |index: &&usize| manifests[**index].id.kind == DEFINITIONS.1;
        let definitions = stage.objects.iter().filter(|index| stage.established && is_definition(index));
        let timeout = sync.input.settings.reconcile_timeout;
        let healthy = stage.healthy.iter().filter(|_| !timeout.is_zero());
        let start = Instant::now();
        let awaited: Vec<_> = definitions
            .map(|index| (index, start + ESTABLISHED_TIMEOUT))
            .chain(healthy.map(|index| (index, start + timeout)))
            .collect();
        // One may become unhealthy while another one is waited for, so that all are looked at until none needs a wait.
        let mut waited = true;
        while std::mem::take(&mut waited) {
            for (index, deadline) in &awaited {
                let Some((id, kind)) = kinds.get_key_value(&manifests[**index].id) else { continue };
                waited |= self.wait_for(id, kind, *deadline, sync, report).await?;
            }
        }
        let defined = awaited.iter().any(|(index, _)| is_definition(index));
        if defined {
            self.cluster.forget_kinds();
        }
        Ok(())
    }

    /// Waits until an object is healthy. Returns whether it was not at the first look.
    async fn wait_for(
        &self,
        id: &ObjectId,
        kind: &Kind,
        deadline: Instant,
        sync: &SyncContext<'_>,
        report: &mut Report<'_>,
    ) -> Result<bool, Failure> {
        let (mut look, longest) = LOOK;
        let mut told = false;
        loop {
            let object = with_retry(sync.fence, || self.cluster.get(kind, id)).await;
            let object =
                object.map_err(|error| Failure::of_project(&format!("{id} cannot be read"), error))?;
            let reason = match object.as_ref().map(object_health::assess) {
                Some(assessment)
                    if matches!(assessment.health, HealthState::Healthy | HealthState::Suspended) =>
                {
                    return Ok(told);
                }
                Some(assessment) => assessment.reason,
                None => "it does not exist any more".to_owned(),
            };
            if Instant::now() + look > deadline {
                let what = format!(
                    "the next objects wait for it, and its time is over (reconcile_timeout): {reason}"
                );
                report.error(ObjectError { object: Some(id.clone()), file: String::new(), message: what });
                return Err(Failure::Objects);
            }
            if !told {
                report.object(EventKind::Waiting, id, reason);
                told = true;
            }
            sleep(look).await;
            look = (look * 2).min(longest);
        }
    }

    /// Returns the kinds of the objects of a stage.
    async fn kinds(
        &self,
        stage: &Stage,
        manifests: &[Manifest],
        sync: &SyncContext<'_>,
    ) -> Result<HashMap<(GroupKind, String), Kind>, Failure> {
        let mut kinds = HashMap::new();
        for manifest in stage.objects.iter().map(|index| &manifests[*index]) {
            let key = key(manifest);
            if kinds.contains_key(&key) {
                continue;
            }
            let Some(kind) = self.resolve(&key.0, Some(&key.1), sync.fence).await?.found() else {
                let what = match sync.writes() {
                    true => format!("the cluster does not serve the kind {} in version {}", key.0, key.1),
                    false => format!("a dry run cannot check it: its kind {} is in the same commit", key.0),
                };
                return Err(Failure::Refused(vec![manifest.error(what)]));
            };
            if kind.namespaced == manifest.id.namespace.is_empty() {
                let what =
                    format!("the scope of the kind {} is not the one that its definition in Git says", key.0);
                return Err(Failure::Refused(vec![manifest.error(what)]));
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
    ) -> Result<Seen, CallError> {
        let mut step = Cow::Borrowed(step);
        for _ in 1..ATTEMPTS {
            let stale = match self.write(&step, manifest, kind, sync).await {
                Err(CallError::Api(error)) if error.is_stale() => error,
                result => return result,
            };
            let examined = match self.try_apply(manifest, kind, members, sync).await {
                Ok(examined) => examined.step,
                Err(ExamineError::Object(_)) => return Err(stale.into()),
                Err(ExamineError::Stopped(stopped)) => return Err(stopped.into()),
            };
            match (&*step, examined) {
                (_, Step::Unchanged(seen)) => return Ok(seen),
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
    ) -> Result<Seen, CallError> {
        let id = &manifest.id;
        let (mut object, mut options) = (Cow::Borrowed(&manifest.object), sync.options(false));
        match step {
            Step::Adopt(_, Some(patch)) => {
                drop(with_retry(sync.fence, || self.cluster.patch(kind, id, patch)).await?);
            }
            Step::Recreate { uid } => self.delete_and_wait(kind, id, uid, sync).await?,
            // The object did not exist when it was examined: fields of somebody who has created it since then stay.
            Step::Create => options.force = false,
            _ => {}
        }
        if let Step::Update { uid, .. } | Step::Adopt(uid, _) = step {
            // The API server refuses another object of the same name.
            object.to_mut()["metadata"]["uid"] = uid.as_str().into();
        }
        if let Step::Update { version, .. } = step {
            // The API server refuses another version of the object.
            object.to_mut()["metadata"]["resourceVersion"] = version.as_str().into();
        }
        let applied = with_retry(sync.fence, || self.cluster.apply(kind, id, &object, options)).await?;
        Ok(Seen::of(&applied.object))
    }

    async fn delete_and_wait(
        &self,
        kind: &Kind,
        id: &ObjectId,
        uid: &str,
        sync: &SyncContext<'_>,
    ) -> Result<(), CallError> {
        use proto::agent_configuration::gitops::PropagationPolicy::Background;

        with_retry(sync.fence, || self.cluster.delete(kind, id, uid, None, Background)).await?;
        let deadline = Instant::now() + RECREATE_TIMEOUT;
        while with_retry(sync.fence, || self.cluster.get(kind, id))
            .await?
            .is_some_and(|live| live["metadata"]["uid"] == uid)
        {
            if Instant::now() > deadline {
                let message =
                    "it had to be deleted first, and is not gone after 60 s: look at its finalizers"
                        .to_owned();
                return Err(crate::ApiError { message, ..crate::ApiError::default() }.into());
            }
            sleep(LOOK.0 * 5).await;
        }
        Ok(())
    }
}

/// Runs futures, some of them at the same time, and returns their results in their order. Each is made when its turn comes: those of
/// thousands of objects would need more memory than the objects.
async fn run_all<F: Future>(futures: impl Iterator<Item = F>) -> Vec<F::Output> {
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
        Step::Unchanged(_) => report.object(EventKind::Unchanged, id, "as in Git"),
        Step::Drifted(_, by) => report.object(EventKind::Drifted, id, by.clone()),
        Step::Create if again => {
            report.reverted(id, "deleted by somebody else".to_owned());
            report.object(EventKind::Applied, id, "created again");
        }
        Step::Create => report.object(EventKind::Applied, id, "created"),
        Step::Update { drift: None, .. } => report.object(EventKind::Applied, id, "changed"),
        Step::Update { drift: Some(by), .. } => {
            report.reverted(id, by.clone());
            report.object(EventKind::Applied, id, "changed back");
        }
        Step::Adopt(..) => report.object(EventKind::Applied, id, "taken over"),
        Step::Recreate { .. } => report.object(EventKind::Applied, id, "deleted and created again"),
    }
}

impl From<Stopped> for ExamineError {
    fn from(stopped: Stopped) -> Self {
        Self::Stopped(stopped)
    }
}
