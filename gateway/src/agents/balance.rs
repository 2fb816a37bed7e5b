//! How many tunnels a replica that has more than its share asks to go elsewhere, and when: pure, time is passed in.
//!
//! ```text
//!                  above the threshold for PATIENCE            at its share
//!   content ──────────────────────────────────────► moving ────────────────────► content
//!      ▲                                              │ it does not help
//!      └─────────────────────────────── resting ◄─────┘
//!                 after REST
//! ```
//!
//! What others have is known as they said it last, and an agent takes a moment to move: so that nobody gives away too
//! much, it is decided anew only once in a ROUND, and nobody is asked shortly before.

use std::time::Duration;

use tokio::time::Instant;

/// How long there must be too many: a rollout, or a replica that has just started, settles by itself.
const PATIENCE: Duration = Duration::from_secs(30);
/// Asking, and then as long as agents take to move and replicas to tell.
const ROUND: Duration = Duration::from_secs(15);
/// The first part of a round.
const ASKING: Duration = Duration::from_secs(10);
/// After as many moves as should have done, and as many again, nothing is tried for this long.
const REST: Duration = Duration::from_secs(600);

/// Of one replica.
#[derive(Debug)]
pub struct Balance {
    /// How much more than the mean is too much, in percent; nothing is, if it is zero.
    threshold: u32,
    /// How many tunnels all replicas together move in a second.
    rate: u32,
    state: State,
}

#[derive(Debug)]
enum State {
    Content,
    /// Since then it has had too many.
    Watching(Instant),
    Moving(Moving),
    /// Until then.
    Resting(Instant),
}

#[derive(Debug)]
struct Moving {
    /// When this round began.
    since: Instant,
    /// How many may be asked in it.
    quota: u32,
    /// How many were.
    asked: u32,
    /// How many may be asked before there is something wrong.
    budget: u32,
}

impl Balance {
    /// One that has moved nothing yet.
    pub fn new(threshold: u32, rate: u32) -> Self {
        Self { threshold, rate, state: State::Content }
    }

    /// How many tunnels to ask now, to be called about once a second. `own` and `others`: the tunnels that each live
    /// replica has and has not asked to leave.
    pub fn ask(&mut self, own: u32, others: &[u32], now: Instant) -> u32 {
        let share = share(own, others);
        let too_many = self.is_too_many(own, others);
        let round = |budget| Moving { since: now, quota: self.quota(own, share, others), asked: 0, budget };
        self.state = match &self.state {
            State::Resting(until) if now < *until => return 0,
            State::Watching(since) if too_many && now < *since + PATIENCE => return 0,
            State::Watching(_) if too_many => State::Moving(round((own - share).saturating_mul(2))),
            State::Content | State::Resting(_) if too_many => State::Watching(now),
            State::Content | State::Watching(_) | State::Resting(_) => State::Content,
            State::Moving(moving) if now < moving.since + ROUND => return self.go_on(now),
            State::Moving(_) if own <= share => State::Content,
            State::Moving(Moving { budget: 0, .. }) => State::Resting(now + REST),
            State::Moving(Moving { budget, .. }) => State::Moving(round(*budget)),
        };
        self.go_on(now)
    }

    /// While it moves: so many are due by now in this round, evenly.
    fn go_on(&mut self, now: Instant) -> u32 {
        let State::Moving(Moving { since, quota, asked, budget }) = &mut self.state else {
            return 0;
        };
        let part = (now - *since + Duration::from_secs(1)).as_secs_f64() / ASKING.as_secs_f64();
        let due = (f64::from(*quota) * part.min(1.0)).ceil() as u32;
        let now = due.saturating_sub(*asked).min(*budget);
        *asked += now;
        *budget -= now;
        now
    }

    fn is_too_many(&self, own: u32, others: &[u32]) -> bool {
        let mean = mean(own, others);
        self.threshold > 0
            && own > share(own, others)
            && f64::from(own) > mean * (1.0 + f64::from(self.threshold) / 100.0)
    }

