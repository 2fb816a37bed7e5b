//! One project: its wanted commit, its status, and the commands about it.

use std::{collections::HashMap, sync::Arc};

use gitops_engine::{Outcome, SourceFile};
use parking_lot::Mutex;
use proto::{
    agent_configuration::gitops::{DryRunStrategy, ManifestProject},
    events::NewAgentEvent,
    gitops::{ObjectId, ProjectState, ProjectStatus, SyncEvent, SyncEventKind, SyncHead, SyncRecord},
};
use sha2::{Digest as _, Sha256};
use tokio::sync::{Notify, broadcast};

use super::{
    now_millis,
    settled::{self, Settled},
};

/// The events that a slow reader may miss.
const EVENTS: usize = 1024;
/// The syncs that a status remembers.
const HISTORY: usize = 10;
/// The objects that a sync waits for, of which a status has so many.
const WAITING: usize = 20;
/// The time after which a status is written again, although only its time has changed, in milliseconds.
const REFRESH: u64 = 5 * 60 * 1000;

/// A project of this agent.
pub(super) struct Project {
    pub(super) id: String,
    state: Mutex<State>,
    pub(super) wake: Notify,
    /// The events of syncs with the numbers of their commits.
    pub(super) events: broadcast::Sender<(u64, SyncEvent)>,
}

#[derive(Default)]
struct State {
    wanted: Option<Arc<Wanted>>,
    next: u64,
    /// Somebody asked for a sync.
    requested: bool,
    /// The commands as they were seen last.
    commands: Option<[Option<String>; 5]>,
    /// The objects that were changed since the worker looked, with their fingerprints.
    changes: HashMap<ObjectId, Option<u64>>,
    status: ProjectStatus,
    /// The time of the status that was written last, in milliseconds since 1970.
    refreshed: u64,
    /// The state that kas knows of.
    settled: Option<Settled>,
    /// Nothing of the project is left, and kas does not send it.
    gone: bool,
    /// The reason why kas has no files.
    problem: Option<String>,
}

/// A commit that the cluster shall become.
pub(super) struct Wanted {
    /// The number of the commit in this process.
    pub(super) number: u64,
    pub(super) head: SyncHead,
    pub(super) files: Arc<[SourceFile]>,
    /// The digest of the commit and the settings, which survives a restart.
    pub(super) revision: String,
    /// The project has left the configuration, and all of its objects shall go.
    pub(super) prunes: bool,
}

/// The result of [`Project::submit`].
pub(super) struct Submitted {
    /// The number of the commit.
    pub(super) number: u64,
    /// The status, if it has changed.
    pub(super) status: Option<ProjectStatus>,
}

impl Project {
    pub(super) fn new(id: &str) -> Self {
        let status = ProjectStatus { project: id.to_owned(), ..ProjectStatus::default() };
        Self {
            id: id.to_owned(),
            state: Mutex::new(State { status, ..State::default() }),
            wake: Notify::new(),
            events: broadcast::Sender::new(EVENTS),
        }
    }

    /// Replaces the commit, unless it is the same: kas sends it again when a tunnel was lost, and that is no reason to write.
    pub(super) fn submit(&self, head: SyncHead, files: Vec<SourceFile>) -> Submitted {
        let mut state = self.state.lock();
        let before = state.shown();
        state.problem = None;
        let same = state.wanted.as_ref().filter(|wanted| wanted.head == head && *wanted.files == *files);
        let number = match same {
            Some(wanted) => wanted.number,
            None => {
                state.next += 1;
                state.status.reference.clone_from(&head.reference);
                let number = state.next;
                state.wanted = Some(Arc::new(Wanted::new(number, head, files)));
                number
            }
        };
        let status = state.changed_since(&before);
        drop(state);
        self.wake.notify_one();
        Submitted { number, status }
    }

    /// Notes why kas has no files. Returns the status if that changed anything.
    pub(super) fn set_problem(&self, problem: String) -> Option<ProjectStatus> {
        let mut state = self.state.lock();
        let before = state.shown();
        state.problem = Some(problem);
        state.changed_since(&before)
    }

    /// Returns the commit that the cluster shall become, if kas has sent one.
    pub(super) fn wanted(&self) -> Option<Arc<Wanted>> {
        self.state.lock().wanted.clone()
    }

    /// Returns whether a commit is still the newest one.
    pub(super) fn is_newest(&self, number: u64) -> bool {
        self.state.lock().next == number
    }

