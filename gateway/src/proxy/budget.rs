//! How much memory callers may make us hold, and for how long.
//!
//! An agent may send as much of an answer as its stream's window allows before the caller takes any of it. For one answer
//! that is what makes a distant cluster fast; for thousands of callers who do not read it is a way to use up all
//! memory. So all of them share a budget, and where it does not last, who holds most of it is cut.
//!
//! Who takes nothing for too long is cut as well. [`crate::io::StallGuard`] sees only whole connections, and on HTTP/2 a
//! caller can keep one alive while it never opens the window of one stream.

use std::{
    collections::HashMap,
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use parking_lot::Mutex;
use tokio::time::{Instant, MissedTickBehavior, interval};
use tunnel::{Grip, Look};

use crate::metrics::{Limit, Metrics};

/// How often the answers are looked at. Between two looks the budget may be exceeded.
const PERIOD: Duration = Duration::from_millis(250);

/// The answers that are under way.
#[derive(Debug)]
pub struct Budget {
    limit: u64,
    patience: Duration,
    answers: Mutex<HashMap<u64, Answer>>,
    next: AtomicU64,
}

struct Answer {
    grip: Grip,
    /// Lets go of what the answer occupies.
    release: Box<dyn Fn() + Send>,
    last: Look,
    /// Since when its reader has neither taken anything nor waited for more.
    since: Instant,
}

/// An answer's share of the budget, until this is dropped.
#[derive(Debug)]
pub struct Share {
    budget: Arc<Budget>,
    number: u64,
}

impl Budget {
    /// `limit`: bytes that all answers together may hold. `patience`: how long one may be left unread.
    pub fn new(limit: u64, patience: Duration) -> Self {
        Self { limit, patience, answers: Mutex::default(), next: AtomicU64::new(0) }
    }

    /// Another answer. `release` is called when it was cut, and must not wait.
    pub fn share(self: &Arc<Self>, grip: Grip, release: impl Fn() + Send + 'static) -> Share {
        let number = self.next.fetch_add(1, Relaxed);
        let (release, since) = (Box::new(release), Instant::now());
        let answer = Answer { grip, release, last: Look::default(), since };
        self.answers.lock().insert(number, answer);
        Share { budget: Arc::clone(self), number }
    }

    /// Looks at the answers and cuts those that must go. Never completes.
    pub async fn keep(&self, metrics: &Metrics) {
        let mut looks = interval(PERIOD);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let now = looks.tick().await;
            let held = self.look(now, metrics);
            metrics.bytes_in_flight.set(i64::try_from(held).unwrap_or(i64::MAX));
        }
    }

    fn look(&self, now: Instant, metrics: &Metrics) -> u64 {
        let mut answers = self.answers.lock();
        let mut holders = Vec::with_capacity(answers.len());
        let mut held = 0;
        let mut cut = Vec::new();
        for (number, answer) in answers.iter_mut() {
            let bytes = answer.look(now);
            if now.saturating_duration_since(answer.since) >= self.patience {
                cut.push((*number, Limit::WriteStall));
                continue;
            }
            held += bytes;
            holders.push((bytes, *number));
        }
        if held > self.limit {
            holders.sort_by_key(|(bytes, _)| std::cmp::Reverse(*bytes));
            let over = over(&holders, held, self.limit);
            cut.extend(over.map(|(_, number)| (*number, Limit::BytesInFlight)));
        }
        // Taken out, so that nothing is cut twice; and dropped once the table is free again.
        let cut: Vec<_> =
            cut.into_iter().filter_map(|(number, limit)| Some((answers.remove(&number)?, limit))).collect();
        drop(answers);
        for (answer, limit) in cut {
            answer.cut();
            metrics.limit(limit);
        }
        held
    }
}

impl Answer {
    fn cut(&self) {
        self.grip.cut();
        (self.release)();
    }

    /// How much it holds.
    fn look(&mut self, now: Instant) -> u64 {
        let look = self.grip.look();
        if look.taken != self.last.taken || look.awaited {
            self.since = now;
        }
        self.last = look;
        look.unread as u64
    }
}

impl fmt::Debug for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Answer").field("last", &self.last).finish_non_exhaustive()
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
        let answer = self.budget.answers.lock().remove(&self.number);
        // Not under the lock: this may be the last that holds on to a tunnel.
        drop(answer);
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
