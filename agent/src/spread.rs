//! Which replica holds which of our tunnels: two tunnels to one replica help nobody when that replica goes.
//!
//! A load balancer decides where a dial ends up, and kas says who answered, and how many there are. So all that can be
//! done is to try again: a few times at once, and then now and then, while the tunnel that was taken serves. `Spread` says
//! whether to.

use std::{collections::HashSet, time::Duration};

use proto::ReplicaId;

/// How often a tunnel is dialled again at once for the sake of spreading.
const REDIALS: u32 = 2;
/// When a tunnel that shares its replica looks for another one; twice as late each time.
const FIRST_LOOK: Duration = Duration::from_secs(5);
/// At the latest, and also where no other replica is known: one may have been added.
const LAST_LOOK: Duration = Duration::from_secs(10 * 60);

/// The replicas at the other ends, by slot.
#[derive(Debug)]
pub struct Spread {
    held: Vec<Option<ReplicaId>>,
    /// Slots that took what was held already.
    crowded: Vec<bool>,
    /// How many there are, as the last one said.
    replicas: usize,
}

/// One slot's search for a replica.
#[derive(Clone, Copy, Debug)]
pub struct Search {
    slot: usize,
    /// Not this one either, if it can be helped: the replica that asked us to leave.
    avoid: Option<ReplicaId>,
    redials: u32,
}

impl Spread {
    /// For a number of slots.
    pub fn new(slots: usize) -> Self {
        Self { held: vec![None; slots], crowded: vec![false; slots], replicas: 1 }
    }

    /// A dial of `search` ended up at `replica`, one of `replicas`: true takes the tunnel, false gives it up and dials
    /// again.
    pub fn claim(&mut self, search: &mut Search, replica: ReplicaId, replicas: u16) -> bool {
        self.replicas = replicas.into();
        let others = self.held.iter().enumerate().filter(|(slot, _)| *slot != search.slot);
        let taken: HashSet<ReplicaId> = others.filter_map(|(_, held)| *held).chain(search.avoid).collect();
        let crowded = taken.contains(&replica);
        if crowded && taken.len() < self.replicas && search.redials < REDIALS {
            search.redials += 1;
            return false;
        }

        self.held[search.slot] = Some(replica);
        self.crowded[search.slot] = crowded;
        true
    }

    /// How long the slot waits before it looks for another replica, for the `nth` time from 0; `None` if it need not.
    /// `random` is from [0, 1).
    pub fn look(&self, slot: usize, nth: u32, random: f64) -> Option<Duration> {
        let shared = self.held.iter().filter(|held| **held == self.held[slot]).count() > 1;
        let held: HashSet<ReplicaId> = self.held.iter().copied().flatten().collect();
        let wait = match held.len() {
            _ if !shared || !self.crowded[slot] => return None,
            known if known < self.replicas => FIRST_LOOK.saturating_mul(1 << nth.min(16)).min(LAST_LOOK),
            1 => LAST_LOOK,
            _ => return None,
        };
        Some(wait.mul_f64(0.5 + random / 2.0))
    }

    /// A look of the slot ended up at `replica`: true takes the tunnel in the place of the one that it has.
    pub fn improve(&mut self, slot: usize, replica: ReplicaId, replicas: u16) -> bool {
        self.replicas = replicas.into();
        let better = !self.held.contains(&Some(replica));
        if better {
            self.held[slot] = Some(replica);
            self.crowded[slot] = false;
        }
        better
    }

    /// What improved was lost before it was of use: the slot shares this one as before.
    pub fn share(&mut self, slot: usize, replica: ReplicaId) {
        self.held[slot] = Some(replica);
        self.crowded[slot] = true;
    }

    /// The slot's tunnel is gone.
    pub fn release(&mut self, slot: usize) {
        self.held[slot] = None;
    }
}

impl Search {
    /// For a tunnel of this slot.
    pub fn new(slot: usize, avoid: Option<ReplicaId>) -> Self {
        Self { slot, avoid, redials: 0 }
    }

