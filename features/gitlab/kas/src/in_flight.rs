//! The requests in flight of subjects that GitLab knows. All credentials of a subject share one limit.

use std::{
    collections::HashMap,
    sync::{Arc, Weak, atomic::AtomicU32},
};

use parking_lot::Mutex;

/// A caller by its id in GitLab.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Subject {
    Job(u64),
    User(u64),
    Project(u64),
}

/// The counters of the subjects that have a credential in use. Clones are cheap, and share them.
#[derive(Clone, Debug, Default)]
pub struct InFlightCounters(Arc<Mutex<HashMap<Subject, Weak<AtomicU32>>>>);

impl InFlightCounters {
    /// Returns the counter of a subject.
    pub(super) fn of(&self, subject: Subject) -> Arc<AtomicU32> {
        let mut counters = self.0.lock();
        if let Some(counter) = counters.get(&subject).and_then(Weak::upgrade) {
            return counter;
        }
        // The table doubles before it is searched, so that the cost of a new counter is constant on average.
        if counters.len() == counters.capacity() {
            counters.retain(|_, counter| counter.strong_count() > 0);
        }
        let counter = Arc::default();
        counters.insert(subject, Arc::downgrade(&counter));
        counter
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_of_a_subject_share_its_counter() {
        let counters = InFlightCounters::default();
        let alice = counters.of(Subject::User(5));
        assert!(Arc::ptr_eq(&alice, &counters.of(Subject::User(5))));
        for other in [Subject::User(6), Subject::Job(5), Subject::Project(5)] {
            assert!(!Arc::ptr_eq(&alice, &counters.of(other)), "{other:?}");
        }
    }

    #[test]
    fn counters_of_subjects_that_left_are_removed() {
        let counters = InFlightCounters::default();
        let alice = counters.of(Subject::User(5));
        for id in 0..10_000 {
            counters.of(Subject::Job(id));
        }
        assert!(counters.0.lock().len() < 1000);
        assert!(Arc::ptr_eq(&alice, &counters.of(Subject::User(5))));
    }
}
