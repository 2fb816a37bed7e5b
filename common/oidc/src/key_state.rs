//! The times at which the keys of an issuer are fetched, and the time for which they are used: pure functions of the time.

use std::{sync::Arc, time::Duration};

use tokio::time::Instant;

use super::keys::JwkSet;

/// The time between two fetches. A key that an issuer has removed is used for this time at most, while the issuer responds.
const REFRESH_PERIOD: Duration = Duration::from_secs(5 * 60);
/// The time for which keys are used while the issuer does not respond.
const MAX_AGE: Duration = Duration::from_secs(6 * 60 * 60);
/// The least time between two fetches, so that tokens with random `kid` do not flood the issuer.
const MIN_INTERVAL: Duration = Duration::from_secs(10);
/// The longest time between two fetches that fail.
const MAX_RETRY: Duration = Duration::from_secs(60);

/// The keys of an issuer, and the result of the last attempt to fetch them.
#[derive(Clone, Debug, Default)]
pub(super) struct KeyState {
    keys: Option<(Arc<JwkSet>, Instant)>,
    last_attempt: Option<Instant>,
    /// The number of attempts, for requests that wait for the next one.
    pub(super) attempts: u64,
    /// The attempts since the last success.
    failures: u32,
}

impl KeyState {
    /// Records an attempt that ended at `now`. Keys stay if it failed.
    pub(super) fn record(&mut self, keys: Option<Arc<JwkSet>>, now: Instant) {
        self.attempts += 1;
        self.last_attempt = Some(now);
        match keys {
            Some(keys) => (self.keys, self.failures) = (Some((keys, now)), 0),
            None => self.failures = self.failures.saturating_add(1),
        }
    }

    /// Returns the keys, unless they are too old.
    pub(super) fn usable(&self, now: Instant) -> Option<&Arc<JwkSet>> {
        let (keys, fetched) = self.keys.as_ref()?;
        (now.saturating_duration_since(*fetched) < MAX_AGE).then_some(keys)
    }

    /// Returns whether the last attempt failed.
    pub(super) fn failed(&self) -> bool {
        self.failures > 0
    }

    /// Returns the time until a request may cause an attempt.
    pub(super) fn until_allowed(&self, now: Instant) -> Duration {
        self.last_attempt.map_or(Duration::ZERO, |last| (last + MIN_INTERVAL).saturating_duration_since(now))
    }

    /// Returns the time until the next attempt without a request. `jitter`, from 0 to 1, spreads replicas.
    pub(super) fn until_due(&self, now: Instant, jitter: f64) -> Duration {
        let Some(last) = self.last_attempt else { return Duration::ZERO };
        let wait = match self.failures {
            0 => REFRESH_PERIOD,
            failures => Duration::from_secs(1 << failures.min(6)).min(MAX_RETRY),
        };
        (last + wait.mul_f64(1.0 - jitter / 5.0)).saturating_duration_since(now)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn keys() -> Option<Arc<JwkSet>> {
        let keys = json!({"keys": [{"kty": "RSA", "n": "AQAB", "e": "AQAB"}]}).to_string();
        Some(Arc::new(JwkSet::parse(keys.as_bytes()).unwrap()))
    }

    #[test]
    fn keys_survive_an_outage_for_six_hours() {
        let start = Instant::now();
        let mut state = KeyState::default();
        assert!(state.usable(start).is_none());
        state.record(keys(), start);
        for minutes in 1..360 {
            state.record(None, start + Duration::from_secs(60 * minutes));
        }
        assert!(state.failed());
        assert!(state.usable(start + MAX_AGE - Duration::from_secs(1)).is_some());
        assert!(state.usable(start + MAX_AGE).is_none());
        state.record(keys(), start + MAX_AGE);
        assert!(state.usable(start + MAX_AGE).is_some() && !state.failed());
    }

    #[test]
    fn requests_cause_at_most_one_fetch_in_ten_seconds() {
        let start = Instant::now();
        let mut state = KeyState::default();
        assert_eq!(state.until_allowed(start), Duration::ZERO);
        state.record(keys(), start);
        assert_eq!(state.until_allowed(start + Duration::from_secs(3)), Duration::from_secs(7));
        assert_eq!(state.until_allowed(start + Duration::from_secs(10)), Duration::ZERO);
    }

    #[test]
    fn keys_are_fetched_every_five_minutes_and_sooner_after_a_failure() {
        let start = Instant::now();
        let mut state = KeyState::default();
        assert_eq!(state.until_due(start, 0.0), Duration::ZERO);
        state.record(keys(), start);
        assert_eq!(state.until_due(start, 0.0), REFRESH_PERIOD);
        assert_eq!(state.until_due(start, 1.0), Duration::from_secs(240));
        let mut waits = Vec::new();
        for _ in 0..8 {
            state.record(None, start);
            waits.push(state.until_due(start, 0.0).as_secs());
        }
        assert_eq!(waits, [2, 4, 8, 16, 32, 60, 60, 60]);
    }
}
