//! Collects the events of a sync and makes its outcome.

use std::sync::atomic::{AtomicBool, Ordering};

use kube_cluster::Stopped;
use proto::gitops::{
    AwaitedObject, HeldDeletions, ObjectCounts, ObjectError, ObjectId, ProjectState, SyncEvent, SyncEventKind,
};

use super::{Outcome, SyncContext, SyncError, SyncInput, awaited::Awaited};
use crate::{Manifest, hook};

/// The longest message of an error, in characters.
const MAX_MESSAGE: usize = 1000;
/// The most errors that an outcome has.
const MAX_ERRORS: usize = 20;
/// The most objects whose reasons to stay an outcome has.
const MAX_KEPT: usize = 10;

/// Shows the first error of a stage at once: the others may take long, for example because a webhook does not respond.
pub(super) struct FirstError<'a> {
    events: &'a (dyn Fn(SyncEvent) + Send + Sync),
    shown: AtomicBool,
}

impl FirstError<'_> {
    /// Shows an error unless one was shown. It is counted and reported at the end of the stage, as all others are.
    pub(super) fn show(&self, error: &ObjectError) {
        if !self.shown.swap(true, Ordering::Relaxed) {
            let error = shortened(error.clone());
            let event = SyncEvent::new(SyncEventKind::Waiting, error.object.clone(), &*error.message);
            (self.events)(SyncEvent { error: Some(error), ..event });
        }
    }
}

/// Collects what happens.
pub(super) struct Report<'a> {
    events: &'a (dyn Fn(SyncEvent) + Send + Sync),
    pub(super) objects: ObjectCounts,
    errors: Vec<ObjectError>,
    kept: Vec<ObjectError>,
    /// The deletions that wait for an approval.
    pub(super) held: Option<HeldDeletions>,
    /// The objects that the plan deletes, now or after an approval.
    pub(super) planned_deletions: usize,
    /// The objects that the sync waits for.
    waiting: Vec<AwaitedObject>,
    /// Objects that somebody else has changed, and that were not healed.
    pub(super) drifted: u32,
    /// Objects that others have changed again, and that are not changed back yet.
    pub(super) postponed: u32,
    /// Objects that others change again and again, with what they do.
    pub(super) contested: Vec<ObjectError>,
    /// Objects that somebody else has changed or deleted, and that were written again.
    reverted: u32,
}

impl<'a> Report<'a> {
    pub(super) fn new(events: &'a (dyn Fn(SyncEvent) + Send + Sync)) -> Self {
        Self {
            events,
            objects: ObjectCounts::default(),
            errors: Vec::new(),
            kept: Vec::new(),
            held: None,
            planned_deletions: 0,
            waiting: Vec::new(),
            drifted: 0,
            postponed: 0,
            contested: Vec::new(),
            reverted: 0,
        }
    }

