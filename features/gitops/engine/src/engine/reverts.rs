//! Objects that others change back. The first reverts of an object follow at once; three of them within five minutes make it contested,
//! and then it waits longer and longer. Other objects of the project do not wait.

use kube_cluster::Cluster;
use proto::gitops::{ObjectError, ObjectId};

use super::{Engine, examine::Change};
use crate::Manifest;

/// The time in which reverts count together, and without a revert after which an object is not contested any more, in milliseconds.
const PERIOD: u64 = 5 * 60 * 1000;
/// The reverts within this time that make an object contested.
const CONTESTED: usize = 3;
/// The shortest and the longest wait before the next revert of a contested object, in milliseconds.
const PAUSE: (u64, u64) = (10_000, PERIOD);

/// The reverts of one object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Reverts {
    /// The times of the last ones, in milliseconds since 1970.
    times: Vec<u64>,
    /// The wait after the last one, of a contested object.
    pause: Option<u64>,
    /// The last change that was reverted.
    change: Change,
}

impl Reverts {
    fn note(&mut self, change: Change, now: u64) {
        self.times.retain(|time| (time..&(time + PERIOD)).contains(&&now));
        self.times.push(now);
        self.change = change;
        self.pause = match self.pause {
            Some(pause) => Some((pause * 2).min(PAUSE.1)),
            None => (self.times.len() >= CONTESTED).then_some(PAUSE.0),
        };
    }

    /// Returns the time that has passed since the last revert. A clock that goes back ends everything.
    fn quiet(&self, now: u64) -> u64 {
        self.times.last().and_then(|last| now.checked_sub(*last)).unwrap_or(PERIOD)
    }

    /// Returns the time until the next revert may follow, in milliseconds.
    fn wait(&self, now: u64) -> Option<u64> {
        self.pause?.checked_sub(self.quiet(now)).filter(|wait| *wait > 0)
    }
}

impl<C: Cluster> Engine<C> {
    /// Returns whether an object is contested, and is not changed back now.
    pub fn waits(&self, id: &ObjectId, now: u64) -> bool {
        self.reverts.get(id).is_some_and(|reverts| reverts.wait(now).is_some())
    }

    /// Returns the time until the next contested object may be changed back, in milliseconds.
    pub fn next_revert(&self, now: u64) -> Option<u64> {
        self.reverts.values().filter_map(|reverts| reverts.wait(now)).min()
    }

    pub(super) fn note_revert(&mut self, id: &ObjectId, change: Change, now: u64) {
        self.reverts.entry(id.clone()).or_default().note(change, now);
    }

    /// Returns an error for each contested object.
    pub(super) fn contested(&mut self, manifests: &[Manifest], now: u64) -> Vec<ObjectError> {
        self.reverts.retain(|_, reverts| reverts.quiet(now) < PERIOD || reverts.wait(now).is_some());
        let contested = manifests.iter().filter_map(|manifest| {
            let Reverts { change, .. } = self.reverts.get(&manifest.id).filter(|reverts| reverts.pause.is_some())?;
            Some(manifest.error(format!(
                "contested: {change} again and again, and agentk sets it back less and less often; let one of the two have it ({})",
                change.remedy()
            )))
        });
        contested.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn third_revert_within_five_minutes_makes_an_object_wait() {
        let mut reverts = Reverts::default();
        let minute = 60_000;
        for now in [0, minute, 6 * minute, 7 * minute] {
            reverts.note(Change::default(), now);
            assert_eq!(reverts.wait(now), None, "two in five minutes");
        }
        reverts.note(Change::default(), 8 * minute);
        assert_eq!((reverts.wait(8 * minute), reverts.wait(8 * minute + 10_000)), (Some(10_000), None));
        let mut now = 8 * minute;
        let waits: Vec<u64> = (0..7)
            .map(|_| {
                now += reverts.wait(now).unwrap();
                reverts.note(Change::default(), now);
                reverts.wait(now).unwrap() / 1000
            })
            .collect();
        assert_eq!(waits, [20, 40, 80, 160, 300, 300, 300]);
        assert_eq!(reverts.quiet(now - 1), PERIOD, "the clock goes back");
        assert_eq!(reverts.wait(now - 1), None);
    }
}
