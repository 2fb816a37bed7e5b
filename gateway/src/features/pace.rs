//! A limit whose excess waits: looks at one server, events of one agent. None fails.

use std::time::Duration;

use tokio::time::{Instant, sleep};

/// Spaces the looks at a server, or the events of an agent.
#[derive(Debug)]
pub(super) struct ServerPace {
    #[expect(
        clippy::disallowed_types,
        reason = "looks wait in the order of their arrival, and one that is cancelled has taken nothing"
    )]
    pace: tokio::sync::Mutex<Pace>,
}

/// Admits a burst, and then a steady rate (GCRA).
#[derive(Clone, Copy, Debug)]
struct Pace {
    interval: Duration,
    /// The burst, as time at the steady rate.
    burst: Duration,
    /// The theoretical arrival time of the next look.
    arrival: Instant,
}

impl ServerPace {
    /// Admits so many looks in each second, and as many at once.
    pub(super) fn new(per_second: u32) -> Self {
        let per_second = per_second.max(1);
        Self::with_burst(Duration::from_secs(1) / per_second, per_second)
    }

    /// Admits one look in each interval, and so many at once.
    pub(super) fn with_burst(interval: Duration, burst: u32) -> Self {
        Self { pace: Pace { interval, burst: interval * burst, arrival: Instant::now() }.into() }
    }

    /// Waits until the server may be looked at. Returns whether that was not at once.
    pub(super) async fn wait(&self) -> bool {
        let queued = self.pace.try_lock().is_err();
        let mut pace = self.pace.lock().await;
        let wait = pace.wait(Instant::now());
        sleep(wait).await;
        pace.take(Instant::now());
        queued || !wait.is_zero()
    }
}

impl Pace {
    /// Returns how long a look has to wait.
    fn wait(&self, now: Instant) -> Duration {
        (self.arrival + self.interval).saturating_duration_since(now + self.burst)
    }

    fn take(&mut self, now: Instant) {
        self.arrival = self.arrival.max(now) + self.interval;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use futures_util::future::join_all;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn burst_then_steady_rate_in_the_order_of_arrival() {
        let (pace, start) = (Arc::new(ServerPace::new(10)), Instant::now());
        let looks = join_all((0..30).map(async |_| (pace.wait().await, start.elapsed()))).await;
        let at: Vec<u128> = looks.iter().map(|(_, at)| at.as_millis()).collect();
        assert_eq!(at[..10], [0; 10], "a burst of one second");
        assert!(at.is_sorted(), "{at:?}");
        assert!((1900..=2100).contains(at.last().unwrap()), "{at:?}");
        assert_eq!(looks.iter().filter(|(delayed, _)| *delayed).count(), 20);
    }

    #[tokio::test(start_paused = true)]
    async fn look_that_is_cancelled_has_taken_nothing() {
        let pace = ServerPace::new(1);
        assert!(!pace.wait().await);
        for _ in 0..100 {
            let cancelled = tokio::time::timeout(Duration::from_millis(1), pace.wait()).await;
            assert!(cancelled.is_err());
        }
        let start = Instant::now();
        assert!(pace.wait().await);
        assert!(start.elapsed() <= Duration::from_secs(1), "{:?}", start.elapsed());
    }
}