    /// Returns what shows the first error of the next stage.
    pub(super) fn first_error(&self) -> FirstError<'a> {
        FirstError { events: self.events, shown: AtomicBool::new(false) }
    }

    pub(super) fn planned(&mut self, manifests: &[Manifest]) {
        let objects = manifests.iter().filter(|manifest| !hook::is_skipped(manifest)).count();
        self.objects.total = u32::try_from(objects).unwrap_or(u32::MAX);
        let message = format!("the files are valid and have {objects} objects");
        let planned = SyncEvent::new(SyncEventKind::Planned, None, message);
        (self.events)(SyncEvent { state: Some(ProjectState::Syncing), ..planned });
    }

    /// Reports what happened to an object.
    pub(super) fn object(&mut self, event: SyncEventKind, id: &ObjectId, message: impl Into<String>) {
        let counter = match event {
            SyncEventKind::Applied => Some(&mut self.objects.applied),
            SyncEventKind::Unchanged => Some(&mut self.objects.unchanged),
            SyncEventKind::Pruned => Some(&mut self.objects.pruned),
            SyncEventKind::Kept => Some(&mut self.objects.kept),
            SyncEventKind::Drifted => Some(&mut self.drifted),
            _ => None,
        };
        if let Some(counter) = counter {
            *counter += 1;
        }
        let message = message.into();
        if event == SyncEventKind::Kept && self.kept.len() < MAX_KEPT {
            self.kept.push(ObjectError {
                object: Some(id.clone()),
                file: String::new(),
                message: message.clone(),
            });
        }
        (self.events)(SyncEvent::new(event, Some(id.clone()), message));
    }

    /// Reports who has changed or deleted an object that was written again.
    pub(super) fn reverted(&mut self, id: &ObjectId, message: String) {
        self.reverted += 1;
        (self.events)(SyncEvent::new(SyncEventKind::Drifted, Some(id.clone()), message));
    }

    /// Reports the objects that the sync waits for, and those that take too long.
    pub(super) fn wait_for(&mut self, awaited: &[Awaited], sync: &SyncContext<'_>) {
        for awaited in awaited {
            let Awaited { id, reason, .. } = awaited;
            let since = sync.waits_since(awaited);
            if !sync.input.waiting.iter().any(|before| before.object == *id) {
                self.object(SyncEventKind::Waiting, id, reason.clone());
            }
            self.waiting.push(AwaitedObject { object: id.clone(), reason: reason.clone(), since });
        }
        self.objects.waiting = u32::try_from(awaited.len()).unwrap_or(u32::MAX);
        let late = awaited.iter().filter(|awaited| {
            let limit = awaited.limit(&sync.input.settings).as_millis();
            u128::from(sync.input.now.saturating_sub(sync.waits_since(awaited))) > limit
        });
        for awaited in late {
            self.error(ObjectError {
                object: Some(awaited.id.clone()),
                file: String::new(),
                message: awaited.too_late(),
            });
        }
    }

    /// Adds a sentence to the errors of a sync that succeeds all the same.
    pub(super) fn note(&mut self, message: String) {
        if self.errors.len() < MAX_ERRORS {
            self.errors.push(ObjectError { object: None, file: String::new(), message });
        }
    }

    /// Reports an error.
    pub(super) fn error(&mut self, error: ObjectError) {
        self.objects.failed += 1;
        let error = shortened(error);
        let message = if error.file.is_empty() {
            error.message.clone()
        } else {
            format!("{}: {}", error.file, error.message)
        };
        (self.events)(SyncEvent::new(SyncEventKind::Failed, error.object.clone(), message));
        if self.errors.len() < MAX_ERRORS {
            self.errors.push(error);
        }
    }

    pub(super) fn finish(mut self, result: Result<(), SyncError>, input: &SyncInput) -> Outcome {
        let mut stopped = None;
        let room = MAX_ERRORS.saturating_sub(self.errors.len());
        self.errors.extend(self.contested.iter().take(room).cloned());
        let (state, message) = match result {
            Ok(()) => self.success(input),
            Err(SyncError::Refused(errors)) => {
                let count = errors.len();
                errors.into_iter().for_each(|error| self.error(error));
                (
                    ProjectState::Failed,
                    format!("refused with {} before anything of them was written", plural(count, "error")),
                )
            }
            Err(SyncError::Objects) => {
                let failed = plural(self.objects.failed as usize, "object");
                let deleted = self.objects.pruned + input.earlier.pruned;
                (ProjectState::Failed, format!("{failed} failed; {deleted} deleted"))
            }
            Err(SyncError::InventoryLost(reason)) => (
                ProjectState::InventoryLost,
                format!("{reason}; nothing is written until kas gitops recover has made it anew"),
            ),
            Err(SyncError::Project(message)) => (ProjectState::Failed, message),
            Err(SyncError::Stopped(reason)) => {
                stopped = Some(reason);
                let state = if reason == Stopped::Suspended {
                    ProjectState::Suspended
                } else {
                    ProjectState::Syncing
                };
                (state, format!("stopped before the end: {reason}"))
            }
        };
        // Those that wait for an approval have one reason, which is the message.
        let reason = self.held.as_ref().map(|held| &held.reason);
        self.kept.retain(|kept| Some(&kept.message) != reason);
        self.add_earlier(&input.earlier);
        let Self { objects, errors, kept, reverted, held, waiting, .. } = self;
        Outcome { state, message, objects, errors, held, kept, reverted, waiting, stopped }
    }

    /// Adds the work of earlier passes of the same commit.
    fn add_earlier(&mut self, earlier: &ObjectCounts) {
        self.objects.applied += earlier.applied;
        self.objects.unchanged = self.objects.unchanged.saturating_sub(earlier.applied);
        self.objects.pruned += earlier.pruned;
    }

    fn success(&self, input: &SyncInput) -> (ProjectState, String) {
        use proto::agent_configuration::gitops::DryRunStrategy;

        let ObjectCounts { total, mut applied, mut pruned, .. } = self.objects;
        match (input.settings.dry_run_strategy, applied, self.planned_deletions) {
            (DryRunStrategy::None, ..) => {}
            (DryRunStrategy::Client, ..) => {
                let objects = plural(total as usize, "object");
                let what = format!(
                    "dry run (client): {objects} in Git, all valid; nothing was compared with the cluster"
                );
                return (ProjectState::Pending, what);
            }
            (DryRunStrategy::Server, 0, 0) => {
                return (ProjectState::Synced, "dry run: the cluster is as in Git".to_owned());
            }
            (DryRunStrategy::Server, _, deleted) => {
                let what =
                    format!("dry run: {applied} of {total} objects would be applied, and {deleted} deleted");
                return (ProjectState::OutOfSync, what);
            }
        }
        if let Some(first) = self.waiting.first() {
            let more = match self.waiting.len() - 1 {
                0 => String::new(),
                more => format!(", and for {more} more"),
            };
            return (ProjectState::Syncing, format!("waits for {}: {}{more}", first.object, first.reason));
        }
        if let Some(held) = &self.held {
            return (ProjectState::Held, held.reason.clone());
        }
        if let Some(ObjectError { object: Some(object), .. }) = self.contested.first() {
            let more = match self.contested.len() - 1 {
                0 => String::new(),
                more => format!(" and {} more", plural(more, "object")),
            };
            let what = format!(
                "{object}{more}: others change what is in Git again and again, and agentk sets it back"
            );
            return (ProjectState::Contested, what);
        }
        (applied, pruned) = (applied + input.earlier.applied, pruned + input.earlier.pruned);
        if !input.heal && self.planned_deletions > 0 {
            let left = plural(self.planned_deletions, "object");
            let message = format!("{left} that left Git would be deleted: kas gitops sync deletes them");
            return (ProjectState::OutOfSync, message);
        }
        match self.drifted {
            0 if total == 0 => (ProjectState::Empty, empty(input, pruned)),
            0 => (ProjectState::Synced, format!("{total} objects: {applied} applied, {pruned} deleted")),
            drifted => (
                ProjectState::OutOfSync,
                format!("{} changed by somebody else", plural(drifted as usize, "object")),
            ),
        }
    }
}

/// Describes a commit without objects.
fn empty(input: &SyncInput, pruned: u32) -> String {
    let deleted = if pruned == 0 { String::new() } else { format!("; {pruned} deleted") };
    if input.files.is_empty() {
        let globs = input.settings.paths.iter().map(|path| &*path.glob);
        format!("no file matches paths: {}{deleted}", globs.collect::<Vec<_>>().join(", "))
    } else {
        format!("the files have no objects{deleted}")
    }
}

/// Shortens an error: a status has to fit into a ConfigMap.
fn shortened(mut error: ObjectError) -> ObjectError {
    if let Some((end, _)) = error.message.char_indices().nth(MAX_MESSAGE) {
        error.message.truncate(end);
    }
    error
}

fn plural(count: usize, noun: &str) -> String {
    format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
}
