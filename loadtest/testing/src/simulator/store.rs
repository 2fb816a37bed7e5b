//! The store of the simulated cluster: objects by key, one revision counter, and recent changes.
//!
//! Watches read the recent changes by revision instead of having queues, so a slow reader uses no memory
//! and receives an error, as from a real API server, when its revision has expired.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use parking_lot::RwLock;
use serde_json::Value;
use tokio::sync::watch;

use crate::simulator::{resources::Resource, selector::section};

/// The key of an object. The namespace is empty for cluster-scoped objects.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Key {
    pub plural: &'static str,
    pub namespace: String,
    pub name: String,
}

impl Key {
    pub(crate) fn new(resource: &Resource, namespace: &str, name: &str) -> Self {
        Self { plural: resource.plural, namespace: namespace.to_owned(), name: name.to_owned() }
    }
}

/// The change of one object in one revision.
#[derive(Debug)]
pub(crate) struct Change {
    pub revision: u64,
    pub key: Key,
    pub before: Option<Arc<Value>>,
    pub after: Option<Arc<Value>>,
}

/// The error for a revision that has expired or does not exist yet.
#[derive(Debug)]
pub(crate) struct ExpiredError;

/// The mode of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WriteMode {
    Commit,
    DryRun,
}

/// Objects and the revision of their state.
#[derive(Debug)]
pub(crate) struct Snapshot {
    pub revision: u64,
    pub objects: Vec<(Key, Arc<Value>)>,
}

#[derive(Debug, Default)]
pub(crate) struct Store {
    state: RwLock<State>,
    latest: watch::Sender<u64>,
    serial: AtomicU64,
}

impl Store {
    pub(crate) fn get(&self, key: &Key) -> Option<Arc<Value>> {
        self.state.read().objects.get(key).cloned()
    }

    /// Returns the objects of a kind in one namespace or in all, ordered by key.
    pub(crate) fn list(&self, resource: &Resource, namespace: Option<&str>) -> Snapshot {
        let state = self.state.read();
        let start = Key::new(resource, namespace.unwrap_or_default(), "");
        let objects = state
            .objects
            .range(start..)
            .take_while(|(key, _)| {
                key.plural == resource.plural && namespace.is_none_or(|wanted| key.namespace == wanted)
            })
            .map(|(key, object)| (key.clone(), Arc::clone(object)))
            .collect();
        Snapshot { revision: state.revision, objects }
    }

    /// Replaces an object by the result of `edit`, atomically.
    pub(crate) fn put<E>(
        &self,
        key: &Key,
        mode: WriteMode,
        edit: impl FnOnce(Option<&Value>) -> Result<Value, E>,
    ) -> Result<Arc<Value>, E> {
        let mut state = self.state.write();
        let before = state.objects.get(key).cloned();
        let mut object = edit(before.as_deref())?;
        if let Some(before) = before {
            set_revision(&mut object, before["metadata"]["resourceVersion"].clone());
            if object == *before {
                return Ok(before);
            }
        }
        if mode == WriteMode::DryRun {
            return Ok(Arc::new(object));
        }
        set_revision(&mut object, Value::String((state.revision + 1).to_string()));
        let object = Arc::new(object);
        self.commit(&mut state, key.clone(), Some(Arc::clone(&object)));
        Ok(object)
    }

    /// Removes an object if `check` succeeds, and returns it.
    pub(crate) fn remove<E>(
        &self,
        key: &Key,
        mode: WriteMode,
        check: impl FnOnce(&Value) -> Result<(), E>,
    ) -> Result<Option<Arc<Value>>, E> {
        let mut state = self.state.write();
        let Some(object) = state.objects.get(key).cloned() else { return Ok(None) };
        check(&object)?;
        if mode == WriteMode::Commit {
            self.commit(&mut state, key.clone(), None);
        }
        Ok(Some(object))
    }

    /// Removes every object of a namespace.
    pub(crate) fn clear_namespace(&self, namespace: &str) {
        let mut state = self.state.write();
        let keys: Vec<Key> = state.objects.keys().filter(|key| key.namespace == namespace).cloned().collect();
        for key in keys {
            self.commit(&mut state, key, None);
        }
    }

    /// Returns all changes after a revision, oldest first.
    pub(crate) fn changes_after(&self, revision: u64) -> Result<Vec<Arc<Change>>, ExpiredError> {
        let state = self.state.read();
        let behind = state.revision.checked_sub(revision).ok_or(ExpiredError)?;
        let behind = usize::try_from(behind).map_err(|_| ExpiredError)?;
        let skip = state.history.len().checked_sub(behind).ok_or(ExpiredError)?;
        Ok(state.history.range(skip..).cloned().collect())
    }

    /// Returns a channel with the latest revision.
    pub(crate) fn subscribe(&self) -> watch::Receiver<u64> {
        self.latest.subscribe()
    }

    /// Returns a unique number for names, addresses and uids.
    pub(crate) fn serial(&self) -> u64 {
        self.serial.fetch_add(1, Ordering::Relaxed) + 1
    }

    fn commit(&self, state: &mut State, key: Key, after: Option<Arc<Value>>) {
        let before = match &after {
            Some(object) => state.objects.insert(key.clone(), Arc::clone(object)),
            None => state.objects.remove(&key),
        };
        state.revision += 1;
        if state.history.len() == HISTORY {
            state.history.pop_front();
        }
        state.history.push_back(Arc::new(Change { revision: state.revision, key, before, after }));
        self.latest.send_replace(state.revision);
    }
}

/// The number of recent changes that are kept for watches.
const HISTORY: usize = 4096;

#[derive(Debug, Default)]
struct State {
    objects: BTreeMap<Key, Arc<Value>>,
    revision: u64,
    history: VecDeque<Arc<Change>>,
}

fn set_revision(object: &mut Value, revision: Value) {
    section(object, "metadata").insert("resourceVersion".to_owned(), revision);
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use serde_json::json;

    use super::super::resources::CONFIG_MAPS;
    use super::*;

    fn write(store: &Store, value: usize) {
        let key = Key::new(&CONFIG_MAPS, "demo", "counter");
        let written = store.put(&key, WriteMode::Commit, |_| Ok::<_, Infallible>(json!({ "data": value })));
        assert_eq!(written.expect("infallible")["data"], value);
    }

    #[test]
    fn old_changes_expire() {
        let store = Store::default();
        (0..HISTORY + 2).for_each(|value| write(&store, value));
        assert!(store.changes_after(1).is_err(), "too old");
        assert_eq!(store.changes_after(2).expect("kept").len(), HISTORY);
        assert!(store.changes_after(HISTORY as u64 + 2).expect("present").is_empty());
        assert!(store.changes_after(HISTORY as u64 + 3).is_err(), "from another store");
    }

    #[test]
    fn identical_write_is_no_change() {
        let store = Store::default();
        write(&store, 1);
        write(&store, 1);
        assert_eq!(store.list(&CONFIG_MAPS, None).revision, 1);
    }
}