    /// Asks for a sync at once.
    pub(super) fn request(&self) {
        self.state.lock().requested = true;
        self.wake.notify_one();
    }

    /// Returns whether somebody has asked for a sync since the last call.
    pub(super) fn take_request(&self) -> bool {
        std::mem::take(&mut self.state.lock().requested)
    }

    /// Notes the commands of the inventory, and wakes the worker if they have changed. Returns whether they have.
    pub(super) fn note_commands(&self, commands: [Option<String>; 5]) -> bool {
        let [.., requested, prune] = &commands;
        if prune.as_deref() == Some("true") {
            self.prune();
        }
        let mut state = self.state.lock();
        let changed = match state.commands.replace(commands.clone()) {
            Some(before) => before != commands,
            // They are seen for the first time: the last one may be newer than the last sync.
            None => requested.as_deref().unwrap_or_default() != state.status.answered,
        };
        drop(state);
        if changed {
            self.request();
        }
        changed
    }

    /// Notes that an object was changed, by agentk or by somebody else.
    pub(super) fn note_change(&self, id: ObjectId, fingerprint: Option<u64>) {
        self.state.lock().changes.insert(id, fingerprint);
        self.wake.notify_one();
    }

    /// Returns the objects that were changed since the last call.
    pub(super) fn take_changes(&self) -> HashMap<ObjectId, Option<u64>> {
        std::mem::take(&mut self.state.lock().changes)
    }

    /// Forgets everything, because another pod leads: what it does with newer commits must not be undone with an old one.
    pub(super) fn forget(&self) {
        let mut state = self.state.lock();
        let next = state.next + 1;
        let status = ProjectStatus { project: self.id.clone(), ..ProjectStatus::default() };
        *state = State { next, status, ..State::default() };
    }

    /// Forgets everything, because nothing of the project is left.
    pub(super) fn end(&self) {
        self.forget();
        self.state.lock().gone = true;
    }

    /// Returns whether nothing of the project is left.
    pub(super) fn is_gone(&self) -> bool {
        self.state.lock().gone
    }

    /// Returns whether a command has suspended the project.
    pub(super) fn is_suspended(&self) -> bool {
        self.state
            .lock()
            .commands
            .as_ref()
            .is_some_and(|[suspended, ..]| suspended.as_deref() == Some("true"))
    }

    /// Forgets the commit, unless it is pruned: kas does not send this project any more. A project whose settings were lost with its
    /// inventory stays lost. Returns the status if that changed anything.
    pub(super) fn orphan(&self, message: &str) -> Option<ProjectStatus> {
        let mut state = self.state.lock();
        if state.gone || state.wanted.as_ref().is_some_and(|wanted| wanted.prunes) {
            return None;
        }
        let before = state.shown();
        state.forget_wanted();
        if state.status.state == ProjectState::InventoryLost && state.status.settings.is_none() {
            return None;
        }
        state.status.state = ProjectState::Orphaned;
        message.clone_into(&mut state.status.message);
        let status = state.changed_since(&before);
        drop(state);
        self.wake.notify_one();
        status
    }

    /// Wants that all objects of an orphaned project go. Its settings are those of the last sync.
    pub(super) fn prune(&self) {
        let mut state = self.state.lock();
        if state.status.state != ProjectState::Orphaned || state.wanted.is_some() {
            return;
        }
        state.next += 1;
        let status = &state.status;
        let settings = status.settings.as_deref().cloned().unwrap_or_default();
        let head = SyncHead {
            project: self.id.clone(),
            settings: ManifestProject {
                prune: true,
                suspend: false,
                dry_run_strategy: DryRunStrategy::None,
                ..settings
            },
            gitlab_project: None,
            reference: status.reference.clone(),
            commit: status.attempted.clone().unwrap_or_default(),
        };
        let wanted = Wanted { prunes: true, ..Wanted::new(state.next, head, Vec::new()) };
        state.wanted = Some(Arc::new(wanted));
        drop(state);
        self.wake.notify_one();
    }

    /// Ends that the project is orphaned or pruned: it is in the configuration again.
    pub(super) fn adopt(&self) {
        let mut state = self.state.lock();
        state.gone = false;
        let is_pruned = state.wanted.as_ref().is_some_and(|wanted| wanted.prunes);
        if is_pruned || state.status.state == ProjectState::Orphaned {
            state.forget_wanted();
            (state.status.state, state.status.held) = (ProjectState::Pending, None);
            state.status.message.clear();
        }
    }

