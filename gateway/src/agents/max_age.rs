//! The age at which tunnels are replaced. With `max_connection_age: auto` it adapts to the age at which a load balancer cuts
//! connections.

use std::time::Duration;

use parking_lot::Mutex;
use prometheus_client::metrics::gauge::Gauge;
use tokio::{
    sync::watch,
    time::{Instant, sleep_until},
};

use super::cut_age::CutAgeDetector;
use crate::config::ConnectionAge;

/// The part of the age at which connections are cut after which a tunnel is replaced. The rest is for the jitter, and for
/// opening the next tunnel.
const SHARE: f64 = 0.85;

/// The maximum age of tunnels, of one replica.
#[derive(Debug)]
pub struct MaxAge {
    current: watch::Sender<Duration>,
    adapts: bool,
    detector: Mutex<CutAgeDetector>,
    cut_age: Gauge,
}

impl MaxAge {
    /// Begins with the configured age. `cut_age` is the metric of the detected age in seconds.
    pub(crate) fn new(configured: ConnectionAge, cut_age: Gauge) -> Self {
        let adapts = matches!(configured, ConnectionAge::Auto);
        let current = watch::Sender::new(configured.initial());
        Self { current, adapts, detector: Mutex::default(), cut_age }
    }

    /// Records that a tunnel broke off at `age`.
    pub(super) fn record_loss(&self, age: Duration, now: Instant) {
        let Some(cut_age) = self.detector.lock().record_loss(age, now) else { return };
        let (replaced, seconds) = (cut_age.mul_f64(SHARE), cut_age.as_secs());
        self.cut_age.set(i64::try_from(seconds).unwrap_or(i64::MAX));
        if self.adapts {
            self.current.send_if_modified(|current| {
                let shorter = replaced < ConnectionAge::Auto.initial();
                let next = if shorter { replaced } else { ConnectionAge::Auto.initial() };
                std::mem::replace(current, next) != next
            });
        }
        tracing::warn!(
            cut_age_seconds = seconds,
            max_connection_age_seconds = self.current.borrow().as_secs(),
            recommended_seconds = replaced.as_secs(),
            "tunnels keep breaking off at one age: a load balancer or proxy between agentk and kas limits the age of \
             connections. Raise its limit (the timeout of the backend, of a request or of a WebSocket) to 24 h, or set \
             agent.listen.max_connection_age to the recommended time"
        );
    }

    /// Completes when a tunnel that was opened at `since` has the maximum age, times `jitter`. The maximum may change before.
    pub(super) async fn reached(&self, since: Instant, jitter: f64) {
        let mut current = self.current.subscribe();
        loop {
            let due = since + current.borrow_and_update().mul_f64(jitter);
            tokio::select! {
                () = sleep_until(due) => return,
                // The sender lives as long as self.
                _ = current.changed() => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

    /// Returns the maximum age and the metric after five losses at `age`.
    fn after_losses(configured: ConnectionAge, age: Duration) -> (Duration, i64) {
        let (gauge, start) = (Gauge::default(), Instant::now());
        let max_age = MaxAge::new(configured, gauge.clone());
        (1..=5).for_each(|round| max_age.record_loss(age, start + age * round));
        let current = *max_age.current.borrow();
        (current, gauge.get())
    }

    #[test]
    fn auto_is_85_percent_of_the_cut_age_and_at_most_two_hours() {
        assert_eq!(
            after_losses(ConnectionAge::Auto, Duration::from_secs(600)),
            (Duration::from_secs(510), 600)
        );
        assert_eq!(after_losses(ConnectionAge::Auto, 10 * HOUR), (2 * HOUR, 36_000));
    }

    #[test]
    fn configured_age_does_not_change() {
        assert_eq!(after_losses(HOUR.into(), Duration::from_secs(600)), (HOUR, 600));
    }

    #[tokio::test(start_paused = true)]
    async fn open_tunnel_is_replaced_at_the_new_age() {
        let max_age = MaxAge::new(ConnectionAge::Auto, Gauge::default());
        let start = Instant::now();
        let losses = async {
            for round in 1..=5 {
                tokio::time::sleep(Duration::from_secs(60)).await;
                max_age.record_loss(Duration::from_secs(400), start + Duration::from_secs(60) * round);
            }
        };
        tokio::join!(losses, max_age.reached(start, 1.0));
        assert_eq!(start.elapsed().as_secs(), 340);
    }
}
