//! The age at which tunnels are replaced. With `max_connection_age: auto` it adapts to the age at which a load balancer cuts
//! connections.

use std::time::Duration;

use parking_lot::Mutex;
use prometheus_client::metrics::gauge::Gauge;
use proto::{AgentId, AgentName};
use tokio::{
    sync::watch,
    time::{Instant, sleep_until},
};

use super::lifetime::{DetectedLifetime, LifetimeDetector, Loss};
use crate::config::ConnectionAge;

/// The part of the age at which connections are cut after which a tunnel is replaced. The rest is for the jitter, and for
/// opening the next tunnel.
const SHARE: f64 = 0.85;

/// The maximum age of tunnels, of one replica.
#[derive(Debug)]
pub struct MaxAge {
    configured: ConnectionAge,
    lifetimes: Mutex<LifetimeDetector>,
    /// A cut age was detected.
    detected: watch::Sender<()>,
    cut_age: Gauge,
}

impl MaxAge {
    /// Starts with the configured age. `cut_age` is the metric of the age that was detected last, in seconds.
    pub fn new(configured: ConnectionAge, cut_age: Gauge) -> Self {
        Self { configured, lifetimes: Mutex::default(), detected: watch::Sender::new(()), cut_age }
    }

    /// Records that a tunnel of the agent with this name broke off.
    pub(super) fn record_loss(&self, loss: Loss, name: &AgentName) {
        let Some(detected) = self.lifetimes.lock().record_loss(loss) else { return };
        let (age, agent) = match detected {
            DetectedLifetime::OfAll(age) => (age, None),
            DetectedLifetime::OfAgent(age) => (age, Some(name.as_str())),
        };
        self.cut_age.set(i64::try_from(age.as_secs()).unwrap_or(i64::MAX));
        self.detected.send_replace(());
        tracing::warn!(
            agent.name = agent,
            cut_age_seconds = age.as_secs(),
            max_connection_age_seconds = self.of(loss.agent, loss.at).as_secs(),
            recommended_seconds = age.mul_f64(SHARE).as_secs(),
            "tunnels keep breaking off at one age: a load balancer or proxy between agentk and kas limits the age of \
             connections. Raise its limit (the timeout of the backend, of a request or of a WebSocket) to 24 h, or set \
             agent.listen.max_connection_age to the recommended time"
        );
    }

    /// Completes when a tunnel of the agent that was opened at `since` has the maximum age, times `jitter`. The maximum may change
    /// before.
    pub(super) async fn reached(&self, agent: AgentId, since: Instant, jitter: f64) {
        let mut detected = self.detected.subscribe();
        loop {
            detected.mark_unchanged();
            let due = since + self.of(agent, Instant::now()).mul_f64(jitter);
            if due <= Instant::now() {
                return;
            }
            tokio::select! {
                // The age may be forgotten by then.
                () = sleep_until(due) => {}
                // The sender lives as long as self.
                _ = detected.changed() => {}
            }
        }
    }

    fn of(&self, agent: AgentId, now: Instant) -> Duration {
        let initial = self.configured.initial();
        match self.configured {
            ConnectionAge::Auto => {
                let cut_age = self.lifetimes.lock().of(agent, now);
                cut_age.map_or(initial, |cut_age| cut_age.mul_f64(SHARE).min(initial))
            }
            ConnectionAge::Fixed(_) => initial,
        }
    }
}

#[cfg(test)]
mod tests {
    use proto::InstanceId;

    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

    fn lose(max_age: &MaxAge, age: Duration, at: Instant) {
        let loss =
            Loss { agent: AgentId(1), instance: InstanceId::from_bytes([1; 16]), address: [1; 16], age, at };
        max_age.record_loss(loss, &"prod".parse().unwrap());
    }

    /// Returns the maximum ages of the agent and of another, and the metric, after five losses of the agent at `age`.
    fn after_losses(configured: ConnectionAge, age: Duration) -> (Duration, Duration, i64) {
        let (gauge, start) = (Gauge::default(), Instant::now());
        let max_age = MaxAge::new(configured, gauge.clone());
        (1..=5).for_each(|round| lose(&max_age, age, start + age * round));
        let of = |agent| max_age.of(AgentId(agent), start + age * 5);
        (of(1), of(2), gauge.get())
    }

    #[test]
    fn auto_is_85_percent_of_the_cut_age_of_the_agent_and_at_most_two_hours() {
        let detected = after_losses(ConnectionAge::Auto, Duration::from_secs(600));
        assert_eq!(detected, (Duration::from_secs(510), 2 * HOUR, 600));
        assert_eq!(after_losses(ConnectionAge::Auto, 10 * HOUR), (2 * HOUR, 2 * HOUR, 36_000));
    }

    #[test]
    fn configured_age_does_not_change() {
        assert_eq!(after_losses(HOUR.into(), Duration::from_secs(600)), (HOUR, HOUR, 600));
    }

    #[tokio::test(start_paused = true)]
    async fn open_tunnel_is_replaced_at_the_new_age() {
        let max_age = MaxAge::new(ConnectionAge::Auto, Gauge::default());
        let start = Instant::now();
        let losses = async {
            for round in 1..=5 {
                tokio::time::sleep(Duration::from_secs(60)).await;
                lose(&max_age, Duration::from_secs(400), start + Duration::from_secs(60) * round);
            }
        };
        tokio::join!(losses, max_age.reached(AgentId(1), start, 1.0));
        assert_eq!(start.elapsed().as_secs(), 340);
    }
}
