//! The open alerts of a cluster.

mod complete;

use std::{
    cmp::Reverse,
    collections::HashMap,
    time::{Duration, SystemTime},
};

use crate::{
    alert::{AGAIN, Alert, AlertKey, AlertReport, AlertState, Peer},
    rate::ReportRate,
};

/// The most open alerts. Further ones are counted together.
pub const MAX_OPEN: usize = 1000;
/// The most open alerts with the same source. Its further destinations are counted together.
const MAX_PER_SOURCE: usize = 50;
/// The reports at once, and the time for a further one.
const BURST: u32 = 50;
const REPORT_PERIOD: Duration = Duration::from_secs(1);
/// The time for which a pod that does not lead remembers that an alert began: if it leads by then, it reports the alert, because the
/// leader before may have ended without having done so.
const HANDOVER: Duration = Duration::from_secs(60);
/// The largest difference between the clocks of nodes that is believed.
const MAX_SKEW: Duration = Duration::from_secs(300);

/// Groups and counts what policies drop.
#[derive(Debug)]
pub struct AlertTable {
    quiet_period: Duration,
    groups: HashMap<AlertKey, Group>,
    sources: HashMap<Peer, usize>,
    rate: ReportRate,
    /// The fingerprints of the alerts that were over a moment ago, and when.
    ended: HashMap<String, SystemTime>,
    /// The time when all open alerts were listed for kas.
    listed: Option<SystemTime>,
}

/// How an occurrence was counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Observed {
    /// It is the first one of its alert.
    Opened,
    /// Its alert was open.
    Counted,
    /// Its source has too many alerts, so that the destination is not known.
    Folded,
    /// There are too many alerts, so that it is only a number.
    Overflow,
}

#[derive(Debug)]
struct Group {
    count: u64,
    first: SystemTime,
    last: SystemTime,
    /// The time when the last occurrence was counted, by the clock of agentk.
    touched: SystemTime,
    opened: SystemTime,
    sample: String,
    reported: Option<Reported>,
}

#[derive(Clone, Copy, Debug)]
struct Reported {
    at: SystemTime,
    count: u64,
}

impl AlertTable {
    /// Returns an empty table. An alert is over when it was quiet for the period.
    pub fn new(quiet_period: Duration) -> Self {
        let rate = ReportRate::new(BURST, REPORT_PERIOD);
        Self {
            quiet_period,
            groups: HashMap::new(),
            sources: HashMap::new(),
            rate,
            ended: HashMap::new(),
            listed: None,
        }
    }

    /// Sets the quiet period, also of open alerts.
    pub fn set_quiet_period(&mut self, quiet_period: Duration) {
        self.quiet_period = quiet_period;
    }

    /// Counts an occurrence. `time` is that of the node; if it is far from `now`, it is not believed.
    pub fn observe(
        &mut self,
        key: AlertKey,
        sample: String,
        time: Option<SystemTime>,
        now: SystemTime,
    ) -> Observed {
        let time = time.filter(|time| difference(*time, now) <= MAX_SKEW).unwrap_or(now);
        if let Some(group) = self.groups.get_mut(&key) {
            group.count(time, now);
            return Observed::Counted;
        }
        let of_source = self.sources.get(&key.source).copied().unwrap_or(0);
        if of_source >= MAX_PER_SOURCE {
            let opened = self.count_or_open(key.any_destination(), String::new(), time, now);
            return if opened { Observed::Folded } else { self.overflow(time, now) };
        }
        if self.count_or_open(key, sample, time, now) { Observed::Opened } else { self.overflow(time, now) }
    }