    /// Ends that the project is pruned, because what could be deleted is gone.
    pub(super) fn end_prune(&self, message: &str) -> Option<ProjectStatus> {
        self.state.lock().forget_wanted();
        self.orphan(message)
    }

    /// Returns the event with which the sync of the wanted commit has ended, unless it has failed.
    pub(super) fn finished(&self) -> Option<SyncEvent> {
        let state = self.state.lock();
        let wanted = state.wanted.as_ref().filter(|wanted| wanted.revision == state.status.revision)?;
        let (ended, message) = match &state.status.held {
            // It is held also while the project is suspended.
            Some(held) => (ProjectState::Held, held.reason.clone()),
            None if wanted.settings().dry_run_strategy != DryRunStrategy::None => {
                (state.status.state, state.status.message.clone())
            }
            None => (ProjectState::Synced, format!("agentk has applied {} already", wanted.head.reference)),
        };
        let event = SyncEvent::new(SyncEventKind::Finished, None, message);
        Some(SyncEvent { state: Some(ended), ..event })
    }

    pub(super) fn status(&self) -> ProjectStatus {
        self.state.lock().shown()
    }

    /// Returns the state after the last sync, also if kas has no files now.
    pub(super) fn synced_state(&self) -> ProjectState {
        self.state.lock().status.state
    }

    /// Takes a status over that another process has written.
    pub(super) fn restore(&self, status: ProjectStatus) {
        let mut state = self.state.lock();
        if state.status.history.is_empty() {
            state.settled = Settled::restored(&status);
            state.status = ProjectStatus { project: self.id.clone(), problem: String::new(), ..status };
        }
    }

    /// Notes a status that was written. Returns what kas should learn of it.
    pub(super) fn settle(&self, status: &ProjectStatus) -> Vec<NewAgentEvent> {
        let mut state = self.state.lock();
        let events = settled::events(state.settled.as_ref(), status);
        state.settled = Settled::after(state.settled.as_ref(), status).or_else(|| state.settled.take());
        events
    }

    /// Changes the status, unless the project has left the configuration meanwhile. Returns it if that changed anything.
    pub(super) fn update(&self, change: impl FnOnce(&mut ProjectStatus)) -> Option<ProjectStatus> {
        let mut state = self.state.lock();
        state.wanted.as_ref()?;
        let before = state.shown();
        change(&mut state.status);
        state.changed_since(&before)
    }

    /// Notes the outcome of a sync, which has answered a command, unless the project has left the configuration meanwhile. `wrote` says
    /// that it was not only a look. Returns the status if that changed anything.
    pub(super) fn record(
        &self,
        wanted: &Wanted,
        outcome: &Outcome,
        took: std::time::Duration,
        answered: &str,
        wrote: bool,
    ) -> Option<ProjectStatus> {
        let mut state = self.state.lock();
        if state.wanted.as_ref().is_none_or(|current| current.prunes != wanted.prunes) {
            return None;
        }
        let before = state.shown();
        let finished = outcome.stopped.is_none();
        let status = &mut state.status;
        let changed = outcome.objects.applied + outcome.objects.pruned > 0;
        let first = status.attempted.as_ref() != Some(&wanted.head.commit);
        if finished && (changed || first || status.state != outcome.state) {
            let record = SyncRecord {
                commit: wanted.head.commit.id.clone(),
                ended: now_millis(),
                duration: u64::try_from(took.as_millis()).unwrap_or(u64::MAX),
                state: outcome.state,
                objects: outcome.objects,
            };
            status.history.insert(0, record);
            status.history.truncate(HISTORY);
        }
        if finished {
            status.as_of = now_millis();
        }
        status.state = outcome.state;
        status.waiting = outcome.waiting.iter().take(WAITING).cloned().collect();
        if ![ProjectState::Synced, ProjectState::Degraded].contains(&outcome.state) {
            status.starting.clear();
        }
        if outcome.state != ProjectState::InventoryLost {
            status.recovery = None;
        }
        status.message.clone_from(&outcome.message);
        status.objects = outcome.objects;
        status.errors.clone_from(&outcome.errors);
        status.held.clone_from(&outcome.held);
        status.kept.clone_from(&outcome.kept);
        if finished {
            use ProjectState::{
                Contested, Degraded, Empty, Failed, Held, InventoryLost, OutOfSync, Synced, Syncing,
            };

            match outcome.state {
                Failed | InventoryLost | Syncing if wrote => status.revision.clear(),
                // A look that fails changes nothing about the commit.
                Failed | InventoryLost | Syncing => {}
                _ => status.revision.clone_from(&wanted.revision),
            }
            let commit = || Some(wanted.head.commit.clone());
            match outcome.state {
                Synced | Empty | Degraded | Contested => (status.synced, status.working) = (commit(), None),
                // Somebody else has changed objects of a complete commit, or it is a dry run.
                OutOfSync => status.working = None,
                Held => status.working = commit(),
                _ if wrote => status.working = commit(),
                _ => {}
            }
            status.working.take_if(|working| Some(&*working) == status.synced.as_ref());
            answered.clone_into(&mut status.answered);
            status.attempted = commit();
        }
        state.changed_since(&before)
    }
}

