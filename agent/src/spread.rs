//! Which replica holds which of our tunnels: two tunnels to one replica help nobody when that replica goes.
//!
//! A load balancer decides where a dial ends up, and kas says who answered. So all that can be done is to try again, a
//! few times: `Spread` says whether to. When trying did not help, there are probably no more replicas than the ones we
//! are at, and for a while nothing is tried.

use std::time::Duration;

use proto::ReplicaId;
use tokio::time::Instant;

/// How often a tunnel is dialled again for the sake of spreading.
const REDIALS: u32 = 2;
/// How long it is remembered that dialling again did not help. A replica that was added meanwhile gets its share when
/// kas rebalances or the tunnels reach their maximum age.
const REMEMBERED: Duration = Duration::from_secs(10 * 60);

/// The replicas at the other ends, by slot.
#[derive(Debug)]
pub struct Spread {
    held: Vec<Option<ReplicaId>>,
    /// Until then, a crowded replica is accepted as it comes.
    crowded_until: Option<Instant>,
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
        Self { held: vec![None; slots], crowded_until: None }
    }

    /// A dial of `search` ended up at `replica`: true takes the tunnel, false gives it up and dials again.
    pub fn claim(&mut self, search: &mut Search, replica: ReplicaId, now: Instant) -> bool {
        let others = self.held.iter().enumerate().filter(|(slot, _)| *slot != search.slot);
        let crowded =
            search.avoid == Some(replica) || others.into_iter().any(|(_, held)| *held == Some(replica));
        let hopeless = self.crowded_until.is_some_and(|until| now < until);
        if crowded && !hopeless && search.redials < REDIALS {
            search.redials += 1;
            return false;
        }

        match crowded {
            true if !hopeless => self.crowded_until = Some(now + REMEMBERED),
            true => {}
            // There is a replica where we were not yet: others may be worth a try, too.
            false if search.redials > 0 => self.crowded_until = None,
            false => {}
        }
        self.held[search.slot] = Some(replica);
        true
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
        let (mut spread, now) = (Spread::new(2), Instant::now());
        let (a, b) = (ReplicaId::random(), ReplicaId::random());
        assert!(spread.claim(&mut Search::new(0, None), a, now));
        let mut search = Search::new(1, None);
        assert!(!spread.claim(&mut search, a, now));
        assert!(!spread.claim(&mut search, a, now));
        assert!(spread.claim(&mut search, a, now));

        spread.release(1);
        let mut search = Search::new(1, None);
        assert!(spread.claim(&mut search, a, now), "with one replica, nobody dials again each time");
        spread.release(1);
        let later = now + REMEMBERED;
        let mut search = Search::new(1, None);
        assert!(!spread.claim(&mut search, a, later), "but now and then");
        assert!(spread.claim(&mut search, b, later));
    }

    #[test]
    fn a_search_that_has_given_up_a_tunnel_ends_with_the_first_dial_that_fails() {
        let (mut spread, now) = (Spread::new(2), Instant::now());
        let a = ReplicaId::random();
        assert!(spread.claim(&mut Search::new(0, None), a, now));
        let mut search = Search::new(1, None);
        search.failed();
        assert!(!spread.claim(&mut search, a, now), "nothing was given up before");
        search.failed();
        assert!(spread.claim(&mut search, a, now));
    }

    #[test]
    fn a_slot_may_come_back_to_its_own_replica_unless_asked_to_leave_it() {
        let (mut spread, now) = (Spread::new(2), Instant::now());
        let a = ReplicaId::random();
        assert!(spread.claim(&mut Search::new(0, None), a, now));
        assert!(spread.claim(&mut Search::new(0, None), a, now));
        assert!(!spread.claim(&mut Search::new(0, Some(a)), a, now));
    }
}
