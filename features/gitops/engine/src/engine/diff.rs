//! The diff of a project: the changes that a sync would make, without a write.

use std::{collections::HashSet, time::Duration};

use futures_util::{StreamExt as _, stream};
use kube_cluster::{Cluster, Fence};
use proto::{
    gitops::{DiffAction, DiffLine, DiffSummary, ManifestApplication, ObjectDiff, ObjectError},
    graph::ApplicationFacts,
};
use serde_json::Value;
use tokio::sync::mpsc;

use super::{
    CONCURRENCY, Engine, Stopped, SyncContext, SyncError, SyncInput,
    examine::{ExamineError, Examined, Step},
    ignored,
    members::Members,
    pruning::PlannedDeletions,
    without_server_fields,
};
use crate::{Manifest, applyset::ApplySet, deletion_plan::NAMESPACE, diff, hook, order};

/// The time that a reader may take for a line.
const SEND_TIMEOUT: Duration = Duration::from_secs(20);
/// The most Applications of `app.k8s.io` that a diff names.
const MAX_APPLICATIONS: usize = 50;

/// The difference of one manifest: its line, unless it is as in Git, and the UID of the object that exists.
type Difference = (Option<DiffLine>, Option<String>);

/// Sends the lines of a diff, and counts them.
struct Lines<'a> {
    sender: &'a mpsc::Sender<DiffLine>,
    summary: DiffSummary,
}

impl Lines<'_> {
    /// Sends a line. Waits for a slow reader, but not for one that has stopped reading.
    async fn send(&mut self, line: DiffLine) -> Result<(), SyncError> {
        self.summary.count(&line);
        self.sender.send_timeout(line, SEND_TIMEOUT).await.map_err(|_| SyncError::Stopped(Stopped::TooLong))
    }

    async fn error(&mut self, error: ObjectError) -> Result<(), SyncError> {
        self.send(DiffLine::Error(error)).await
    }

    /// Sends what left Git. Deletions that wait for an approval are shown as deletions.
    async fn deletions(&mut self, planned: PlannedDeletions, members: &Members) -> Result<(), SyncError> {
        let PlannedDeletions { plan, kept, notes, .. } = planned;
        let left = |action, object, note: &str| {
            let (file, note) = (String::new(), note.to_owned());
            DiffLine::Object(ObjectDiff { action, object, file, note, fields: Vec::new() })
        };
        self.summary.notes.extend(notes);
        for (object, reason) in kept {
            self.send(left(DiffAction::Keep, object, &reason)).await?;
        }
        let reason = plan.held.map(|held| held.reason).unwrap_or_default();
        for object in plan.waiting {
            self.send(left(DiffAction::Delete, object, &reason)).await?;
        }
        // The same object can have two names, in two API groups.
        for member in plan.delete.into_iter().filter(|member| !members.applied.contains(&member.uid)) {
            self.send(left(DiffAction::Delete, member.id, "")).await?;
        }
        Ok(())
    }
}

impl<C: Cluster> Engine<C> {
    /// Finds out what a sync would do, without a write, and sends it line by line. If the manifests are only a `part` of the project,
    /// no object counts as deleted. Returns what [`DiffLine::End`] says, without the commit.
    ///
    /// # Cancellation safety
    ///
    /// Dropping the future ends the diff.
    pub async fn diff(
        &mut self,
        input: &SyncInput,
        part: bool,
        fence: &dyn Fence,
        lines: &mpsc::Sender<DiffLine>,
    ) -> DiffSummary {
        let mut lines = Lines { sender: lines, summary: DiffSummary::default() };
        let errors = match self.compare(input, part, fence, &mut lines).await {
            Ok(()) | Err(SyncError::Objects) => Vec::new(),
            Err(SyncError::Refused(errors)) => errors,
            Err(SyncError::Project(message)) => vec![of_project(message)],
            Err(SyncError::InventoryLost(reason)) => {
                vec![of_project(format!("{reason}: kas gitops recover"))]
            }
            Err(SyncError::Stopped(stopped)) => vec![of_project(format!("the diff was stopped: {stopped}"))],
        };
        for error in errors {
            if lines.error(error).await.is_err() {
                // Nobody reads any more.
                break;
            }
        }
        lines.summary
    }