impl State {
    fn forget_wanted(&mut self) {
        (self.wanted, self.problem) = (None, None);
        self.next += 1;
    }

    /// Returns the status as people see it. Without files, a project is never in order, and other trouble stays visible.
    fn shown(&self) -> ProjectStatus {
        let status = self.status.clone();
        let Some(problem) = &self.problem else { return status };
        let problem = problem.clone();
        match status.state {
            ProjectState::Pending | ProjectState::Syncing | ProjectState::Synced | ProjectState::Empty => {
                ProjectStatus { state: ProjectState::Failed, message: problem.clone(), problem, ..status }
            }
            _ => ProjectStatus { problem, ..status },
        }
    }

    /// Returns the status if it has changed. Its time alone is worth a write every few minutes only.
    fn changed_since(&mut self, before: &ProjectStatus) -> Option<ProjectStatus> {
        let now = self.shown();
        let is_due = now.as_of >= self.refreshed.saturating_add(REFRESH);
        let differs = ProjectStatus { as_of: before.as_of, ..now.clone() } != *before;
        (differs || is_due).then(|| {
            self.refreshed = now.as_of;
            now
        })
    }
}

impl Wanted {
    fn new(number: u64, head: SyncHead, files: Vec<SourceFile>) -> Self {
        let what = serde_json::to_vec(&(&head.commit.id, &head.reference, &head.settings));
        let digest = Sha256::digest(what.expect("it has keys that are text"));
        let revision = digest.iter().take(16).map(|byte| format!("{byte:02x}")).collect();
        Self { number, head, files: files.into(), revision, prunes: false }
    }