    /// In one round, with as much left to each other replica that has too many.
    fn quota(&self, own: u32, share: u32, others: &[u32]) -> u32 {
        let givers = 1 + others.iter().filter(|other| **other > share).count() as u64;
        let most = u64::from(self.rate) * ASKING.as_secs() / givers;
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

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// What a replica asks in each second, if whoever is asked goes to the first of the others.
    fn moves(balance: &mut Balance, own: u32, others: &[u32], seconds: u32) -> Vec<u32> {
        let (start, mut own, mut others) = (Instant::now(), own, others.to_vec());
        let second = |second| {
            let asked = balance.ask(own, &others, start + SECOND * second);
            own -= asked;
            others[0] += asked;
            asked
        };
        (0..seconds).map(second).collect()
    }

    fn balance() -> Balance {
        Balance::new(20, 10)
    }

    #[test]
    fn a_new_replica_gets_its_share_at_the_rate_and_no_more() {
        // Two have 300 each, and one is new: 200 for each.
        let asked = moves(&mut balance(), 300, &[0, 300], 300);
        assert!(asked[..30].iter().all(|n| *n == 0), "patience: {asked:?}");
        assert!(asked.iter().all(|n| *n <= 5), "half of the rate for each of two: {asked:?}");
        assert_eq!(asked.iter().sum::<u32>(), 100);
        let last = asked.iter().rposition(|n| *n > 0).unwrap();
        assert!((50..=58).contains(&last), "100 at 5 a second, and a pause: {last}");
    }

    #[test]
    fn below_the_threshold_nothing_moves_and_beyond_it_until_all_are_equal() {
        assert_eq!(moves(&mut balance(), 109, &[91], 300), [0; 300]);
        assert_eq!(moves(&mut balance(), 120, &[80], 300), [0; 300], "just not beyond");
        assert_eq!(moves(&mut balance(), 121, &[79], 300).iter().sum::<u32>(), 21);
        assert_eq!(moves(&mut balance(), 1, &[0], 300), [0; 300], "there is no half of a tunnel");
        assert_eq!(moves(&mut balance(), 2, &[0], 300).iter().sum::<u32>(), 1);
    }

    #[test]
    fn a_replica_alone_and_one_that_shall_not_move_nothing() {
        let start = Instant::now();
        let mut alone = balance();
        assert!((0..300).all(|second| alone.ask(1000, &[], start + SECOND * second) == 0));
        assert_eq!(moves(&mut Balance::new(0, 10), 1000, &[0], 300), [0; 300]);
        assert_eq!(moves(&mut balance(), 0, &[1000], 300), [0; 300]);
    }

    #[test]
    fn an_imbalance_that_passes_is_waited_for() {
        let (mut balance, start) = (balance(), Instant::now());
        for second in 0..300 {
            // As a rollout does: for 20 seconds in each 40 there is a replica without tunnels.
            let others = if second % 40 < 20 { 0 } else { 100 };
            assert_eq!(balance.ask(100, &[others], start + SECOND * second), 0, "{second}");
        }
    }

    #[test]
    fn what_does_not_help_is_given_up_for_a_while() {
        let (mut balance, start) = (balance(), Instant::now());
        // Whoever is asked comes back, as where a load balancer knows one replica only.
        let asked: Vec<u32> = (0..500).map(|second| balance.ask(60, &[0], start + SECOND * second)).collect();
        assert_eq!(asked.iter().sum::<u32>(), 60, "twice what should have done");
        let last = asked.iter().rposition(|n| *n > 0).unwrap() as u32;
        let again = (last..2000).find(|second| balance.ask(60, &[0], start + SECOND * *second) > 0).unwrap();
        assert!(again >= last + REST.as_secs() as u32, "{last} {again}");
    }

    #[test]
    fn what_others_said_before_the_moves_does_not_make_it_give_too_much() {
        let (mut balance, start) = (balance(), Instant::now());
        let (mut own, mut given) = (30, Vec::new());
        for second in 0..200 {
            // What was given away is seen five seconds later.
            let others = given.iter().filter(|at| **at + 5 <= second).count() as u32;
            let asked = balance.ask(own, &[others], start + SECOND * second);
            own -= asked;
            given.extend((0..asked).map(|_| second));
        }
        assert_eq!(own, 15);
    }
}
