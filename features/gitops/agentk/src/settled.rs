//! The events of a project for kas: what has changed between two states in which it stays.

use proto::{
    events::{EventContent, EventKind, EventSubject, NewAgentEvent, Severity},
    gitops::{ObjectError, ProjectState, ProjectStatus},
};

/// The state of drift after an event that objects are as in Git again.
const CLEAN: &str = "clean";

/// A state in which a project stays until something happens, and what was reported of the project.
///
/// kas leaves out an event whose kind and subject had the same state before. So each kind needs the event that ends a state, also if other
/// states, such as a failure, come in between.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Settled {
    state: ProjectState,
    commit: String,
    /// The commit that the last event of a sync has named as applied.
    applied: Option<String>,
    /// True if the last event about the health said that objects are degraded. `None` if another process may have sent one.
    degraded: Option<bool>,
    /// True if the last event about drift said that somebody else has changed objects. `None` if another process may have sent one.
    drifted: Option<bool>,
}

impl Settled {
    /// Returns the settled state of a status that another process has written, or `None` while a sync runs or nothing was synced.
    pub(super) fn restored(status: &ProjectStatus) -> Option<Self> {
        let (state, commit) = (ProjectState::Pending, String::new());
        Self::after(Some(&Self { state, commit, applied: None, degraded: None, drifted: None }), status)
    }

    /// Returns the settled state of a status that follows another one, or `None` while a sync runs or nothing was synced.
    pub(super) fn after(before: Option<&Self>, status: &ProjectStatus) -> Option<Self> {
        use ProjectState::{Contested, Degraded, Empty, OutOfSync, Pending, Synced, Syncing};

        let state = status.state;
        let commit = status.attempted.as_ref().map(|commit| commit.id.clone()).unwrap_or_default();
        let applied = before.and_then(|before| before.applied.clone());
        let (degraded, drifted) =
            before.map_or((Some(false), Some(false)), |before| (before.degraded, before.drifted));
        let (applied, degraded, drifted) = match state {
            Pending | Syncing => return None,
            Synced | Empty => (Some(commit.clone()), Some(false), Some(false)),
            Degraded => (Some(commit.clone()), Some(true), Some(false)),
            OutOfSync | Contested => (applied, degraded, Some(true)),
            _ => (None, degraded, drifted),
        };
        Some(Self { state, commit, applied, degraded, drifted })
    }
}

/// Returns the events about a project that was in the state `before`, and now has this status.
pub(super) fn events(before: Option<&Settled>, status: &ProjectStatus) -> Vec<NewAgentEvent> {
    use ProjectState::{
        Contested, Degraded, Failed, Held, InventoryLost, Orphaned, OutOfSync, Suspended, Synced,
    };

    let Some(now) = Settled::after(before, status).filter(|now| before != Some(now)) else {
        return Vec::new();
    };
    let event = |kind, severity, message: String| {
        let event = NewAgentEvent::from(describe(status, EventContent::new(kind, severity, message)));
        match kind {
            EventKind::Health => event.with_state(if now.state == Degraded { "degraded" } else { "healthy" }),
            EventKind::Drift if ![OutOfSync, Contested].contains(&now.state) => event.with_state(CLEAN),
            _ => event.with_state(format!("{} {}", now.state.as_str(), now.commit)),
        }
    };
    let message = || format!("{}: {}", now.state.as_str(), status.message);
    let mut events = Vec::new();
    match now.state {
        Failed | InventoryLost => events.push(event(EventKind::Sync, Severity::Error, message())),
        Held | Orphaned => events.push(event(EventKind::Sync, Severity::Warning, message())),
        Suspended => events.push(event(EventKind::Sync, Severity::Info, message())),
        OutOfSync | Contested => events.push(event(EventKind::Drift, Severity::Warning, message())),
        // Only the health of the objects, or the drift, has changed.
        Synced | Degraded if before.is_some_and(|before| before.applied == now.applied) => {}
        _ => events.push(event(EventKind::Sync, Severity::Info, message())),
    }
    let (was_degraded, was_drifted) =
        before.map_or((Some(false), Some(false)), |before| (before.degraded, before.drifted));
    if was_drifted != Some(false) && now.drifted == Some(false) {
        events.push(event(EventKind::Drift, Severity::Info, message()));
    }
    if was_degraded != Some(true) && now.degraded == Some(true) {
        let what = format!("{} of {} objects are degraded", status.objects.degraded, status.objects.total);
        events.push(event(EventKind::Health, Severity::Warning, what));
    }
    if was_degraded != Some(false) && now.degraded == Some(false) {
        let what = "no object is degraded any more".to_owned();
        events.push(event(EventKind::Health, Severity::Info, what));
    }
    events
}

/// Returns the event of a sync that has reverted changes of others.
pub(super) fn reverted(status: &ProjectStatus, objects: &[String], count: u32) -> NewAgentEvent {
    let message = format!("{count} objects that somebody else had changed were made as in Git again");
    let content = EventContent::new(EventKind::Drift, Severity::Warning, message);
    describe(status, content).with_detail("objects", objects.join(", ")).into()
}

/// Adds the project, its commit and its first error.
fn describe(status: &ProjectStatus, content: EventContent) -> EventContent {
    let subject = EventSubject { project: status.project.clone(), ..EventSubject::default() };
    let mut content = content.with_subject(subject).with_detail("reference", &*status.reference);
    if let Some(commit) = &status.attempted {
        content = content.with_detail("commit", &*commit.id);
    }
    if let Some(ObjectError { object, file, message }) = status.errors.first() {
        let object = object.as_ref().map(|object| format!("{object}: ")).unwrap_or_default();
        content = content.with_detail("error", format!("{object}{message}")).with_detail("file", &**file);
    }
    content
}

