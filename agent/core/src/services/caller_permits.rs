//! Permits that callers share. One caller has at most half of them, so that it leaves some to others.

use std::{collections::HashMap, sync::Arc};

use parking_lot::Mutex;
use proto::impersonation::Identity;

/// A number of permits. Clones share them.
#[derive(Clone, Debug)]
pub struct CallerPermits {
    limit: usize,
    share: ShareRule,
    used: Arc<Mutex<HashMap<Identity, usize>>>,
}

/// The permits of a caller, which are free again when this is dropped.
#[derive(Debug)]
pub struct CallerPermit {
    permits: CallerPermits,
    caller: Identity,
    count: usize,
}

/// The most permits of one caller.
#[derive(Clone, Copy, Debug)]
enum ShareRule {
    /// Half of all: two callers may use them up.
    Half,
    /// Half of those that others leave, rounded up: the more permits are in use, the smaller is the share, and the last ones are for callers
    /// that have few.
    HalfOfRest,
}

/// The reason why there is no permit for a caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoPermit {
    /// All permits are used.
    All,
    /// The caller has its share, which is this.
    Share(usize),
}

impl CallerPermits {
    /// Returns permits that may be held for long.
    pub fn new(limit: usize) -> Self {
        Self { limit, share: ShareRule::HalfOfRest, used: Arc::default() }
    }

    /// Returns permits for moments, of which one caller may need half.
    pub fn in_halves(limit: usize) -> Self {
        Self { share: ShareRule::Half, ..Self::new(limit) }
    }

    /// Takes a permit for a caller. Callers without an identity of their own in the cluster are one caller.
    pub fn try_acquire(&self, caller: Identity) -> Result<CallerPermit, NoPermit> {
        let mut permit = self.none(caller);
        permit.try_grow(1)?;
        Ok(permit)
    }

    /// Returns no permits of a caller, to which others can be added.
    pub fn none(&self, caller: Identity) -> CallerPermit {
        CallerPermit { permits: self.clone(), caller, count: 0 }
    }

    /// Returns the number of permits in use.
    pub fn used(&self) -> usize {
        self.used.lock().values().sum()
    }
}

impl CallerPermit {
    /// Takes further permits.
    pub fn try_grow(&mut self, more: usize) -> Result<(), NoPermit> {
        let CallerPermits { limit, share, used } = &self.permits;
        let mut used = used.lock();
        let (all, own) = (used.values().sum::<usize>(), used.get(&self.caller).copied().unwrap_or_default());
        if all + more > *limit {
            return Err(NoPermit::All);
        }
        let share = match share {
            ShareRule::Half => limit / 2,
            ShareRule::HalfOfRest => (limit - (all - own)).div_ceil(2),
        };
        if own + more > share {
            return Err(NoPermit::Share(share));
        }
        *used.entry(self.caller.clone()).or_default() += more;
        self.count += more;
        Ok(())
    }
}

impl Drop for CallerPermit {
    fn drop(&mut self) {
        let mut used = self.permits.used.lock();
        match used.get_mut(&self.caller) {
            Some(count) if *count > self.count => *count -= self.count,
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
        Identity::of_request(&headers)
    }

    #[test]
    fn caller_with_its_share_leaves_permits_to_others() {
        let permits = CallerPermits::new(4);
        let mut held: Vec<_> = (0..2).map(|_| permits.try_acquire(caller("a")).unwrap()).collect();
        assert_eq!(permits.try_acquire(caller("a")).unwrap_err(), NoPermit::Share(2));
        held.push(permits.try_acquire(caller("b")).unwrap());
        held.push(permits.try_acquire(Identity::default()).unwrap());
        assert_eq!((permits.try_acquire(caller("c")).unwrap_err(), permits.used()), (NoPermit::All, 4));
        held.remove(0);
        assert_eq!(
            permits.try_acquire(caller("a")).unwrap_err(),
            NoPermit::Share(1),
            "the last one is for others"
        );
        held.push(permits.try_acquire(caller("c")).unwrap());
        drop(held);
        assert_eq!(permits.used(), 0);
        assert!(permits.used.lock().is_empty());
    }

    #[test]
    fn callers_that_take_all_they_can_leave_permits_to_further_ones() {
        let permits = CallerPermits::new(64);
        let mut held = Vec::new();
        let mut counts = Vec::new();
        for user in ["a", "b", "c", "d", "e", "f", "g"] {
            let before = held.len();
            held.extend(std::iter::from_fn(|| permits.try_acquire(caller(user)).ok()));
            counts.push(held.len() - before);
        }
        assert_eq!(counts, [32, 16, 8, 4, 2, 1, 1]);
        // Sixteen callers of a few permits have them all.
        let permits = CallerPermits::new(64);
        let take = |user: usize| permits.try_acquire(caller(&user.to_string()));
        let held: Vec<_> = (0..4).flat_map(|_| 0..15).map(|user| take(user).unwrap()).collect();
        assert_eq!(held.len(), 60);
        let _last: Vec<_> = (0..2).map(|_| take(15).unwrap()).collect();
        assert_eq!(take(0).unwrap_err(), NoPermit::Share(3));
    }

    #[test]
    fn permits_grow_up_to_the_share() {
        let permits = CallerPermits::in_halves(10);
        let (mut first, mut second) = (permits.none(caller("a")), permits.none(caller("a")));
        first.try_grow(3).unwrap();
        second.try_grow(2).unwrap();
        assert_eq!(first.try_grow(1).unwrap_err(), NoPermit::Share(5));
        drop(second);
        first.try_grow(2).unwrap();
        assert_eq!(permits.used(), 5);
        drop(permits.none(caller("b")));
        permits.none(caller("b")).try_grow(5).unwrap();
        drop(first);
        assert!(permits.used.lock().is_empty());
    }
}
