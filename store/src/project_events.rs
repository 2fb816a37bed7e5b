//! The latest events of Git projects: the rule by which they are kept, and the table in memory.
//!
//! Only projects that an agent has named have events here, so that pushes to other projects take no memory.

use std::{
    collections::HashMap,
    fmt,
    time::{Duration, SystemTime},
};

use futures_util::future::BoxFuture;
use proto::notify::ProjectEvent;

use crate::routes::StoreError;

/// The most projects whose events are kept. The ones that were named first are forgotten.
pub(crate) const MAX_NAMED_PROJECTS: usize = 10_000;
/// The most references of one project whose latest event is kept. The oldest event is forgotten.
pub(crate) const MAX_REFERENCES: usize = 100;
/// The time after which a project that no agent has named again is forgotten.
pub(crate) const PROJECT_TTL: Duration = Duration::from_secs(365 * 86_400);

/// The result of recording an event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RecordedEvent {
    /// It is the latest event of its reference now, with this number.
    New(ProjectEvent),
    /// It was the latest event of its reference before.
    Known,
    /// No agent has named the project, so that the event is not kept.
    UnknownProject,
}

/// The latest events of Git projects that replicas share.
pub trait ProjectEventStore: fmt::Debug + Send + Sync + 'static {
    /// Notes that an agent has named projects, whose latest events are kept from now on. It is not written to memory only.
    fn name_projects<'a>(&'a self, projects: &'a [String]) -> BoxFuture<'a, Result<(), StoreError>>;

    /// Keeps an event as the latest one of its reference, unless it is that already, or no agent has named its project.
    ///
    /// After an error the event may be kept all the same. Recording it again is safe.
    fn record_event<'a>(
        &'a self,
        event: &'a ProjectEvent,
    ) -> BoxFuture<'a, Result<RecordedEvent, StoreError>>;

    /// Returns the latest event of each reference of a project, in no order. It is not read from memory, and not trusted.
    fn latest_events<'a>(&'a self, project: &'a str) -> BoxFuture<'a, Result<Vec<ProjectEvent>, StoreError>>;
}

/// The latest events in memory. The script `record_event.lua` has the same rule.
#[derive(Debug, Default)]
pub(crate) struct ProjectEventTable(HashMap<String, NamedProject>);

#[derive(Debug)]
struct NamedProject {
    named: SystemTime,
    last: u64,
    events: HashMap<String, ProjectEvent>,
}

impl ProjectEventTable {
    /// Notes that an agent has named a project.
    pub(crate) fn name_project(&mut self, project: &str, now: SystemTime) {
        if let Some(known) = self.0.get_mut(project) {
            known.named = now;
            return;
        }
        if self.0.len() >= MAX_NAMED_PROJECTS {
            let oldest = self.0.iter().min_by_key(|(_, known)| known.named).map(|(path, _)| path.clone());
            oldest.and_then(|oldest| self.0.remove(&oldest));
        }
        self.0.insert(project.to_owned(), NamedProject { named: now, last: 0, events: HashMap::new() });
    }

    /// Keeps an event as the latest one of its reference.
    pub(crate) fn record(&mut self, event: &ProjectEvent, now: SystemTime) -> RecordedEvent {
        let Some(known) = self.0.get_mut(event.project()) else { return RecordedEvent::UnknownProject };
        let latest = known.events.get(event.reference());
        if latest.is_some_and(|latest| latest.id() == event.id()) {
            return RecordedEvent::Known;
        }
        if latest.is_none() && known.events.len() >= MAX_REFERENCES {
            let oldest = known.events.values().min_by_key(|event| event.fields().sequence);
            let oldest = oldest.map(|event| event.reference().to_owned());
            oldest.and_then(|oldest| known.events.remove(&oldest));
        }
        let millis = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_millis();
        known.last = (known.last + 1).max(u64::try_from(millis).unwrap_or(u64::MAX));
        let event = event.with_sequence(known.last);
        known.events.insert(event.reference().to_owned(), event.clone());
        RecordedEvent::New(event)
    }

    /// Returns the latest event of each reference of a project, in no order.
    pub(crate) fn latest(&self, project: &str) -> Vec<ProjectEvent> {
        self.0.get(project).into_iter().flat_map(|known| known.events.values().cloned()).collect()
    }
}

#[cfg(test)]
mod tests {
    use proto::notify::ProjectEventFields;

    use super::*;

    fn event(project: &str, reference: &str, id: &str) -> ProjectEvent {
        let fields = ProjectEventFields {
            id: id.to_owned(),
            sequence: 0,
            project: project.to_owned(),
            reference: Some(reference.to_owned()),
            before: None,
            after: None,
            urls: Vec::new(),
            time: SystemTime::UNIX_EPOCH,
        };
        fields.try_into().unwrap()
    }

    #[test]
    fn latest_event_of_each_reference_is_kept_once() {
        let (mut table, now) = (ProjectEventTable::default(), SystemTime::now());
        let first = event("a/b", "refs/heads/main", "1");
        assert_eq!(table.record(&first, now), RecordedEvent::UnknownProject);
        table.name_project("a/b", now);
        let RecordedEvent::New(recorded) = table.record(&first, now) else { panic!("it is new") };
        assert_eq!(table.record(&first, now), RecordedEvent::Known);
        // The clock does not go on, and the order is kept.
        let RecordedEvent::New(second) = table.record(&event("a/b", "refs/heads/main", "2"), now) else {
            panic!()
        };
        assert!(second.fields().sequence > recorded.fields().sequence);
        // A branch may return to a former commit.
        let RecordedEvent::New(third) = table.record(&first, now) else { panic!("it is new again") };
        table.record(&event("a/b", "refs/tags/v1", "3"), now);
        let mut latest: Vec<String> = table.latest("a/b").iter().map(|event| event.id().to_owned()).collect();
        latest.sort();
        assert_eq!((latest, third.id()), (vec!["1".to_owned(), "3".to_owned()], "1"));
    }

    #[test]
    fn references_and_projects_are_bounded() {
        let (mut table, now) = (ProjectEventTable::default(), SystemTime::now());
        table.name_project("a/b", now);
        for number in 0..=MAX_REFERENCES {
            table.record(&event("a/b", &format!("refs/heads/{number}"), "1"), now);
        }
        let latest = table.latest("a/b");
        assert_eq!(latest.len(), MAX_REFERENCES);
        assert!(
            latest.iter().all(|event| event.reference() != "refs/heads/0"),
            "the oldest one is forgotten"
        );
        for number in 0..MAX_NAMED_PROJECTS {
            table.name_project(&format!("c/{number}"), now + Duration::from_secs(1));
        }
        assert_eq!(table.record(&event("a/b", "refs/heads/x", "1"), now), RecordedEvent::UnknownProject);
    }
}
