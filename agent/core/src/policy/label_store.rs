//! The labels of the namespaces, by which the rules of a policy select.

use std::{
    mem,
    sync::atomic::{
        AtomicU64,
        Ordering::{Acquire, Release},
    },
};

use agentk_policy::NamespaceLabels;
use parking_lot::RwLock;
use tokio::{sync::watch, time::Instant};

/// The labels of the namespaces. Until they are set, they are not known. Requests only read them, and one task sets them.
#[derive(Debug, Default)]
pub struct LabelStore {
    known: RwLock<KnownLabels>,
    /// The number of changes.
    generation: AtomicU64,
    announcements: watch::Sender<()>,
}

#[derive(Debug, Default)]
struct KnownLabels {
    labels: NamespaceLabels,
    /// The time until which they are used. It holds also if the task that sets them has stopped.
    until: Option<Instant>,
}

impl LabelStore {
    /// Reads the labels. A change waits meanwhile.
    pub fn read<T>(&self, read: impl FnOnce(&NamespaceLabels) -> T) -> T {
        let known = self.known.read();
        match known.until {
            Some(until) if until <= Instant::now() => read(&NamespaceLabels::default()),
            _ => read(&known.labels),
        }
    }

    /// Sets labels that are used until a time.
    pub fn set(&self, labels: NamespaceLabels, until: Instant) {
        self.replace(labels, Some(until));
    }

    /// Sets the reason why no labels are known. Returns whether it is another one.
    pub fn set_unknown(&self, problem: &'static str) -> bool {
        self.replace(NamespaceLabels::unknown(problem), None)
    }

    /// Forgets the labels, which nothing needs.
    pub(crate) fn forget(&self) {
        self.replace(NamespaceLabels::default(), None);
    }

    /// Returns the time until which the labels are used, if they are known.
    pub(crate) fn usable_until(&self) -> Option<Instant> {
        self.known.read().until
    }

    /// Has the requests in flight judged again if the labels are others. Returns whether they are.
    fn replace(&self, labels: NamespaceLabels, until: Option<Instant>) -> bool {
        if self.known.read().labels == labels {
            self.known.write().until = until;
            return false;
        }
        let mut known = self.known.write();
        let before = mem::replace(&mut *known, KnownLabels { labels, until });
        self.generation.fetch_add(1, Release);
        drop(known);
        // Requests do not wait until the memory of many labels is free.
        drop(before);
        self.announcements.send_replace(());
        true
    }

    /// Returns a receiver of each change after this call.
    pub fn announcements(&self) -> watch::Receiver<()> {
        self.announcements.subscribe()
    }

    /// Returns the number of changes. Labels that are read after this call have at least these.
    pub(super) fn generation(&self) -> u64 {
        self.generation.load(Acquire)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// The task that sets the labels may have ended by a defect.
    #[tokio::test(start_paused = true)]
    async fn labels_that_nobody_sets_again_expire() {
        let (store, age) = (LabelStore::default(), Duration::from_secs(60));
        let keys = || ["team".to_owned()].into();
        let is_known = |store: &LabelStore| store.read(|labels| labels.covers(&keys()));
        assert!(!is_known(&store));
        store.set(NamespaceLabels::empty(keys()), Instant::now() + age);
        assert!(is_known(&store));
        tokio::time::advance(age / 2).await;
        let announced = store.announcements();
        store.set(NamespaceLabels::empty(keys()), Instant::now() + age);
        assert!(!announced.has_changed().unwrap(), "the labels are the same");
        tokio::time::advance(age * 2 / 3).await;
        assert!(is_known(&store));
        tokio::time::advance(age).await;
        assert!(!is_known(&store));
    }
}
