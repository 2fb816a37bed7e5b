//! The events that one tunnel has to send. No I/O.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use proto::notify::ProjectEvent;

/// The project and the reference of an event.
type Key = (String, String);

/// The events of the wanted projects that agentk has not accepted yet: the latest one of each reference.
#[derive(Debug, Default)]
pub(super) struct Outbox {
    wanted: BTreeSet<String>,
    /// The events that are to be sent, each with the number of failed attempts.
    unsent: BTreeMap<Key, (ProjectEvent, u32)>,
    /// The numbers of the events that agentk has accepted last.
    accepted: HashMap<Key, u64>,
}

impl Outbox {
    /// Replaces the wanted projects. Returns those that were not wanted before.
    pub(super) fn set_wanted(&mut self, wanted: BTreeSet<String>) -> Vec<String> {
        let new = wanted.difference(&self.wanted).cloned().collect();
        self.unsent.retain(|(project, _), _| wanted.contains(project));
        // A pod that leads again may not have what it accepted before.
        self.accepted.retain(|(project, _), _| wanted.contains(project));
        self.wanted = wanted;
        new
    }

    /// Returns the wanted projects.
    pub(super) fn wanted(&self) -> &BTreeSet<String> {
        &self.wanted
    }

    /// Adds an event, unless it is not wanted, or agentk has accepted it or a later one.
    pub(super) fn add(&mut self, event: &ProjectEvent) {
        let key = key(event);
        let sequence = event.fields().sequence;
        let is_new = self.wanted.contains(&key.0)
            && self.accepted.get(&key).is_none_or(|accepted| *accepted < sequence)
            && self.unsent.get(&key).is_none_or(|(unsent, _)| unsent.fields().sequence < sequence);
        if is_new {
            self.unsent.insert(key, (event.clone(), 0));
        }
    }

    /// Returns the event that is to be sent next, and the number of failed attempts. One that fails does not hold up the others.
    pub(super) fn next(&self) -> Option<(ProjectEvent, u32)> {
        self.unsent.values().min_by_key(|(event, failures)| (*failures, event.fields().sequence)).cloned()
    }

    /// Notes that an attempt has failed.
    pub(super) fn defer(&mut self, event: &ProjectEvent) {
        if let Some((unsent, failures)) = self.unsent.get_mut(&key(event))
            && unsent.id() == event.id()
        {
            *failures = failures.saturating_add(1);
        }
    }

    /// Notes that agentk has accepted an event.
    pub(super) fn accept(&mut self, event: &ProjectEvent) {
        let (key, sequence) = (key(event), event.fields().sequence);
        if !self.wanted.contains(&key.0) {
            return;
        }
        if self.unsent.get(&key).is_some_and(|(unsent, _)| unsent.fields().sequence <= sequence) {
            self.unsent.remove(&key);
        }
        self.accepted.insert(key, sequence);
    }
}

fn key(event: &ProjectEvent) -> Key {
    (event.project().to_owned(), event.reference().to_owned())
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use proto::notify::ProjectEventFields;

    use super::*;

    fn event(project: &str, reference: &str, sequence: u64) -> ProjectEvent {
        let fields = ProjectEventFields {
            id: format!("e-{sequence}"),
            sequence,
            project: project.to_owned(),
            reference: Some(reference.to_owned()),
            before: None,
            after: None,
            urls: Vec::new(),
            time: SystemTime::UNIX_EPOCH,
        };
        fields.try_into().unwrap()
    }

    fn wanted(projects: &[&str]) -> BTreeSet<String> {
        projects.iter().copied().map(str::to_owned).collect()
    }

    fn next(outbox: &Outbox) -> Option<u64> {
        outbox.next().map(|(event, _)| event.fields().sequence)
    }

    #[test]
    fn latest_event_of_each_reference_is_sent_once() {
        let mut outbox = Outbox::default();
        assert_eq!(outbox.set_wanted(wanted(&["a/b"])), ["a/b"]);
        assert!(outbox.set_wanted(wanted(&["a/b"])).is_empty());
        outbox.add(&event("a/b", "refs/heads/main", 2));
        outbox.add(&event("a/b", "refs/heads/main", 1));
        outbox.add(&event("a/b", "refs/heads/main", 4));
        outbox.add(&event("a/b", "refs/heads/other", 3));
        outbox.add(&event("c/d", "refs/heads/main", 1));
        assert_eq!(next(&outbox), Some(3));
        let (sent, _) = outbox.next().unwrap();
        outbox.accept(&sent);
        assert_eq!(next(&outbox), Some(4));
        let (sent, _) = outbox.next().unwrap();
        // It changes again while it is sent.
        outbox.add(&event("a/b", "refs/heads/main", 5));
        outbox.accept(&sent);
        assert_eq!(next(&outbox), Some(5));
        let (sent, _) = outbox.next().unwrap();
        outbox.accept(&sent);
        outbox.add(&event("a/b", "refs/heads/main", 5));
        assert_eq!(next(&outbox), None);
    }

    #[test]
    fn event_that_fails_does_not_hold_up_the_others() {
        let mut outbox = Outbox::default();
        outbox.set_wanted(wanted(&["a/b", "c/d"]));
        outbox.add(&event("a/b", "refs/heads/main", 1));
        outbox.add(&event("c/d", "refs/heads/main", 2));
        outbox.defer(&event("a/b", "refs/heads/main", 1));
        assert_eq!(next(&outbox), Some(2));
        outbox.accept(&event("c/d", "refs/heads/main", 2));
        assert_eq!(outbox.next().map(|(event, failures)| (event.fields().sequence, failures)), Some((1, 1)));
        outbox.add(&event("a/b", "refs/heads/main", 3));
        assert_eq!(outbox.next().map(|(event, failures)| (event.fields().sequence, failures)), Some((3, 0)));
    }

    #[test]
    fn pod_that_leads_again_receives_everything_again() {
        let mut outbox = Outbox::default();
        outbox.set_wanted(wanted(&["a/b"]));
        outbox.add(&event("a/b", "refs/heads/main", 1));
        let (sent, _) = outbox.next().unwrap();
        outbox.accept(&sent);
        let sent = event("a/b", "refs/heads/main", 2);
        outbox.add(&sent);
        outbox.set_wanted(wanted(&[]));
        assert_eq!(next(&outbox), None, "another pod leads");
        outbox.accept(&sent);
        outbox.set_wanted(wanted(&["a/b"]));
        outbox.add(&sent);
        assert_eq!(next(&outbox), Some(2));
    }
}
