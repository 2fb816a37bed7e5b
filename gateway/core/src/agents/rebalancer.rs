//! Decides how many tunnels a replica with more than its share moves to others, and when. Pure: the time is an argument.
//!
//! ```text
//!                 above the threshold for SETTLE_TIME           at its share
//!   balanced ─────────────────────────────────────► moving ─────────────────────► balanced
//!      ▲                                              │ no effect
//!      └─────────────────────────────── paused ◄──────┘
//!                 after PAUSE
//! ```
//!
//! The counts of other replicas are some seconds old, and an agent needs time to move. So that a replica does not move too
//! many tunnels, it decides once per ROUND, and moves none at the end of a round.

use std::{
    cmp::Reverse,
    collections::{HashMap, HashSet},
    time::Duration,
};

use proto::AgentId;
use router::TunnelView;
use tokio::time::{Instant, MissedTickBehavior, interval};

use super::AgentServer;
use crate::tunnel_entry::TunnelEntry;

/// The time for which a replica must have too many tunnels: the imbalance of a rollout ends by itself.
const SETTLE_TIME: Duration = Duration::from_secs(30);
/// One round: [`MOVE_TIME`], and the time until the agents have moved and the replicas have published their counts.
const ROUND: Duration = Duration::from_secs(17);
/// The part of a round in which tunnels are moved.
const MOVE_TIME: Duration = Duration::from_secs(10);
/// The pause after twice as many moves as should have been enough.
const PAUSE: Duration = Duration::from_secs(600);

/// Balances the tunnels of one replica.
#[derive(Debug)]
pub struct Rebalancer {
    /// The percentage above the mean that is too much; 0 disables the rebalancing.
    threshold: u32,
    /// The tunnels that all replicas together move per second.
    rate: u32,
    state: RebalanceState,
}

#[derive(Debug)]
enum RebalanceState {
    Balanced,
    /// The replica has had too many tunnels since this time.
    Unbalanced(Instant),
    Moving(Round),
    /// The pause lasts until this time.
    Paused(Instant),
}

#[derive(Debug)]
struct Round {
    /// The start of the round.
    since: Instant,
    /// The tunnels that the round may move.
    quota: u32,
    /// The tunnels that the round has moved.
    moved: u32,
    /// The tunnels that may still be moved before the pause.
    budget: u32,
}

impl Rebalancer {
    /// Returns a rebalancer without history. `threshold` is in percent, `rate` in tunnels per second.
    pub fn new(threshold: u32, rate: u32) -> Self {
        Self { threshold, rate, state: RebalanceState::Balanced }
    }

    /// Returns the number of tunnels to move now. It should be called about once per second.
    ///
    /// `own` and `others` are the tunnels of this replica and of each other live replica, without draining tunnels.
    pub fn moves_due(&mut self, own: u32, others: &[u32], now: Instant) -> u32 {
        let share = share(own, others);
        let too_many = self.is_too_many(own, others);
        let round = |budget| Round { since: now, quota: self.quota(own, share, others), moved: 0, budget };
        self.state = match &self.state {
            RebalanceState::Paused(until) if now < *until => return 0,
            RebalanceState::Unbalanced(since) if too_many && now < *since + SETTLE_TIME => return 0,
            RebalanceState::Unbalanced(_) if too_many => {
                RebalanceState::Moving(round((own - share).saturating_mul(2)))
            }
            RebalanceState::Balanced | RebalanceState::Paused(_) if too_many => {
                RebalanceState::Unbalanced(now)
            }
            RebalanceState::Balanced | RebalanceState::Unbalanced(_) | RebalanceState::Paused(_) => {
                RebalanceState::Balanced
            }
            RebalanceState::Moving(round) if now < round.since + ROUND => return self.continue_round(now),
            RebalanceState::Moving(_) if own <= share => RebalanceState::Balanced,
            RebalanceState::Moving(Round { budget: 0, .. }) => RebalanceState::Paused(now + PAUSE),
            RebalanceState::Moving(Round { budget, .. }) => RebalanceState::Moving(round(*budget)),
        };
        self.continue_round(now)
    }