    /// A dial failed. If a tunnel was given up for it, there is no searching on: where replicas are lost, or refuse those
    /// who come at once, the next one that takes us is as good as any.
    pub fn failed(&mut self) {
        if self.redials > 0 {
            self.redials = REDIALS;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_crowded_replica_is_tried_again_twice_and_then_accepted() {
        let mut spread = Spread::new(2);
        let (a, b) = (ReplicaId::random(), ReplicaId::random());
        assert!(spread.claim(&mut Search::new(0, None), a, 2));
        let mut search = Search::new(1, None);
        assert!(!spread.claim(&mut search, a, 2));
        assert!(!spread.claim(&mut search, a, 2));
        assert!(spread.claim(&mut search, a, 2));

        spread.release(1);
        let mut search = Search::new(1, None);
        assert!(!spread.claim(&mut search, a, 2));
        assert!(spread.claim(&mut search, b, 2));
    }

    #[test]
    fn where_every_replica_is_held_nobody_dials_again() {
        let mut spread = Spread::new(4);
        let (a, b) = (ReplicaId::random(), ReplicaId::random());
        assert!(spread.claim(&mut Search::new(0, None), a, 1));
        assert!(spread.claim(&mut Search::new(1, None), a, 1));
        assert!(!spread.claim(&mut Search::new(2, None), a, 2), "another has come");
        assert!(spread.claim(&mut Search::new(2, None), b, 2));
        assert!(spread.claim(&mut Search::new(3, None), b, 2));
    }

    #[test]
    fn whoever_shares_a_replica_looks_for_another_soon_and_then_ever_more_rarely() {
        let mut spread = Spread::new(2);
        let (a, b) = (ReplicaId::random(), ReplicaId::random());
        for slot in [0, 1] {
            let mut search = Search::new(slot, None);
            while !spread.claim(&mut search, a, 2) {}
        }
        let look = |spread: &Spread, nth| spread.look(1, nth, 0.0).map(|wait| wait.as_millis());
        assert_eq!(spread.look(0, 0, 0.0), None, "it was here first");
        assert_eq!([0, 1, 2].map(|nth| look(&spread, nth)), [Some(2500), Some(5000), Some(10_000)]);
        assert_eq!(look(&spread, 40), Some(300_000));

        assert!(!spread.improve(1, a, 1));
        assert_eq!(look(&spread, 0), Some(300_000), "there is no other any more");
        assert!(spread.improve(1, b, 2));
        assert_eq!(look(&spread, 0), None);
    }

    #[test]
    fn with_more_tunnels_than_replicas_nobody_looks() {
        let mut spread = Spread::new(4);
        let all = [ReplicaId::random(), ReplicaId::random()];
        for slot in 0..4 {
            assert!(spread.claim(&mut Search::new(slot, None), all[slot % 2], 2));
        }
        assert!((0..4).all(|slot| spread.look(slot, 0, 0.0).is_none()));
    }

    #[test]
    fn a_search_that_has_given_up_a_tunnel_ends_with_the_first_dial_that_fails() {
        let mut spread = Spread::new(2);
        let a = ReplicaId::random();
        assert!(spread.claim(&mut Search::new(0, None), a, 2));
        let mut search = Search::new(1, None);
        search.failed();
        assert!(!spread.claim(&mut search, a, 2), "nothing was given up before");
        search.failed();
        assert!(spread.claim(&mut search, a, 2));
    }

    #[test]
    fn a_slot_may_come_back_to_its_own_replica_unless_asked_to_leave_it() {
        let mut spread = Spread::new(2);
        let a = ReplicaId::random();
        assert!(spread.claim(&mut Search::new(0, None), a, 2));
        assert!(spread.claim(&mut Search::new(0, None), a, 2));
        assert!(!spread.claim(&mut Search::new(0, Some(a)), a, 2));
    }
}