    /// Returns the reports that are due. A pod that does not lead gets none, and forgets what the leader reports.
    pub fn reports(&mut self, now: SystemTime, leading: bool) -> Vec<AlertReport> {
        let quiet_period = self.quiet_period;
        let is_over = |group: &Group| elapsed(group.touched, now) >= quiet_period;
        if !leading {
            for group in self.groups.values_mut() {
                if group.reported.is_none() && elapsed(group.opened, now) >= HANDOVER {
                    group.reported = Some(Reported { at: now, count: group.count });
                }
            }
            let over = self.groups.iter().filter(|(_, group)| is_over(group));
            for key in over.map(|(key, _)| key.clone()).collect::<Vec<_>>() {
                self.remove(&key, now);
            }
            return Vec::new();
        }
        let due = |group: &Group| match group.reported {
            _ if is_over(group) => Some(AlertState::Closed),
            None => Some(AlertState::Opened),
            Some(last) if group.count > last.count && elapsed(last.at, now) >= AGAIN => {
                Some(AlertState::Ongoing)
            }
            Some(_) => None,
        };
        let mut due: Vec<_> = self
            .groups
            .iter()
            .filter_map(|(key, group)| due(group).map(|state| (group.opened, state, key)))
            .collect();
        // What is new comes first, and the oldest of it.
        due.sort_by_key(|(opened, state, _)| (*state != AlertState::Opened, *opened));
        let granted = due.into_iter().take_while(|_| self.rate.try_take(now));
        let granted: Vec<_> = granted.map(|(_, state, key)| (state, key.clone())).collect();
        granted.into_iter().filter_map(|(state, key)| self.report(&key, state, now)).collect()
    }

    /// Returns the open alerts, the last one first.
    pub fn open(&self) -> Vec<Alert> {
        let mut open: Vec<_> = self.groups.iter().map(|(key, group)| group.alert(key)).collect();
        open.sort_by(|a, b| Reverse((a.last, &a.id)).cmp(&Reverse((b.last, &b.id))));
        open
    }

    /// Returns the number of open alerts.
    pub fn len(&self) -> usize {
        self.groups.len()
    }

    /// Returns whether no alert is open.
    pub fn is_empty(&self) -> bool {
        self.groups.is_empty()
    }

    fn overflow(&mut self, time: SystemTime, now: SystemTime) -> Observed {
        let key = AlertKey::overflow();
        if let Some(group) = self.groups.get_mut(&key) {
            group.count(time, now);
        } else {
            self.insert(key, String::new(), time, now);
        }
        Observed::Overflow
    }

    /// Returns false if there are too many alerts.
    fn count_or_open(&mut self, key: AlertKey, sample: String, time: SystemTime, now: SystemTime) -> bool {
        if let Some(group) = self.groups.get_mut(&key) {
            group.count(time, now);
            return true;
        }
        let room = self.groups.len() < MAX_OPEN;
        if room {
            self.insert(key, sample, time, now);
        }
        room
    }

    fn insert(&mut self, key: AlertKey, sample: String, time: SystemTime, now: SystemTime) {
        *self.sources.entry(key.source.clone()).or_default() += 1;
        let group =
            Group { count: 1, first: time, last: time, touched: now, opened: now, sample, reported: None };
        self.groups.insert(key, group);
    }

    fn remove(&mut self, key: &AlertKey, now: SystemTime) -> Option<Alert> {
        let removed = self.groups.remove(key)?.alert(key);
        self.ended.insert(removed.fingerprint(), now);
        if let Some(left) = self.sources.get_mut(&key.source) {
            *left -= 1;
            if *left == 0 {
                self.sources.remove(&key.source);
            }
        }
        Some(removed)
    }

    fn report(&mut self, key: &AlertKey, state: AlertState, now: SystemTime) -> Option<AlertReport> {
        if state == AlertState::Closed {
            return self.remove(key, now).map(|alert| AlertReport { alert, state, at: now });
        }
        let group = self.groups.get_mut(key)?;
        group.reported = Some(Reported { at: now, count: group.count });
        Some(AlertReport { alert: group.alert(key), state, at: now })
    }
}

impl Group {
    fn count(&mut self, time: SystemTime, now: SystemTime) {
        self.count = self.count.saturating_add(1);
        (self.first, self.last) = (self.first.min(time), self.last.max(time));
        self.touched = now;
    }

    fn alert(&self, key: &AlertKey) -> Alert {
        Alert {
            id: key.id(),
            severity: key.verdict.severity(),
            verdict: key.verdict,
            direction: key.direction,
            namespace: key.namespace.clone(),
            source: key.source.clone(),
            destination: key.destination.clone(),
            policy: key.policy.clone(),
            reason: key.reason.clone(),
            count: self.count,
            first: self.first,
            last: self.last,
            sample: self.sample.clone(),
        }
    }
}

fn elapsed(since: SystemTime, now: SystemTime) -> Duration {
    now.duration_since(since).unwrap_or_default()
}

fn difference(a: SystemTime, b: SystemTime) -> Duration {
    a.duration_since(b).unwrap_or_else(|earlier| earlier.duration())
}

#[cfg(test)]
mod tests;
