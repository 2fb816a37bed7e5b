//! The events of a project for kas: what has changed between two states in which it stays.

use proto::{
    events::{EventContent, EventKind, EventSubject, NewAgentEvent, Severity},
    gitops::{ObjectError, ProjectState, ProjectStatus},
};

/// A state in which a project stays until something happens, and the commit that it is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Settled {
    state: ProjectState,
    commit: String,
}

impl Settled {
    /// Returns the settled state of a status, or `None` while a sync runs or nothing was synced.
    pub(super) fn of(status: &ProjectStatus) -> Option<Self> {
        let settled = !matches!(status.state, ProjectState::Pending | ProjectState::Syncing);
        let commit = status.attempted.as_ref().map(|commit| commit.id.clone()).unwrap_or_default();
        settled.then_some(Self { state: status.state, commit })
    }
}

/// Returns the events about a project that was in the state `before`, and now has this status.
pub(super) fn events(before: Option<&Settled>, status: &ProjectStatus) -> Vec<NewAgentEvent> {
    use ProjectState::{Degraded, Failed, Held, Orphaned, OutOfSync, Suspended, Synced};

    let Some(now) = Settled::of(status).filter(|now| before != Some(now)) else { return Vec::new() };
    let state_before = before.map(|before| before.state);
    let same_commit = before.is_some_and(|before| before.commit == now.commit);
    let event = |kind, severity, message: String| {
        let event = NewAgentEvent::from(describe(status, EventContent::new(kind, severity, message)));
        match kind {
            EventKind::Health => event.with_state(if now.state == Degraded { "degraded" } else { "healthy" }),
            _ => event.with_state(format!("{} {}", now.state.as_str(), now.commit)),
        }
    };
    let message = || format!("{}: {}", now.state.as_str(), status.message);
    let mut events = Vec::new();
    match now.state {
        Failed => events.push(event(EventKind::Sync, Severity::Error, message())),
        Held | Orphaned => events.push(event(EventKind::Sync, Severity::Warning, message())),
        Suspended => events.push(event(EventKind::Sync, Severity::Info, message())),
        OutOfSync => events.push(event(EventKind::Drift, Severity::Warning, message())),
        // The objects are as in Git again.
        Synced | Degraded if same_commit && state_before == Some(OutOfSync) => {
            events.push(event(EventKind::Drift, Severity::Info, message()));
        }
        // Only the health of the objects has changed.
        Synced | Degraded if same_commit && matches!(state_before, Some(Synced | Degraded)) => {}
        _ => events.push(event(EventKind::Sync, Severity::Info, message())),
    }
    match (state_before == Some(Degraded), now.state) {
        (false, Degraded) => {
            let what =
                format!("{} of {} objects are degraded", status.objects.degraded, status.objects.total);
            events.push(event(EventKind::Health, Severity::Warning, what));
        }
        (true, Synced) => {
            events.push(event(
                EventKind::Health,
                Severity::Info,
                "no object is degraded any more".to_owned(),
            ));
        }
        _ => {}
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
            before = Settled::of(&status).or(before);
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
        assert_eq!(told(&states), ["sync synced a", "drift out-of-sync a", "drift synced a"]);
        let states = [(Synced, "a"), (Degraded, "a"), (Synced, "a")];
        assert_eq!(told(&states), ["sync synced a", "health degraded", "health healthy"]);
        let states = [(Degraded, "a"), (Synced, "b")];
        assert_eq!(told(&states), ["sync degraded a", "health degraded", "sync synced b", "health healthy"]);
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