    /// Returns the tunnels that are due in the current round. They are spread evenly over [`MOVE_TIME`].
    fn continue_round(&mut self, now: Instant) -> u32 {
        let RebalanceState::Moving(Round { since, quota, moved, budget }) = &mut self.state else {
            return 0;
        };
        let part = (now - *since + Duration::from_secs(1)).as_secs_f64() / MOVE_TIME.as_secs_f64();
        let due = (f64::from(*quota) * part.min(1.0)).ceil() as u32;
        let now = due.saturating_sub(*moved).min(*budget);
        *moved += now;
        *budget -= now;
        now
    }

    fn is_too_many(&self, own: u32, others: &[u32]) -> bool {
        let mean = mean(own, others);
        self.threshold > 0
            && own > share(own, others)
            && f64::from(own) > mean * (1.0 + f64::from(self.threshold) / 100.0)
    }

    /// Returns the tunnels that this replica may move in one round: the replicas with too many tunnels share the rate.
    fn quota(&self, own: u32, share: u32, others: &[u32]) -> u32 {
        let senders = 1 + others.iter().filter(|other| **other > share).count() as u64;
        let most = u64::from(self.rate) * MOVE_TIME.as_secs() / senders;
        own.saturating_sub(share).min(u32::try_from(most).unwrap_or(u32::MAX).max(1))
    }
}

fn mean(own: u32, others: &[u32]) -> f64 {
    let all: f64 = others.iter().chain([&own]).map(|tunnels| f64::from(*tunnels)).sum();
    all / (others.len() + 1) as f64
}

fn share(own: u32, others: &[u32]) -> u32 {
    mean(own, others).ceil() as u32
}

/// The interval in which the load is published and compared.
const TICK: Duration = Duration::from_secs(1);

impl AgentServer {
    /// Publishes the load of this replica and moves tunnels, until the replica drains.
    pub async fn rebalance(&self, mut rebalancer: Rebalancer) {
        let mut ticks = interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        while self.connections.draining.run_until_cancelled(ticks.tick()).await.is_some() {
            let mut tunnels = self.tunnels.views();
            // Leases spread the tunnels that kas dials.
            tunnels.retain(|view| {
                let TunnelEntry { move_requested, dialled, .. } = view.handle();
                !view.is_draining() && !move_requested.is_cancelled() && !dialled
            });
            let own = u32::try_from(tunnels.len()).unwrap_or(u32::MAX);
            self.store.set_load(self.replica, Some(own));
            let loads = self.store.loads();
            let others = loads.into_iter().filter(|(replica, _)| *replica != self.replica);
            let others: Vec<u32> = others.map(|(_, tunnels)| tunnels).collect();
            let count = rebalancer.moves_due(own, &others, Instant::now());
            if count == 0 {
                continue;
            }
            self.start_moves(tunnels, count as usize);
            if self.log_limit.admit("rebalance", std::time::Instant::now()).is_some() {
                tracing::info!(tunnels = own, ?others, "moving tunnels to other replicas, which have fewer");
            }
        }
        self.store.set_load(self.replica, None);
    }

