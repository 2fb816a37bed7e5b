//! [`RequestBudget`]: the limits of requests to GitLab, and the shares of them.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::{
    sync::{Semaphore, SemaphorePermit},
    time::{Instant, sleep},
};

use crate::config::ApiRateLimit;

/// The requests in flight of each share. Each of them is a connection.
pub(crate) const MAX_IN_FLIGHT: usize = 32;

/// The requests that share a part of `gitlab.api_rate_limit`.
///
/// A share has at least a fifth of the rate while it has requests that wait, and all of it while the others have none. The requests
/// of strangers and of modules are thus never in the way of others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BudgetShare {
    /// Credentials with open streams or tunnels, which end if a credential was revoked.
    Rechecks,
    /// Agents whose tokens this replica does not know, their configurations, and reports of kas.
    Agents,
    /// Callers whose credentials GitLab has confirmed to this replica.
    KnownCallers,
    /// All other callers.
    UnknownCallers,
    /// Modules of GitLab's agentk, which send what they want.
    Modules,
}

/// Delays requests above the limits.
#[derive(Debug)]
pub(super) struct RequestBudget {
    bucket: Mutex<TokenBucket>,
    /// The permit for the next token. It goes around the shares, because each has at most one request that waits for it.
    turn: Semaphore,
    queues: [ShareQueue; BudgetShare::ALL.len()],
}

/// The requests of a share, in the order of their arrival.
#[derive(Debug)]
struct ShareQueue {
    in_flight: Semaphore,
    first: Semaphore,
}

impl BudgetShare {
    /// All shares, in the order of their declaration.
    pub(super) const ALL: [Self; 5] =
        [Self::Rechecks, Self::Agents, Self::KnownCallers, Self::UnknownCallers, Self::Modules];

    /// Returns the value of the label `share`.
    pub(super) fn label(self) -> &'static str {
        match self {
            Self::Rechecks => "rechecks",
            Self::Agents => "agents",
            Self::KnownCallers => "known-callers",
            Self::UnknownCallers => "unknown-callers",
            Self::Modules => "modules",
        }
    }

    /// Returns the longest wait of a request. A caller is told the reason before it gives up.
    pub(super) fn longest_wait(self) -> Duration {
        match self {
            Self::Rechecks | Self::Agents => Duration::from_secs(30),
            Self::KnownCallers | Self::UnknownCallers | Self::Modules => Duration::from_secs(5),
        }
    }
}

impl RequestBudget {
    pub(super) fn new(limit: &ApiRateLimit) -> Self {
        let bucket = TokenBucket::new(limit.refill_rate_per_second, limit.bucket_size, Instant::now());
        let queue = |_| ShareQueue { in_flight: Semaphore::new(MAX_IN_FLIGHT), first: Semaphore::new(1) };
        Self { bucket: Mutex::new(bucket), turn: Semaphore::new(1), queues: BudgetShare::ALL.map(queue) }
    }

    /// Waits until a request may be sent. It is in flight until the permit is dropped.
    ///
    /// If the future is dropped, it has taken nothing.
    pub(super) async fn acquire(&self, share: BudgetShare) -> SemaphorePermit<'_> {
        let queue = &self.queues[share as usize];
        let permit = acquire(&queue.in_flight).await;
        let _first = acquire(&queue.first).await;
        let _turn = acquire(&self.turn).await;
        let wait = self.bucket.lock().until_next(Instant::now());
        sleep(wait).await;
        self.bucket.lock().take(Instant::now());
        permit
    }
}

/// Acquires a permit, in the order of arrival.
async fn acquire(semaphore: &Semaphore) -> SemaphorePermit<'_> {
    semaphore.acquire().await.expect("the semaphore is never closed")
}

/// A token bucket.
#[derive(Clone, Copy, Debug)]
pub(super) struct TokenBucket {
    /// The time in which one token is added.
    interval: Duration,
    /// The time in which an empty bucket fills.
    capacity: Duration,
    /// The time at which the bucket is full again.
    full_at: Instant,
}

impl TokenBucket {
    /// Creates a full bucket of `size` tokens, to which `per_second` tokens are added per second.
    pub(super) fn new(per_second: u32, size: u32, now: Instant) -> Self {
        let interval = Duration::from_secs(1) / per_second.max(1);
        Self { interval, capacity: interval * size.max(1), full_at: now }
    }

    /// Returns the time until the bucket has a token.
    pub(super) fn until_next(&self, now: Instant) -> Duration {
        (self.full_at.max(now) + self.interval - now).saturating_sub(self.capacity)
    }