    async fn compare(
        &mut self,
        input: &SyncInput,
        part: bool,
        fence: &dyn Fence,
        lines: &mut Lines<'_>,
    ) -> Result<(), SyncError> {
        let mut manifests = self.read_manifests(input, fence).await?;
        lines.summary.applications = applications(&manifests);
        let stages = order::stages(&manifests)?;
        let set = ApplySet::new(input.agent, &input.project, &self.namespace).id();
        let sync = SyncContext { input, fence, set, autoscaled: ignored::autoscaled(&manifests) };
        let stored = self.load(&sync, &manifests).await?;
        sync.mark(&mut manifests);
        let (mut state, _) = self.examine_project(stored, &manifests, &sync).await?;
        let mut new_namespaces = HashSet::new();
        for stage in &stages {
            let of_stage = || stage.objects.iter().map(|index| &manifests[*index]);
            // Collected first: a closure inside of the stream would have to work for all lifetimes.
            let comparing: Vec<_> = of_stage()
                .map(|manifest| self.compare_object(manifest, &state.members, &new_namespaces, &sync))
                .collect();
            let mut compared = stream::iter(comparing).buffered(CONCURRENCY);
            let (mut uids, mut created) = (Vec::new(), Vec::new());
            while let Some(difference) = compared.next().await {
                let (line, uid) = difference?;
                uids.extend(uid);
                let Some(line) = line else {
                    lines.summary.unchanged += 1;
                    continue;
                };
                if let DiffLine::Object(ObjectDiff { action: DiffAction::Create, object, .. }) = &line
                    && (&*object.group, &*object.kind) == NAMESPACE
                {
                    created.push(object.name.clone());
                }
                lines.send(line).await?;
            }
            drop(compared);
            state.members.applied.extend(uids);
            new_namespaces.extend(created);
        }
        // Errors stop a sync before it deletes anything.
        if part || lines.summary.errors > 0 {
            return Ok(());
        }
        let planned = self.plan_deletions(&mut state, &sync).await?;
        lines.deletions(planned, &state.members).await
    }

    async fn compare_object(
        &self,
        manifest: &Manifest,
        members: &Members,
        new_namespaces: &HashSet<String>,
        sync: &SyncContext<'_>,
    ) -> Result<Difference, SyncError> {
        let unchecked = |why: &str| {
            let note = format!("the API server cannot check it yet: {why} is created by the same commit");
            (Some(line(DiffAction::Create, manifest, None, Some(&manifest.object), &note)), None)
        };
        if new_namespaces.contains(&manifest.id.namespace) {
            return Ok(unchecked("its namespace"));
        }
        let kind = self.resolve(&manifest.group_kind(), Some(&manifest.version), sync.fence).await?.found();
        let Some(kind) = kind else { return Ok(unchecked("its kind")) };
        let Examined { step, live, tried } = match self.try_apply(manifest, &kind, members, sync).await {
            Ok(examined) => examined,
            Err(ExamineError::Object(error)) => return Ok((Some(DiffLine::Error(error)), None)),
            Err(ExamineError::Stopped(stopped)) => return Err(stopped.into()),
        };
        let (live, tried) = (live.as_ref(), tried.as_ref());
        Ok(match step {
            Step::Unchanged(seen) | Step::Drifted(seen, _) => (None, Some(seen.uid)),
            Step::Finished | Step::Contested(_) => (None, None),
            Step::Terminating { uid, .. } => {
                let note = "it is being deleted, and is created again once it is gone";
                (Some(line(DiffAction::Recreate, manifest, None, None, note)), Some(uid))
            }
            Step::Create => (Some(line(DiffAction::Create, manifest, None, tried, "")), None),
            Step::Update { uid, .. } => {
                (Some(line(DiffAction::Change, manifest, live, tried, "")), Some(uid))
            }
            Step::Adopt { uid, patch, .. } => {
                let note = match patch {
                    Some(_) => {
                        "taken over from another program; fields that only it has set are removed, too"
                    }
                    None => "it exists already, and becomes a part of the project",
                };
                (Some(line(DiffAction::Change, manifest, live, tried, note)), Some(uid))
            }
            Step::Running { uid, .. } => (None, Some(uid)),
            Step::Recreate { uid } if hook::runs(manifest) => {
                let note = "a hook runs once for each version of the manifests";
                (Some(line(DiffAction::Recreate, manifest, None, None, note)), Some(uid))
            }
            Step::Recreate { uid } => {
                let note = "a field cannot change, and an annotation allows to delete the object and create it again";
                (Some(line(DiffAction::Recreate, manifest, None, None, note)), Some(uid))
            }
        })
    }
}

/// Returns the Applications among manifests, also those that are not in the cluster.
fn applications(manifests: &[Manifest]) -> Vec<ManifestApplication> {
    let described = manifests.iter().filter_map(|Manifest { id, object, source, .. }| {
        let facts = ApplicationFacts::read(&id.group, &id.kind, object)?;
        let (object, file) = (id.clone(), source.to_string());
        Some(ManifestApplication { object, file, descriptor: facts.descriptor.into_brief() })
    });
    described.take(MAX_APPLICATIONS).collect()
}

fn of_project(message: String) -> ObjectError {
    ObjectError { object: None, file: String::new(), message }
}

fn line(
    action: DiffAction,
    manifest: &Manifest,
    before: Option<&Value>,
    after: Option<&Value>,
    note: &str,
) -> DiffLine {
    let (before, after) = (before.map(without_server_fields), after.map(without_server_fields));
    DiffLine::Object(ObjectDiff {
        action,
        object: manifest.id.clone(),
        file: manifest.source.to_string(),
        note: note.to_owned(),
        fields: diff::fields(&manifest.id, before.as_ref(), after.as_ref()),
    })
}
