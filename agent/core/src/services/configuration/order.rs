//! The order of the updates of several replicas of kas, which read the configuration independently.
//!
//! The clocks of other machines are not compared: each update says how long ago its kas has read the file, and the clock of this process
//! says when it arrived. An update can thus be the newest one of now, and never one of the future.

use std::time::{Duration, SystemTime};

use proto::agent_configuration::ConfigurationUpdate;
use tokio::time::Instant;

/// The time when the file of the newest update was read, by the clock of this process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct UpdateOrder {
    /// `None` before the first update, and for a time before the beginning of the clock.
    read: Option<Instant>,
}

impl UpdateOrder {
    /// Returns whether no newer update was admitted before.
    pub(super) fn admit(&mut self, age: Duration, now: Instant) -> bool {
        let read = now.checked_sub(age);
        let admitted = read >= self.read;
        if admitted {
            self.read = read;
        }
        admitted
    }
}

/// Returns the time since kas has read the file. A kas without `age` sends the time by its clock, which may be ahead.
pub(super) fn age(update: &ConfigurationUpdate, now: SystemTime) -> Duration {
    let observed = || SystemTime::UNIX_EPOCH.checked_add(Duration::from_millis(update.observed));
    match update.age {
        Some(age) => Duration::from_millis(age),
        None => observed().and_then(|observed| now.duration_since(observed).ok()).unwrap_or_default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn update_that_was_read_before_the_newest_one_is_not_admitted() {
        let (start, mut order) = (Instant::now(), UpdateOrder::default());
        let at = |seconds| start + seconds * SECOND;
        for (now, age, admitted) in [
            (100, 50, true),
            (101, 60, false),
            (102, 51, true),
            (103, 0, true),
            (104, 1, true),
            (105, 3, false),
            // The time is before the beginning of the clock of some systems.
            (106, u64::MAX / 1000, false),
            (107, 0, true),
        ] {
            assert_eq!(order.admit(Duration::from_secs(age), at(now)), admitted, "{age} s at {now} s");
        }
    }

    #[test]
    fn clock_of_kas_counts_only_without_an_age_and_not_for_the_future() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000);
        let update = |observed: u64, age| ConfigurationUpdate {
            observed,
            age,
            version: None,
            configuration: None,
            error: None,
            places: Default::default(),
            provision: None,
        };
        let hour = 3600 * SECOND;
        for (observed, given, expected) in [
            (1_000_000_000, None, Duration::ZERO),
            (999_999_000, None, SECOND),
            (1_003_600_000, None, Duration::ZERO),
            (1 << 62, None, Duration::ZERO),
            (u64::MAX, None, Duration::ZERO),
            (0, None, 1_000_000 * SECOND),
            (1 << 62, Some(2000), 2 * SECOND),
            (0, Some(3_600_000), hour),
        ] {
            assert_eq!(age(&update(observed, given), now), expected, "{observed} {given:?}");
        }
    }
}
