//! Spreads the tunnels of an agent over the replicas of kas, so that the loss of one replica does not cut them all.
//!
//! A load balancer decides at which replica a dial ends. The welcome of kas contains the id of that replica and the number of
//! replicas. agentk can only dial again: a few times at once, and then at growing intervals while the tunnel to a shared
//! replica is in use. [`ReplicaSpread`] decides when.

use std::{collections::HashSet, time::Duration};

use proto::ReplicaId;

/// The number of immediate dials to reach another replica.
const MAX_REDIALS: u32 = 2;
/// The delay before a slot that shares its replica dials another one. It doubles each time.
const FIRST_SEARCH_DELAY: Duration = Duration::from_secs(5);
/// The longest delay. A load balancer that sends all dials of an agent to the same replica makes each of them useless.
const MAX_SEARCH_DELAY: Duration = Duration::from_secs(3600);

/// The replicas of the tunnels, by slot.
#[derive(Debug)]
pub(super) struct ReplicaSpread {
    held: Vec<Option<ReplicaId>>,
    /// The slots that accepted a replica which another slot had already.
    shared: Vec<bool>,
    /// The number of replicas, by the last welcome.
    replicas: usize,
}

/// The search of one slot for a replica.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReplicaSearch {
    slot: usize,
    /// A replica to avoid if possible, since it sent a drain request.
    avoid: Option<ReplicaId>,
    redials: u32,
}

impl ReplicaSpread {
    /// Returns the state of this number of slots without tunnels.
    pub(super) fn new(slots: usize) -> Self {
        Self { held: vec![None; slots], shared: vec![false; slots], replicas: 1 }
    }

    /// Decides about a dial that ended at `replica`, one of `replicas`. Returns true to keep the tunnel, and false to decline
    /// it and dial again.
    pub(super) fn claim(&mut self, search: &mut ReplicaSearch, replica: ReplicaId, replicas: u16) -> bool {
        self.replicas = replicas.into();
        let others = self.held.iter().enumerate().filter(|(slot, _)| *slot != search.slot);
        let taken: HashSet<ReplicaId> = others.filter_map(|(_, held)| *held).chain(search.avoid).collect();
        let shared = taken.contains(&replica);
        if shared && taken.len() < self.replicas && search.redials < MAX_REDIALS {
            search.redials += 1;
            return false;
        }

        self.held[search.slot] = Some(replica);
        self.shared[search.slot] = shared;
        true
    }

    /// Returns the delay before the slot dials another replica for the `nth` time, from 0, or `None` if it need not.
    /// `random` is in [0, 1).
    pub(super) fn search_delay(&self, slot: usize, nth: u32, random: f64) -> Option<Duration> {
        let same = self.held.iter().filter(|held| **held == self.held[slot]).count() > 1;
        let held: HashSet<ReplicaId> = self.held.iter().copied().flatten().collect();
        // kas moves tunnels to a replica that is added later, or they reach their maximum age.
        if !same || !self.shared[slot] || held.len() >= self.replicas {
            return None;
        }
        let wait = FIRST_SEARCH_DELAY.saturating_mul(1 << nth.min(16)).min(MAX_SEARCH_DELAY);
        Some(wait.mul_f64(0.5 + random / 2.0))
    }

    /// Decides about a dial to another replica that ended at `replica`. Returns true to replace the slot's tunnel.
    pub(super) fn replace(&mut self, slot: usize, replica: ReplicaId, replicas: u16) -> bool {
        self.replicas = replicas.into();
        let better = !self.held.contains(&Some(replica));
        if better {
            self.held[slot] = Some(replica);
            self.shared[slot] = false;
        }
        better
    }

    /// Records that the slot has no tunnel any more.
    pub(super) fn release(&mut self, slot: usize) {
        self.held[slot] = None;
        self.shared[slot] = false;
    }
}

impl ReplicaSearch {
    /// Begins the search of a slot.
    pub(super) fn new(slot: usize, avoid: Option<ReplicaId>) -> Self {
        Self { slot, avoid, redials: 0 }
    }

