//! A map whose values exist while they are used.

use std::{
    collections::HashMap,
    hash::Hash,
    sync::{Arc, Weak},
};

use parking_lot::Mutex;

/// Values that are shared by all that use the same key at the same time.
#[derive(Debug)]
pub struct WeakMap<K, V>(Mutex<HashMap<K, Weak<V>>>);

impl<K: Copy + Eq + Hash, V> WeakMap<K, V> {
    /// Returns the value of a key, if it is used.
    pub(crate) fn get(&self, key: K) -> Option<Arc<V>> {
        self.0.lock().get(&key).and_then(Weak::upgrade)
    }

    /// Returns the value of a key, which is a new one unless it is used.
    pub fn get_or_insert_with(&self, key: K, new: impl FnOnce() -> V) -> Arc<V> {
        let mut values = self.0.lock();
        values.get(&key).and_then(Weak::upgrade).unwrap_or_else(|| {
            values.retain(|_, value| value.strong_count() > 0);
            let value = Arc::new(new());
            values.insert(key, Arc::downgrade(&value));
            value
        })
    }

    /// Calls a function for each value that is used.
    pub(crate) fn for_each(&self, call: impl Fn(&V)) {
        self.0.lock().values().filter_map(Weak::upgrade).for_each(|value| call(&value));
    }
}

impl<K, V> Default for WeakMap<K, V> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}
