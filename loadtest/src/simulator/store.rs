//! Everything the simulated cluster knows: objects by key, one revision counter, and recent changes.
//!
//! Watches read the recent changes by revision instead of subscribing to a queue of their own, so a slow
//! reader costs nothing and learns, like from a real API server, that its revision has expired.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::RwLock;
use serde_json::Value;
use tokio::sync::watch;

use super::fields::section;
use super::resources::Resource;

/// Where an object lives. The namespace is empty for objects that have none.
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

/// What one revision did to one object.
#[derive(Debug)]
pub(crate) struct Change {
    pub revision: u64,
    pub key: Key,
    pub before: Option<Arc<Value>>,
    pub after: Option<Arc<Value>>,
}

/// The requested revision is no longer, or not yet, known.
#[derive(Debug)]
pub(crate) struct Expired;

/// Whether a write is to be kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    Commit,
    DryRun,
}

/// Some objects, and the revision at which they looked like that.
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

    /// The objects of a kind, of one namespace or of all, in the order of their keys.
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

    /// Writes what `edit` makes of the present object, under one lock.
    pub(crate) fn put<E>(
        &self,
        key: &Key,
        mode: Mode,
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
        if mode == Mode::DryRun {
            return Ok(Arc::new(object));
        }
        set_revision(&mut object, Value::String((state.revision + 1).to_string()));
        let object = Arc::new(object);
        self.commit(&mut state, key.clone(), Some(Arc::clone(&object)));
        Ok(object)
    }

    /// Removes an object if `check` agrees, and returns what it was.
    pub(crate) fn remove<E>(
        &self,
        key: &Key,
        mode: Mode,
        check: impl FnOnce(&Value) -> Result<(), E>,
    ) -> Result<Option<Arc<Value>>, E> {
        let mut state = self.state.write();
        let Some(object) = state.objects.get(key).cloned() else { return Ok(None) };
        check(&object)?;
        if mode == Mode::Commit {
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

    /// Every change after a revision, oldest first.
    pub(crate) fn changes_after(&self, revision: u64) -> Result<Vec<Arc<Change>>, Expired> {
        let state = self.state.read();
        let behind = state.revision.checked_sub(revision).ok_or(Expired)?;
        let behind = usize::try_from(behind).map_err(|_| Expired)?;
        let skip = state.history.len().checked_sub(behind).ok_or(Expired)?;
        Ok(state.history.range(skip..).cloned().collect())
    }

    /// Tells about each new revision.
    pub(crate) fn subscribe(&self) -> watch::Receiver<u64> {
        self.latest.subscribe()
    }

    /// A number that nothing else here has got, for names, addresses and uids.
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

/// How many changes a watch may be behind.
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
        let written = store.put(&key, Mode::Commit, |_| Ok::<_, Infallible>(json!({ "data": value })));
        assert_eq!(written.expect("infallible")["data"], value);
    }

    #[test]
    fn changes_are_kept_for_a_while_and_then_expire() {
        let store = Store::default();
        (0..HISTORY + 2).for_each(|value| write(&store, value));
        assert!(store.changes_after(1).is_err(), "too old");
        assert_eq!(store.changes_after(2).expect("kept").len(), HISTORY);
        assert!(store.changes_after(HISTORY as u64 + 2).expect("present").is_empty());
        assert!(store.changes_after(HISTORY as u64 + 3).is_err(), "from another store");
    }

    #[test]
    fn writing_the_same_again_is_no_change() {
        let store = Store::default();
        write(&store, 1);
        write(&store, 1);
        assert_eq!(store.list(&CONFIG_MAPS, None).revision, 1);
    }
}