    /// Takes a token, which the bucket has.
    pub(super) fn take(&mut self, now: Instant) {
        self.full_at = self.full_at.max(now) + self.interval;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tokio::task::JoinSet;

    use super::*;

    /// A budget of 50 requests per second whose burst is used up.
    async fn exhausted() -> Arc<RequestBudget> {
        let budget =
            Arc::new(RequestBudget::new(&ApiRateLimit { refill_rate_per_second: 50, bucket_size: 10 }));
        for _ in 0..10 {
            drop(budget.acquire(BudgetShare::Agents).await);
        }
        budget
    }

    /// Requests of a share that wait, one after the other.
    fn flood(budget: &Arc<RequestBudget>, share: BudgetShare, requests: usize) -> JoinSet<Duration> {
        let (mut tasks, started) = (JoinSet::new(), Instant::now());
        for _ in 0..requests {
            let budget = Arc::clone(budget);
            tasks.spawn(async move {
                drop(budget.acquire(share).await);
                started.elapsed()
            });
        }
        tasks
    }

    #[tokio::test(start_paused = true)]
    async fn strangers_and_modules_do_not_delay_others() {
        let budget = exhausted().await;
        let _strangers = flood(&budget, BudgetShare::UnknownCallers, 10_000);
        let _modules = flood(&budget, BudgetShare::Modules, 10_000);
        sleep(Duration::from_secs(10)).await;
        for share in [BudgetShare::Rechecks, BudgetShare::Agents, BudgetShare::KnownCallers] {
            for _ in 0..10 {
                let started = Instant::now();
                drop(budget.acquire(share).await);
                assert!(started.elapsed() <= Duration::from_millis(80), "{share:?}: {:?}", started.elapsed());
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn strangers_whose_requests_hang_leave_connections_to_others() {
        let budget = exhausted().await;
        let mut hanging = Vec::new();
        for _ in 0..MAX_IN_FLIGHT {
            hanging.push(budget.acquire(BudgetShare::UnknownCallers).await);
        }
        let wait = Duration::from_secs(3600);
        assert!(tokio::time::timeout(wait, budget.acquire(BudgetShare::UnknownCallers)).await.is_err());
        for share in [BudgetShare::Rechecks, BudgetShare::Agents, BudgetShare::KnownCallers] {
            hanging.push(budget.acquire(share).await);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn each_share_has_a_fifth_of_the_rate_and_one_alone_has_all_of_it() {
        let budget = exhausted().await;
        let mut alone = flood(&budget, BudgetShare::UnknownCallers, 100);
        let mut last = Duration::ZERO;
        while let Some(waited) = alone.join_next().await {
            last = last.max(waited.unwrap());
        }
        assert!((1990..=2300).contains(&last.as_millis()), "{last:?}");

        let mut floods = BudgetShare::ALL.map(|share| flood(&budget, share, 100));
        sleep(Duration::from_secs(4)).await;
        for (share, tasks) in BudgetShare::ALL.iter().zip(&mut floods) {
            let mut done = 0;
            while tasks.try_join_next().is_some() {
                done += 1;
            }
            assert!((35..=45).contains(&done), "{share:?}: {done} of 200");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn request_that_leaves_the_queue_takes_nothing() {
        let budget = exhausted().await;
        for share in BudgetShare::ALL {
            let waiting = flood(&budget, share, 1000);
            sleep(Duration::from_millis(5)).await;
            drop(waiting);
            let started = Instant::now();
            drop(budget.acquire(share).await);
            assert!(started.elapsed() <= Duration::from_millis(21), "{share:?}: {:?}", started.elapsed());
        }
    }

    #[test]
    fn burst_is_free_and_then_tokens_come_at_the_rate() {
        let mut now = Instant::now();
        let mut bucket = TokenBucket::new(50, 250, now);
        for _ in 0..250 {
            assert_eq!(bucket.until_next(now), Duration::ZERO);
            bucket.take(now);
        }
        for _ in 0..50 {
            assert_eq!(bucket.until_next(now), Duration::from_millis(20));
            now += Duration::from_millis(20);
            assert_eq!(bucket.until_next(now), Duration::ZERO);
            bucket.take(now);
        }
        now += Duration::from_secs(3600);
        (0..250).for_each(|_| bucket.take(now));
        assert_eq!(bucket.until_next(now), Duration::from_millis(20), "it holds 250 at most");
    }
}
