//! Values that exist while somebody uses them, one for each key.

use std::{
    collections::HashMap,
    hash::Hash,
    sync::{Arc, Weak},
};

use parking_lot::Mutex;

/// Returns the value of a key that others share while they use it.
pub(super) fn shared<K: Copy + Eq + Hash, V>(
    values: &Mutex<HashMap<K, Weak<V>>>,
    key: K,
    new: impl FnOnce() -> V,
) -> Arc<V> {
    let mut values = values.lock();
    values.get(&key).and_then(Weak::upgrade).unwrap_or_else(|| {
        values.retain(|_, value| value.strong_count() > 0);
        let value = Arc::new(new());
        values.insert(key, Arc::downgrade(&value));
        value
    })
}
