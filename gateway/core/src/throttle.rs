//! A rate limit whose excess waits: requests to one server, events of one agent. None fails.

use std::time::Duration;

use tokio::time::{Instant, sleep};

/// Admits requests in the order of their arrival, at a limited rate.
#[derive(Debug)]
pub struct Throttle {
    #[expect(
        clippy::disallowed_types,
        reason = "requests wait in the order of their arrival, and one that is cancelled has taken nothing"
    )]
    state: tokio::sync::Mutex<ThrottleState>,
}

/// Admits a burst, and then a steady rate (GCRA).
#[derive(Clone, Copy, Debug)]
struct ThrottleState {
    interval: Duration,
    /// The burst, as time at the steady rate.
    burst: Duration,
    /// The theoretical arrival time of the next request.
    arrival: Instant,
}

impl Throttle {
    /// Admits `per_second` requests in each second, and as many at once.
    pub fn new(per_second: u32) -> Self {
        let per_second = per_second.max(1);
        Self::with_burst(Duration::from_secs(1) / per_second, per_second)
    }

    /// Admits one request in each `interval`, and `burst` at once.
    pub fn with_burst(interval: Duration, burst: u32) -> Self {
        let arrival = Instant::now();
        Self { state: ThrottleState { interval, burst: interval * burst, arrival }.into() }
    }

    /// Waits until the next request is admitted. Returns whether that was not at once.
    pub async fn wait(&self) -> bool {
        let queued = self.state.try_lock().is_err();
        let mut state = self.state.lock().await;
        let wait = state.wait(Instant::now());
        sleep(wait).await;
        state.take(Instant::now());
        queued || !wait.is_zero()
    }
}

impl ThrottleState {
    /// Returns how long a request has to wait.
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
        let (throttle, start) = (Arc::new(Throttle::new(10)), Instant::now());
        let requests = join_all((0..30).map(async |_| (throttle.wait().await, start.elapsed()))).await;
        let at: Vec<u128> = requests.iter().map(|(_, at)| at.as_millis()).collect();
        assert_eq!(at[..10], [0; 10], "a burst of one second");
        assert!(at.is_sorted(), "{at:?}");
        assert!((1900..=2100).contains(at.last().unwrap()), "{at:?}");
        assert_eq!(requests.iter().filter(|(delayed, _)| *delayed).count(), 20);
    }

    #[tokio::test(start_paused = true)]
    async fn request_that_is_cancelled_has_taken_nothing() {
        let throttle = Throttle::new(1);
        assert!(!throttle.wait().await);
        for _ in 0..100 {
            let cancelled = tokio::time::timeout(Duration::from_millis(1), throttle.wait()).await;
            assert!(cancelled.is_err());
        }
        let start = Instant::now();
        assert!(throttle.wait().await);
        assert!(start.elapsed() <= Duration::from_secs(1), "{:?}", start.elapsed());
    }
}
