//! How much memory callers may make us hold.
//!
//! An agent may send as much of an answer as its stream's window allows before the caller takes any of it. For one answer
//! that is what makes a distant cluster fast; for thousands of callers who do not read it is a way to use up all
//! memory. So all of them share a budget, and where it does not last, who holds most of it is cut.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use parking_lot::Mutex;
use tokio::time::{MissedTickBehavior, interval};
use tunnel::Grip;

use crate::metrics::{Limit, Metrics};

/// How often the budget is looked at. Between two looks it may be exceeded.
const PERIOD: Duration = Duration::from_millis(250);

/// The answers that are under way.
#[derive(Debug, Default)]
pub struct Budget {
    answers: Mutex<HashMap<u64, Grip>>,
    next: AtomicU64,
}

/// An answer's share of the budget, until this is dropped.
#[derive(Debug)]
pub struct Share {
    budget: Arc<Budget>,
    number: u64,
}

impl Budget {
    /// Another answer.
    pub fn share(self: &Arc<Self>, answer: Grip) -> Share {
        let number = self.next.fetch_add(1, Relaxed);
        self.answers.lock().insert(number, answer);
        Share { budget: Arc::clone(self), number }
    }

    /// Cuts answers, those that hold the most first, whenever all of them together hold more than `limit` bytes. Never
    /// completes.
    pub async fn keep(&self, limit: u64, metrics: &Metrics) {
        let mut looks = interval(PERIOD);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            looks.tick().await;
            let held = self.look(limit, metrics);
            metrics.bytes_in_flight.set(i64::try_from(held).unwrap_or(i64::MAX));
        }
    }

    fn look(&self, limit: u64, metrics: &Metrics) -> u64 {
        let answers = self.answers.lock();
        let mut holders: Vec<(u64, &Grip)> =
            answers.values().map(|answer| (answer.unread() as u64, answer)).collect();
        let held: u64 = holders.iter().map(|(bytes, _)| bytes).sum();
        if held > limit {
            holders.sort_by_key(|(bytes, _)| std::cmp::Reverse(*bytes));
            for (_, answer) in over(&holders, held, limit) {
                answer.cut();
                metrics.limit(Limit::BytesInFlight);
            }
        }
        held
    }
}

/// As many of the greatest as must go.
fn over<T>(holders: &[(u64, T)], held: u64, limit: u64) -> impl Iterator<Item = &(u64, T)> {
    let mut held = held;
    holders.iter().take_while(move |(bytes, _)| {
        let over = held > limit;
        held -= bytes;
        over
    })
}

impl Drop for Share {
    fn drop(&mut self) {
        self.budget.answers.lock().remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_are_cut_than_must_be() {
        let holders = [(50, 'a'), (30, 'b'), (20, 'c')];
        for (limit, expected) in [(100, ""), (99, "a"), (50, "a"), (49, "ab"), (20, "ab"), (0, "abc")] {
            let cut: String = over(&holders, 100, limit).map(|(_, name)| *name).collect();
            assert_eq!(cut, expected, "{limit}");
        }
    }
}