    /// Records a failed dial. If a tunnel was declined before it, the search accepts any replica from now on: while replicas
    /// fail, or limit connections, an answer of any of them is more important than the spread.
    pub(super) fn on_failure(&mut self) {
        if self.redials > 0 {
            self.redials = MAX_REDIALS;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shared_replica_is_accepted_after_two_redials() {
        let mut spread = ReplicaSpread::new(2);
        let (a, b) = (ReplicaId::random(), ReplicaId::random());
        assert!(spread.claim(&mut ReplicaSearch::new(0, None), a, 2));
        let mut search = ReplicaSearch::new(1, None);
        assert!(!spread.claim(&mut search, a, 2));
        assert!(!spread.claim(&mut search, a, 2));
        assert!(spread.claim(&mut search, a, 2));

        spread.release(1);
        let mut search = ReplicaSearch::new(1, None);
        assert!(!spread.claim(&mut search, a, 2));
        assert!(spread.claim(&mut search, b, 2));
    }

    #[test]
    fn shared_replica_is_accepted_if_no_other_is_free() {
        let mut spread = ReplicaSpread::new(4);
        let (a, b) = (ReplicaId::random(), ReplicaId::random());
        assert!(spread.claim(&mut ReplicaSearch::new(0, None), a, 1));
        assert!(spread.claim(&mut ReplicaSearch::new(1, None), a, 1));
        assert!(!spread.claim(&mut ReplicaSearch::new(2, None), a, 2), "there is another replica now");
        assert!(spread.claim(&mut ReplicaSearch::new(2, None), b, 2));
        assert!(spread.claim(&mut ReplicaSearch::new(3, None), b, 2));
    }

    #[test]
    fn search_delay_of_a_shared_replica_doubles() {
        let mut spread = ReplicaSpread::new(2);
        let (a, b) = (ReplicaId::random(), ReplicaId::random());
        for slot in [0, 1] {
            let mut search = ReplicaSearch::new(slot, None);
            while !spread.claim(&mut search, a, 2) {}
        }
        let delay =
            |spread: &ReplicaSpread, nth| spread.search_delay(1, nth, 0.0).map(|wait| wait.as_millis());
        assert_eq!(spread.search_delay(0, 0, 0.0), None, "the first slot of a replica does not search");
        assert_eq!([0, 1, 2].map(|nth| delay(&spread, nth)), [Some(2500), Some(5000), Some(10_000)]);
        assert_eq!(delay(&spread, 40), Some(1_800_000));

        assert!(!spread.replace(1, a, 1));
        assert_eq!(delay(&spread, 0), None, "there is no other replica");
        assert!(spread.replace(1, b, 2));
        assert_eq!(delay(&spread, 0), None);
    }

    #[test]
    fn slots_do_not_search_with_more_tunnels_than_replicas() {
        let mut spread = ReplicaSpread::new(4);
        let all = [ReplicaId::random(), ReplicaId::random()];
        for slot in 0..4 {
            assert!(spread.claim(&mut ReplicaSearch::new(slot, None), all[slot % 2], 2));
        }
        assert!((0..4).all(|slot| spread.search_delay(slot, 0, 0.0).is_none()));
    }

    #[test]
    fn failed_dial_after_a_declined_tunnel_ends_the_search() {
        let mut spread = ReplicaSpread::new(2);
        let a = ReplicaId::random();
        assert!(spread.claim(&mut ReplicaSearch::new(0, None), a, 2));
        let mut search = ReplicaSearch::new(1, None);
        search.on_failure();
        assert!(!spread.claim(&mut search, a, 2), "no tunnel was declined before the failure");
        search.on_failure();
        assert!(spread.claim(&mut search, a, 2));
    }

    #[test]
    fn slot_may_return_to_its_replica_unless_it_was_drained() {
        let mut spread = ReplicaSpread::new(2);
        let a = ReplicaId::random();
        assert!(spread.claim(&mut ReplicaSearch::new(0, None), a, 2));
        assert!(spread.claim(&mut ReplicaSearch::new(0, None), a, 2));
        assert!(!spread.claim(&mut ReplicaSearch::new(0, Some(a)), a, 2));
    }
}