    /// Moves the tunnels with the fewest requests first, those of agents with several tunnels before others, and one of each
    /// agent before the second of any.
    fn start_moves(&self, mut tunnels: Vec<TunnelView<TunnelEntry>>, count: usize) {
        let mut tunnels_of_agent: HashMap<AgentId, usize> = HashMap::new();
        for view in &tunnels {
            *tunnels_of_agent.entry(view.agent).or_default() += 1;
        }
        tunnels.sort_by_cached_key(|view| {
            let (short, long) =
                view.services().fold((0, 0), |(short, long), (_, now)| (short + now.short, long + now.long));
            (long, Reverse(tunnels_of_agent[&view.agent]), short, rand::random::<u32>())
        });
        let mut seen = HashSet::new();
        let (first, more): (Vec<_>, Vec<_>) = tunnels.into_iter().partition(|view| seen.insert(view.agent));
        for view in first.into_iter().chain(more).take(count) {
            view.handle().move_requested.cancel();
            self.metrics.rebalanced.inc();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// Returns the moves of each second, if all tunnels move to the first of the others.
    fn moves(balance: &mut Rebalancer, own: u32, others: &[u32], seconds: u32) -> Vec<u32> {
        let (start, mut own, mut others) = (Instant::now(), own, others.to_vec());
        let second = |second| {
            let moved = balance.moves_due(own, &others, start + SECOND * second);
            own -= moved;
            others[0] += moved;
            moved
        };
        (0..seconds).map(second).collect()
    }

    fn balance() -> Rebalancer {
        Rebalancer::new(20, 10)
    }

    #[test]
    fn new_replica_gets_its_share_at_the_rate() {
        // Two have 300 each, and one is new: 200 for each.
        let moved = moves(&mut balance(), 300, &[0, 300], 300);
        assert!(moved[..30].iter().all(|n| *n == 0), "settle time: {moved:?}");
        assert!(moved.iter().all(|n| *n <= 5), "half of the rate for each of two senders: {moved:?}");
        assert_eq!(moved.iter().sum::<u32>(), 100);
        let last = moved.iter().rposition(|n| *n > 0).unwrap();
        assert!((50..=58).contains(&last), "100 at 5 a second, and a pause: {last}");
    }

    #[test]
    fn moves_start_above_the_threshold_and_end_at_the_share() {
        assert_eq!(moves(&mut balance(), 109, &[91], 300), [0; 300]);
        assert_eq!(moves(&mut balance(), 120, &[80], 300), [0; 300], "not above the threshold");
        assert_eq!(moves(&mut balance(), 121, &[79], 300).iter().sum::<u32>(), 21);
        assert_eq!(moves(&mut balance(), 1, &[0], 300), [0; 300], "a tunnel cannot be divided");
        assert_eq!(moves(&mut balance(), 2, &[0], 300).iter().sum::<u32>(), 1);
    }

    #[test]
    fn lone_or_disabled_replica_moves_nothing() {
        let start = Instant::now();
        let mut alone = balance();
        assert!((0..300).all(|second| alone.moves_due(1000, &[], start + SECOND * second) == 0));
        assert_eq!(moves(&mut Rebalancer::new(0, 10), 1000, &[0], 300), [0; 300]);
        assert_eq!(moves(&mut balance(), 0, &[1000], 300), [0; 300]);
    }

    #[test]
    fn short_imbalance_is_ignored() {
        let (mut balance, start) = (balance(), Instant::now());
        for second in 0..300 {
            // As in a rollout: for 20 seconds of each 40 there is a replica without tunnels.
            let others = if second % 40 < 20 { 0 } else { 100 };
            assert_eq!(balance.moves_due(100, &[others], start + SECOND * second), 0, "{second}");
        }
    }

    #[test]
    fn moves_without_effect_lead_to_a_pause() {
        let (mut balance, start) = (balance(), Instant::now());
        // Each moved tunnel comes back, as behind a load balancer with one replica.
        let moved: Vec<u32> =
            (0..500).map(|second| balance.moves_due(60, &[0], start + SECOND * second)).collect();
        assert_eq!(moved.iter().sum::<u32>(), 60, "twice the moves that should be enough");
        let last = moved.iter().rposition(|n| *n > 0).unwrap() as u32;
        let again =
            (last..2000).find(|second| balance.moves_due(60, &[0], start + SECOND * *second) > 0).unwrap();
        assert!(again >= last + PAUSE.as_secs() as u32, "{last} {again}");
    }

    #[test]
    fn old_counts_do_not_cause_too_many_moves() {
        let (mut balance, start) = (balance(), Instant::now());
        let (mut own, mut given) = (30, Vec::new());
        for second in 0..200 {
            // The moves are visible five seconds later.
            let others = given.iter().filter(|at| **at + 5 <= second).count() as u32;
            let moved = balance.moves_due(own, &[others], start + SECOND * second);
            own -= moved;
            given.extend((0..moved).map(|_| second));
        }
        assert_eq!(own, 15);
    }
}
