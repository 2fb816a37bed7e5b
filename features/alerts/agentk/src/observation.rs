//! The time for which all sources of alerts were followed without a gap.

use std::{collections::BTreeSet, time::Duration};

use tokio::time::Instant;

/// The name of the relay among the sources.
pub(super) const HUBBLE: &str = "hubble";

/// Notes the gaps of sources.
#[derive(Debug)]
pub(super) struct Observation {
    /// The end of the last gap.
    since: Instant,
    interrupted: BTreeSet<String>,
}

impl Observation {
    /// Returns an observation that begins once the sources are followed. The relay is interrupted until it responds.
    pub(super) fn new(has_relay: bool) -> Self {
        let interrupted = has_relay.then(|| HUBBLE.to_owned()).into_iter().collect();
        Self { since: Instant::now(), interrupted }
    }

    /// Notes that a source is not followed.
    pub(super) fn interrupt(&mut self, source: &str) {
        if !self.interrupted.contains(source) {
            self.interrupted.insert(source.to_owned());
        }
    }

    /// Notes that a source is followed.
    pub(super) fn resume(&mut self, source: &str) {
        if self.interrupted.remove(source) {
            self.since = Instant::now();
        }
    }

    /// Notes that other objects are watched from now on.
    pub(super) fn restart_watches(&mut self) {
        self.interrupted.retain(|source| source == HUBBLE);
        self.since = Instant::now();
    }

    /// Returns the time since the last gap.
    pub(super) fn duration(&self) -> Duration {
        if self.interrupted.is_empty() { self.since.elapsed() } else { Duration::ZERO }
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[tokio::test(start_paused = true)]
    async fn observation_begins_anew_after_each_gap() {
        let mut observation = Observation::new(true);
        advance(SECOND).await;
        assert_eq!(observation.duration(), Duration::ZERO, "the relay has not responded");
        observation.resume(HUBBLE);
        advance(SECOND).await;
        observation.resume(HUBBLE);
        assert_eq!(observation.duration(), SECOND, "it was followed already");
        observation.interrupt("events/shop");
        observation.interrupt(HUBBLE);
        observation.resume(HUBBLE);
        advance(SECOND).await;
        assert_eq!(observation.duration(), Duration::ZERO, "one is left");
        observation.resume("events/shop");
        advance(SECOND).await;
        assert_eq!(observation.duration(), SECOND);
        observation.interrupt("events/shop");
        observation.restart_watches();
        advance(SECOND).await;
        assert_eq!(observation.duration(), SECOND, "the namespace is watched no more");
    }
}
