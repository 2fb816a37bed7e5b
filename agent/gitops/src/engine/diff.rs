//! The diff of a project: the changes that a sync would make, without a write.

use std::{collections::HashSet, time::Duration};

use futures_util::{StreamExt as _, stream};
use proto::gitops::{DiffAction, DiffLine, DiffSummary, ObjectDiff, ObjectError, ObjectId};
use serde_json::Value;
use tokio::sync::mpsc;

use super::{
    CONCURRENCY, Engine, Failure, Stopped, SyncContext, SyncInput,
    examine::{ExamineError, Examined, Step},
    members::Members,
    without_server_fields,
};
use crate::{
    Cluster, Fence, GroupKind, Manifest,
    applyset::{ApplySet, PART_OF},
    diff, order,
    prune::{self, PrunePlan},
};

/// The time that a reader may take for a line.
const SEND_TIMEOUT: Duration = Duration::from_secs(20);

/// The difference of one manifest: its line, unless it is as in Git, and the UID of the object that exists.
type Difference = (Option<DiffLine>, Option<String>);

/// Sends the lines of a diff, and counts them.
struct Lines<'a> {
    sender: &'a mpsc::Sender<DiffLine>,
    summary: DiffSummary,
}

impl Lines<'_> {
    /// Sends a line. Waits for a slow reader, but not for one that has stopped reading.
    async fn send(&mut self, line: DiffLine) -> Result<(), Failure> {
        self.summary.count(&line);
        self.sender.send_timeout(line, SEND_TIMEOUT).await.map_err(|_| Failure::Stopped(Stopped::TooLong))
    }

    async fn error(&mut self, error: ObjectError) -> Result<(), Failure> {
        self.send(DiffLine::Error(error)).await
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
        &self,
        input: &SyncInput,
        part: bool,
        fence: &dyn Fence,
        lines: &mpsc::Sender<DiffLine>,
    ) -> DiffSummary {
        let mut lines = Lines { sender: lines, summary: DiffSummary::default() };
        let errors = match self.compare(input, part, fence, &mut lines).await {
            Ok(()) | Err(Failure::Objects) => Vec::new(),
            Err(Failure::Refused(errors)) => errors,
            Err(Failure::Project(message)) => vec![of_project(message)],
            Err(Failure::Stopped(stopped)) => vec![of_project(format!("the diff was stopped: {stopped}"))],
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
        &self,
        input: &SyncInput,
        part: bool,
        fence: &dyn Fence,
        lines: &mut Lines<'_>,
    ) -> Result<(), Failure> {
        let mut manifests = self.read_manifests(input, fence).await?;
        let stages = order::stages(&manifests)?;
        let mut set = ApplySet::new(input.agent, &input.project, &self.namespace);
        self.read_parent(&mut set, fence).await?;
        let sync = SyncContext { input, fence, set: set.id() };
        for manifest in &mut manifests {
            manifest.set_label(PART_OF, &sync.set);
        }
        let mut members = self.members(&set, &sync).await?;
        let mut new_namespaces = HashSet::new();
        for stage in &stages {
            let of_stage = || stage.objects.iter().map(|index| &manifests[*index]);
            // Collected first: a closure inside of the stream would have to work for all lifetimes.
            let comparing: Vec<_> = of_stage()
                .map(|manifest| self.compare_object(manifest, &members, &new_namespaces, &sync))
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
                    && object.kind == "Namespace"
                {
                    created.push(object.name.clone());
                }
                lines.send(line).await?;
            }
            drop(compared);
            members.applied.extend(uids);
            new_namespaces.extend(created);
        }
        // Errors stop a sync before it deletes anything.
        if part || lines.summary.errors > 0 {
            return Ok(());
        }
        let desired = manifests.into_iter().map(|manifest| manifest.id).collect();
        if let Some(old) = self.old_inventory(&mut members, &desired, &sync).await? {
            old.add_to(&mut members);
        }
        self.compare_deletions(members, &desired, &sync, lines).await
    }

    async fn compare_object(
        &self,
        manifest: &Manifest,
        members: &Members,
        new_namespaces: &HashSet<String>,
        sync: &SyncContext<'_>,
    ) -> Result<Difference, Failure> {
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
            Step::Create => (Some(line(DiffAction::Create, manifest, None, tried, "")), None),
            Step::Update { uid, .. } => {
                (Some(line(DiffAction::Change, manifest, live, tried, "")), Some(uid))
            }
            Step::Adopt(uid, taken) => {
                let note = match taken {
                    Some(_) => {
                        "taken over from another program; fields that only it has set are removed, too"
                    }
                    None => "it exists already, and becomes a part of the project",
                };
                (Some(line(DiffAction::Change, manifest, live, tried, note)), Some(uid))
            }
            Step::Recreate { uid } => {
                let note = "a field cannot change, and an annotation allows to delete the object and create it again";
                (Some(line(DiffAction::Recreate, manifest, None, None, note)), Some(uid))
            }
        })
    }

    async fn compare_deletions(
        &self,
        members: Members,
        desired: &HashSet<ObjectId>,
        sync: &SyncContext<'_>,
        lines: &mut Lines<'_>,
    ) -> Result<(), Failure> {
        let Members { by_id, applied, kinds, unknown } = members;
        for (kind, reason) in unknown {
            lines
                .summary
                .notes
                .push(format!("objects of the kind {kind} that left Git are not shown: {reason}"));
        }
        let all = by_id.into_values().map(|(member, _)| member).collect();
        // Deletions that wait for an approval are shown as deletions.
        let PrunePlan { delete, keep, deleting: _, held } =
            prune::plan(all, desired, &applied, &sync.input.settings, None);
        let left = |action, object, note: &str| {
            let (file, note) = (String::new(), note.to_owned());
            DiffLine::Object(ObjectDiff { action, object, file, note, fields: Vec::new() })
        };
        let mut kept: Vec<ObjectId> = Vec::new();
        let waits = held.as_ref().map(|(_, reason)| reason.as_str());
        for (object, reason) in keep {
            let action = if waits == Some(&*reason) { DiffAction::Delete } else { DiffAction::Keep };
            kept.push(object.clone());
            lines.send(left(action, object, &reason)).await?;
        }
        for member in delete {
            let Some(kind) = kinds.get(&GroupKind::of(&member.id)) else { continue };
            let line = match self.guard(kind, &member, desired, &kept, sync).await? {
                None => left(DiffAction::Delete, member.id, ""),
                Some(reason) => {
                    kept.push(member.id.clone());
                    left(DiffAction::Keep, member.id, &reason)
                }
            };
            lines.send(line).await?;
        }
        Ok(())
    }
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
