//! The list of all open alerts, with which kas ends those of a process that was killed.

use std::time::{Duration, SystemTime};

use proto::events::OpenAlerts;

use super::{AlertTable, HANDOVER, MAX_OPEN, MAX_PER_SOURCE, elapsed};
use crate::alert::{AGAIN, AlertKey};

impl AlertTable {
    /// Returns all open alerts for kas, if they are due: when this pod has come to lead, and each quarter of an hour then.
    ///
    /// `observed` is the time for which all sources were followed without a gap. Only after a quiet period, the table has each alert that
    /// goes on.
    pub fn all_open(&mut self, now: SystemTime, leading: bool, observed: Duration) -> Option<OpenAlerts> {
        self.ended.retain(|_, at| elapsed(*at, now) < HANDOVER);
        if !leading || observed < self.quiet_period {
            self.listed = None;
            return None;
        }
        let due = self.listed.is_none_or(|at| elapsed(at, now) >= AGAIN);
        // The list would be too long. The next look comes soon.
        if !due || self.ended.len() > MAX_OPEN || self.has_folded() {
            return None;
        }
        self.listed = Some(now);
        let open = self.groups.iter().map(|(key, group)| group.alert(key).fingerprint());
        // Their ends are on their way to kas, which must not report them a second time.
        let fingerprints = open.chain(self.ended.keys().cloned()).collect();
        let since = now.checked_sub(self.quiet_period).unwrap_or(SystemTime::UNIX_EPOCH);
        Some(OpenAlerts { since, fingerprints })
    }

    /// Returns whether alerts may be hidden in others: the pod that led before may have reported one of them by itself.
    fn has_folded(&self) -> bool {
        self.sources.values().any(|alerts| *alerts >= MAX_PER_SOURCE)
            || self.groups.contains_key(&AlertKey::overflow())
    }
}
