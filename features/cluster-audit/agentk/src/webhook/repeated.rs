//! The events that arrived last. The API server sends a batch again, up to five times, if it does not receive the response.

use std::{
    collections::{HashSet, VecDeque},
    hash::{BuildHasher as _, RandomState},
};

use parking_lot::Mutex;
use proto::audit::ClusterEvent;

/// The most events that are known: at 250 per second those of 80 seconds, after which the API server does not send a batch again.
const MAX_KNOWN: usize = 20_000;

/// The last events, by their hashes. The key of the hashes is secret, so that clients of the cluster cannot choose an id that hides another
/// event.
#[derive(Debug, Default)]
pub(super) struct RecentEvents {
    hasher: RandomState,
    known: Mutex<Known>,
}

#[derive(Debug, Default)]
struct Known {
    hashes: HashSet<u64>,
    order: VecDeque<u64>,
}

impl RecentEvents {
    /// Adds an event. Returns its hash, or `None` if it is known.
    pub(super) fn insert(&self, event: &ClusterEvent) -> Option<u64> {
        let ClusterEvent { audit_id, stage, time, duration_ms, .. } = event;
        // The time of the stage is that of the request and the duration.
        let key = (audit_id, *stage as u8, time, duration_ms.map(f64::to_bits));
        let hash = self.hasher.hash_one(key);
        let mut known = self.known.lock();
        if !known.hashes.insert(hash) {
            return None;
        }
        known.order.push_back(hash);
        if known.order.len() > MAX_KNOWN
            && let Some(oldest) = known.order.pop_front()
        {
            known.hashes.remove(&oldest);
        }
        Some(hash)
    }

    /// Removes events that were not kept.
    pub(super) fn remove(&self, hashes: &[u64]) {
        let mut known = self.known.lock();
        // They stay in the order, so that a repetition may leave early.
        for hash in hashes {
            known.hashes.remove(hash);
        }
    }
}

#[cfg(test)]
mod tests {
    use proto::audit::Stage;

    use super::*;

    fn event(id: usize) -> ClusterEvent {
        ClusterEvent { audit_id: id.to_string(), duration_ms: Some(1.0), ..ClusterEvent::default() }
    }

    #[test]
    fn event_is_known_until_others_have_replaced_it() {
        let recent = RecentEvents::default();
        let first = recent.insert(&event(0)).unwrap();
        assert_eq!(recent.insert(&event(0)), None);
        for other in [
            ClusterEvent { stage: Stage::Started, ..event(0) },
            ClusterEvent { duration_ms: Some(2.0), ..event(0) },
            ClusterEvent { time: "2026".to_owned(), ..event(0) },
        ] {
            assert!(recent.insert(&other).is_some(), "{other:?}");
        }
        recent.remove(&[first]);
        assert!(recent.insert(&event(0)).is_some(), "it was not kept");
        for id in 1..=MAX_KNOWN {
            recent.insert(&event(id)).unwrap();
        }
        assert!(recent.insert(&event(0)).is_some());
        let known = recent.known.lock();
        assert!(known.hashes.len() <= MAX_KNOWN && known.order.len() <= MAX_KNOWN);
    }
}