    pub(super) fn settings(&self) -> &ManifestProject {
        &self.head.settings
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use kube_cluster::Stopped;

    use super::*;

    fn project() -> Project {
        let settings = ManifestProject { prune: false, suspend: true, ..ManifestProject::default() };
        let status = ProjectStatus { settings: Some(Box::new(settings)), ..ProjectStatus::default() };
        let project = Project::new("group/shop");
        project.restore(status);
        project
    }

    fn head() -> SyncHead {
        SyncHead {
            project: "group/shop".to_owned(),
            settings: ManifestProject::default(),
            gitlab_project: None,
            reference: "branch main".to_owned(),
            commit: proto::gitops::CommitInfo::default(),
        }
    }

    #[test]
    fn only_an_orphaned_project_is_pruned() {
        let project = project();
        project.prune();
        assert!(project.wanted().is_none(), "it may be in the configuration");
        project.submit(head(), Vec::new());
        project.prune();
        assert!(!project.wanted().unwrap().prunes, "it is in the configuration");

        project.orphan("it left");
        assert!(project.wanted().is_none());
        let prune = [None, None, None, None, Some("true".to_owned())];
        project.note_commands(prune);
        let wanted = project.wanted().unwrap();
        let settings = wanted.settings();
        assert!(wanted.prunes && settings.prune && !settings.suspend, "a person has decided");
        assert!(project.orphan("kas says it again").is_none() && project.wanted().is_some());
    }

    #[test]
    fn sync_that_ends_after_its_project_has_left_changes_nothing() {
        let project = project();
        project.submit(head(), Vec::new());
        let wanted = project.wanted().unwrap();
        project.orphan("it left");
        let stopped =
            Outcome { stopped: Some(Stopped::Superseded), ..outcome(ProjectState::Syncing, "newer") };
        for outcome in [stopped, outcome(ProjectState::Synced, "")] {
            assert!(project.record(&wanted, &outcome, Duration::ZERO, "", true).is_none());
        }
        assert!(project.update(|status| status.state = ProjectState::Syncing).is_none());
        assert_eq!(project.status().state, ProjectState::Orphaned);
        project.prune();
        assert!(project.wanted().unwrap().prunes, "a person can prune it");
    }

    #[test]
    fn project_that_is_listed_again_is_not_pruned() {
        let project = project();
        project.orphan("it left");
        project.prune();
        let number = project.wanted().unwrap().number;
        project.adopt();
        assert!(project.wanted().is_none() && !project.is_newest(number), "a running prune stops");
        assert_eq!(project.status().state, ProjectState::Pending);

        project.submit(head(), Vec::new());
        let number = project.wanted().unwrap().number;
        project.adopt();
        assert!(project.is_newest(number), "a sync goes on when kas sends the list again");
    }

    #[test]
    fn pruned_project_is_gone_until_it_is_listed_again() {
        let project = project();
        project.orphan("it left");
        project.prune();
        project.end();
        assert!(project.is_gone() && project.wanted().is_none());
        assert!(project.orphan("kas sends the list again").is_none(), "it is not shown again");
        project.adopt();
        assert!(!project.is_gone());
    }

    #[test]
    fn prune_ends_in_an_orphaned_project() {
        let project = project();
        project.orphan("it left");
        project.prune();
        let status = project.end_prune("others stay").unwrap();
        assert_eq!((status.state, &*status.message), (ProjectState::Orphaned, "others stay"));
        assert!(project.wanted().is_none());
    }

    fn outcome(state: ProjectState, message: &str) -> Outcome {
        Outcome { state, message: message.to_owned(), ..Outcome::default() }
    }

    /// Records a sync of the wanted commit, and returns the status.
    fn record(project: &Project, state: ProjectState, wrote: bool) -> ProjectStatus {
        let wanted = project.wanted().unwrap();
        project.record(&wanted, &outcome(state, state.as_str()), Default::default(), "", wrote);
        project.status()
    }

    #[test]
    fn commit_counts_as_applied_until_a_write_of_it_fails() {
        let project = project();
        project.submit(head(), Vec::new());
        let revision = project.wanted().unwrap().revision.clone();
        for (state, wrote, applied) in [
            (ProjectState::Failed, true, false),
            (ProjectState::Synced, true, true),
            (ProjectState::Failed, false, true),
            (ProjectState::OutOfSync, false, true),
            (ProjectState::Failed, true, false),
            (ProjectState::Held, true, true),
        ] {
            assert_eq!(record(&project, state, wrote).revision == revision, applied, "{state:?}, {wrote}");
        }
        let number = project.wanted().unwrap().number;
        project.submit(head(), Vec::new());
        assert_eq!(project.wanted().unwrap().number, number, "a lost tunnel brings no new commit");
    }

    #[test]
    fn problem_of_the_source_stays_and_hides_no_trouble_of_the_cluster() {
        let project = project();
        project.submit(head(), Vec::new());
        record(&project, ProjectState::Synced, true);
        project.set_problem("Git does not answer".to_owned());
        let shown = |status: ProjectStatus| (status.state, status.message, status.problem);
        let text = str::to_owned;
        let problem = || text("Git does not answer");
        assert_eq!(shown(project.status()), (ProjectState::Failed, problem(), problem()));
        assert_eq!(project.synced_state(), ProjectState::Synced, "health is still looked at");
        // The next looks at the cluster.
        let status = record(&project, ProjectState::Synced, false);
        assert_eq!(shown(status), (ProjectState::Failed, problem(), problem()));
        let status = record(&project, ProjectState::OutOfSync, false);
        assert_eq!(shown(status), (ProjectState::OutOfSync, text("out-of-sync"), problem()));
        let stored = project.status();
        project.submit(head(), Vec::new());
        assert_eq!(shown(project.status()), (ProjectState::OutOfSync, text("out-of-sync"), String::new()));

        let next = Project::new("group/shop");
        next.restore(stored);
        assert_eq!(next.status().problem, "", "the next leader asks kas again");
    }

    /// A command reaches the leader through another pod, just after it has begun to lead.
    #[test]
    fn command_that_is_newer_than_the_last_sync_wakes_a_new_leader() {
        let commands = |requested: &str| [None, None, None, Some(requested.to_owned()), None];
        let project = project();
        project.submit(head(), Vec::new());
        let wanted = project.wanted().unwrap();
        project.record(&wanted, &outcome(ProjectState::Synced, ""), Default::default(), "1000", true);
        assert!(!project.note_commands(commands("1000")) && !project.take_request(), "it was answered");
        assert!(project.note_commands(commands("2000")) && project.take_request());
        assert!(!project.note_commands(commands("2000")), "the status was written");

        let next = Project::new("group/shop");
        next.restore(project.status());
        assert!(next.note_commands(commands("2000")) && next.take_request());
    }
}
