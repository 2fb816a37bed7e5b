//! Detects the idle timeout of a proxy: tunnels that keep ending after the same time without a byte.

use std::time::Duration;

use tokio::time::Instant;

/// Number of losses, at different moments, that indicate an idle timeout.
const MIN_EVENTS: u32 = 3;

/// Losses within this time count as one: a proxy was restarted, or the network failed.
const EVENT_WINDOW: Duration = Duration::from_secs(1);

/// Largest difference between two times of silence that count as the same.
const TOLERANCE: Duration = Duration::from_secs(1);

/// Shortest idle timeout. Connections that carry requests are often silent for less.
const MIN_IDLE_TIMEOUT: Duration = Duration::from_secs(2);

/// The remedy for an idle timeout, for the logs of kas and agentk.
pub const IDLE_TIMEOUT_HINT: &str = "tunnels keep ending after this time without a byte: a proxy or load balancer \
    between agentk and kas closes idle connections; raise its idle timeout, or set agent.tunnel.keepalive_interval of kas \
    to less than half of it";

/// Detects that tunnels keep ending after the same time without a byte.
#[derive(Debug, Default)]
pub struct IdleTimeoutDetector {
    silence: Duration,
    events: u32,
    last: Option<Instant>,
}

impl IdleTimeoutDetector {
    /// Records that a tunnel was lost `silence` after the last byte. Returns true if this is the idle timeout of a proxy.
    pub fn record_loss(&mut self, silence: Duration, now: Instant) -> bool {
        let same = silence >= MIN_IDLE_TIMEOUT && silence.abs_diff(self.silence) <= TOLERANCE;
        if self.last.is_none_or(|last| now >= last + EVENT_WINDOW) {
            self.events = if same { self.events + 1 } else { 1 };
            self.silence = silence;
            self.last = Some(now);
        }
        same && self.events >= MIN_EVENTS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the results for losses: pairs of the second of the loss and the seconds of silence before it.
    fn results(ends: &[(u64, u64)]) -> Vec<bool> {
        let (mut idle, start) = (IdleTimeoutDetector::default(), Instant::now());
        let lost = |(at, silence): &(u64, u64)| {
            idle.record_loss(Duration::from_secs(*silence), start + Duration::from_secs(*at))
        };
        ends.iter().map(lost).collect()
    }

    #[test]
    fn third_loss_after_the_same_silence_is_an_idle_timeout() {
        assert_eq!(results(&[(10, 10), (21, 10), (32, 11), (43, 10)]), [false, false, true, true]);
    }

    #[test]
    fn loss_after_another_silence_restarts_the_count() {
        assert_eq!(results(&[(10, 10), (21, 10), (30, 5), (41, 10)]), [false; 4]);
    }

    #[test]
    fn losses_at_one_moment_count_once() {
        assert_eq!(results(&[(10, 10); 5]), [false; 5]);
        assert_eq!(
            results(&[(10, 9), (20, 9), (30, 9), (30, 9), (30, 3)]),
            [false, false, true, true, false]
        );
    }

    #[test]
    fn silence_of_less_than_two_seconds_is_no_idle_timeout() {
        assert_eq!(results(&[(10, 1), (20, 1), (30, 1), (40, 1)]), [false; 4]);
    }
}
