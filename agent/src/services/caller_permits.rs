//! Permits that callers share. One caller has at most half of them, so that it leaves some to others.

use std::{collections::HashMap, sync::Arc};

use parking_lot::Mutex;
use resource_graph::Identity;

/// A number of permits. Clones share them.
#[derive(Clone, Debug)]
pub(super) struct CallerPermits {
    limit: usize,
    used: Arc<Mutex<HashMap<Identity, usize>>>,
}

/// The permit of a caller, which is free again when this is dropped.
#[derive(Debug)]
pub(super) struct CallerPermit {
    permits: CallerPermits,
    caller: Identity,
}

/// The reason why there is no permit for a caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NoPermit {
    /// All permits are used.
    All,
    /// The caller has its share.
    Share,
}

impl CallerPermits {
    pub(super) fn new(limit: usize) -> Self {
        Self { limit, used: Arc::default() }
    }

    /// Takes a permit for a caller. Callers without an identity of their own in the cluster are one caller.
    pub(super) fn try_acquire(&self, caller: Identity) -> Result<CallerPermit, NoPermit> {
        let mut used = self.used.lock();
        if used.values().sum::<usize>() >= self.limit {
            return Err(NoPermit::All);
        }
        if used.get(&caller).is_some_and(|used| *used >= self.limit / 2) {
            return Err(NoPermit::Share);
        }
        *used.entry(caller.clone()).or_default() += 1;
        Ok(CallerPermit { permits: self.clone(), caller })
    }

    /// Returns the number of permits in use.
    pub(super) fn used(&self) -> usize {
        self.used.lock().values().sum()
    }
}

impl Drop for CallerPermit {
    fn drop(&mut self) {
        let mut used = self.permits.used.lock();
        match used.get_mut(&self.caller) {
            Some(count) if *count > 1 => *count -= 1,
            _ => drop(used.remove(&self.caller)),
        }
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderMap;

    use super::*;

    fn caller(user: &str) -> Identity {
        let mut headers = HeaderMap::new();
        headers.insert("impersonate-user", user.parse().unwrap());
        Identity::of_request(&headers, "impersonate-")
    }

    #[test]
    fn caller_with_its_share_leaves_permits_to_others() {
        let permits = CallerPermits::new(4);
        let mut held: Vec<_> = (0..2).map(|_| permits.try_acquire(caller("a")).unwrap()).collect();
        assert_eq!(permits.try_acquire(caller("a")).unwrap_err(), NoPermit::Share);
        held.push(permits.try_acquire(caller("b")).unwrap());
        held.push(permits.try_acquire(Identity::default()).unwrap());
        assert_eq!((permits.try_acquire(caller("c")).unwrap_err(), permits.used()), (NoPermit::All, 4));
        held.remove(0);
        held.push(permits.try_acquire(caller("a")).unwrap());
        drop(held);
        assert_eq!(permits.used(), 0);
        assert!(permits.used.lock().is_empty());
    }
}