#[cfg(test)]
mod tests {
    use proto::gitops::CommitInfo;

    use super::*;

    fn status(state: ProjectState, commit: &str) -> ProjectStatus {
        let commit = CommitInfo { id: commit.to_owned(), ..CommitInfo::default() };
        let attempted = Some(commit).filter(|commit| !commit.id.is_empty());
        ProjectStatus { project: "group/shop".to_owned(), state, attempted, ..ProjectStatus::default() }
    }

    /// Returns the kinds and the states of the events of a project that has these states, one after the other.
    fn told(states: &[(ProjectState, &str)]) -> Vec<String> {
        let mut before: Option<Settled> = None;
        let mut told = Vec::new();
        for (state, commit) in states {
            let status = status(*state, commit);
            let events = events(before.as_ref(), &status).into_iter();
            told.extend(events.map(|event| format!("{} {}", event.content.kind, event.state.unwrap())));
            before = Settled::after(before.as_ref(), &status).or(before);
        }
        told
    }

    #[test]
    fn each_commit_is_one_sync() {
        use ProjectState::{Failed, Pending, Synced, Syncing};

        let states =
            [(Pending, ""), (Syncing, ""), (Synced, "a"), (Syncing, "a"), (Synced, "a"), (Syncing, "a")];
        assert_eq!(told(&states), ["sync synced a"], "a look is no event");
        assert_eq!(told(&[(Synced, "a"), (Syncing, "a"), (Synced, "b")]), ["sync synced a", "sync synced b"]);
        let states = [(Failed, "a"), (Syncing, "a"), (Failed, "a"), (Synced, "a")];
        assert_eq!(told(&states), ["sync failed a", "sync synced a"]);
    }

    #[test]
    fn drift_and_health_are_events_of_their_own() {
        use ProjectState::{Degraded, OutOfSync, Synced};

        let states = [(Synced, "a"), (OutOfSync, "a"), (Synced, "a")];
        assert_eq!(told(&states), ["sync synced a", "drift out-of-sync a", "drift clean"]);
        let states = [(Synced, "a"), (ProjectState::Contested, "a"), (Synced, "a")];
        assert_eq!(told(&states), ["sync synced a", "drift contested a", "drift clean"]);
        let states = [(Synced, "a"), (Degraded, "a"), (Synced, "a")];
        assert_eq!(told(&states), ["sync synced a", "health degraded", "health healthy"]);
        let states = [(Degraded, "a"), (Synced, "b")];
        assert_eq!(told(&states), ["sync degraded a", "health degraded", "sync synced b", "health healthy"]);
    }

    /// Returns the events that kas keeps: it leaves out one whose kind had the same state before.
    fn kept(told: &[String]) -> Vec<&str> {
        let mut states = std::collections::HashMap::new();
        let is_new = |event: &&str| {
            let (kind, state) = event.split_once(' ').unwrap();
            states.insert(kind.to_owned(), state.to_owned()).as_deref() != Some(state)
        };
        told.iter().map(String::as_str).filter(is_new).collect()
    }

    #[test]
    fn state_that_returns_after_a_failure_is_an_event_again() {
        use ProjectState::{Degraded, Failed, Held, OutOfSync, Suspended, Synced};

        for between in [Failed, Held, Suspended, OutOfSync] {
            let states = [(Degraded, "a"), (between, "a"), (Synced, "a"), (Degraded, "a")];
            let told = told(&states);
            let health = kept(&told).into_iter().filter(|event| event.starts_with("health"));
            let expected = ["health degraded", "health healthy", "health degraded"];
            assert_eq!(health.collect::<Vec<_>>(), expected, "{between:?}");
        }
        let states = [
            (Synced, "a"),
            (OutOfSync, "a"),
            (Synced, "b"),
            (OutOfSync, "a"),
            (Failed, "a"),
            (Degraded, "a"),
            (OutOfSync, "a"),
        ];
        let told = told(&states);
        let drift = kept(&told).into_iter().filter(|event| event.starts_with("drift"));
        let (drifted, clean) = ("drift out-of-sync a", "drift clean");
        assert_eq!(drift.collect::<Vec<_>>(), [drifted, clean, drifted, clean, drifted]);
        assert!(told.contains(&"sync degraded a".to_owned()), "it was not applied before: {told:?}");
    }

    #[test]
    fn process_that_takes_over_ends_the_states_that_it_does_not_know() {
        let restored = Settled::restored(&status(ProjectState::Failed, "a"));
        let kinds = |state| {
            let events = events(restored.as_ref(), &status(state, "a")).into_iter();
            events.map(|event| format!("{} {}", event.content.kind, event.state.unwrap())).collect::<Vec<_>>()
        };
        assert_eq!(kinds(ProjectState::Synced), ["sync synced a", "drift clean", "health healthy"]);
        assert_eq!(kinds(ProjectState::Degraded), ["sync degraded a", "drift clean", "health degraded"]);
        let restored = Settled::restored(&status(ProjectState::Synced, "a"));
        assert!(events(restored.as_ref(), &status(ProjectState::Synced, "a")).is_empty());
    }

    #[test]
    fn event_names_the_project_the_commit_and_the_first_error() {
        let error =
            ObjectError { object: None, file: "web.yaml:3".to_owned(), message: "quota exceeded".to_owned() };
        let failed = ProjectStatus { errors: vec![error], ..status(ProjectState::Failed, "abc") };
        let content = &events(None, &failed)[0].content;
        assert_eq!((content.severity, &*content.subject.project), (Severity::Error, "group/shop"));
        let detail = |name: &str| &*content.details[name];
        assert_eq!(
            (detail("commit"), detail("file"), detail("error")),
            ("abc", "web.yaml:3", "quota exceeded")
        );
    }
}
