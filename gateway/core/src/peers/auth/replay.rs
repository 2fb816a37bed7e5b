//! Protection against replay: a signed request is accepted once.
//!
//! As in IPsec (RFC 4303 section 3.4.3), the receiver has a window for each sender that ends at the highest sequence number
//! received, with one bit for each number. Requests may overtake one another within the window; older numbers are refused. A
//! window is created only for requests with a valid MAC, so that strangers cannot use up memory, and it is deleted once all
//! requests of its sender have expired.

use std::{collections::HashMap, time::Duration};

use proto::ReplicaId;
use tokio::time::Instant;

use super::CLOCK_TOLERANCE;

/// The sequence numbers in the window of a sender: more than the fastest sender uses in two seconds.
const WINDOW_SIZE: u64 = 1 << 16;

/// The time after which all requests of a sender have expired.
const WINDOW_TTL: Duration = CLOCK_TOLERANCE.saturating_mul(2);

/// The sequence numbers that were received from each sender.
#[derive(Debug, Default)]
pub(super) struct ReplayFilter(HashMap<ReplicaId, ReplayWindow>);

/// The newest sequence numbers of one sender: a ring of bits.
#[derive(Debug)]
struct ReplayWindow {
    highest: u64,
    bits: Vec<u64>,
    last: Instant,
}

impl ReplayFilter {
    /// Returns true if the sequence number is new, and marks it as used.
    pub(super) fn insert(&mut self, sender: ReplicaId, sequence: u64, now: Instant) -> bool {
        if !self.0.contains_key(&sender) {
            self.0.retain(|_, window| now.saturating_duration_since(window.last) <= WINDOW_TTL);
        }
        let window = self.0.entry(sender).or_insert_with(|| ReplayWindow::new(sequence, now));
        window.last = now;
        window.insert(sequence)
    }
}

impl ReplayWindow {
    fn new(sequence: u64, now: Instant) -> Self {
        Self { highest: sequence, bits: vec![0; (WINDOW_SIZE / 64) as usize], last: now }
    }

    fn insert(&mut self, sequence: u64) -> bool {
        if sequence > self.highest {
            // The bits of numbers that leave the window become those of the numbers that enter it.
            let first = (self.highest + 1).max(sequence.saturating_sub(WINDOW_SIZE - 1));
            for entering in first..=sequence {
                *self.word(entering) &= !bit(entering);
            }
            self.highest = sequence;
        } else if self.highest - sequence >= WINDOW_SIZE {
            return false;
        }

        let word = self.word(sequence);
        let new = *word & bit(sequence) == 0;
        *word |= bit(sequence);
        new
    }

    fn word(&mut self, sequence: u64) -> &mut u64 {
        &mut self.bits[(sequence % WINDOW_SIZE / 64) as usize]
    }
}

const fn bit(sequence: u64) -> u64 {
    1 << (sequence % 64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sequence_number_is_accepted_once() {
        let (mut filter, now) = (ReplayFilter::default(), Instant::now());
        let (one, other) = (ReplicaId::random(), ReplicaId::random());
        for sequence in [5, 3, 4, 900, 64, 128, u64::MAX - 1, u64::MAX] {
            assert!(filter.insert(one, sequence, now), "{sequence}");
            assert!(!filter.insert(one, sequence, now), "{sequence} again");
        }
        assert!(filter.insert(other, 5, now));
    }

    #[test]
    fn reordered_sequence_numbers_are_accepted_once() {
        let (mut filter, now, sender) = (ReplayFilter::default(), Instant::now(), ReplicaId::random());
        // An odd factor permutes the residues of a power of two.
        let order: Vec<u64> = (0..4096).map(|step| step * 1365 % 4096).collect();
        assert!(order.iter().all(|sequence| filter.insert(sender, *sequence, now)));
        assert!(!order.iter().any(|sequence| filter.insert(sender, *sequence, now)));
    }

    #[test]
    fn sequence_number_before_the_window_is_refused() {
        let (mut filter, now, sender) = (ReplayFilter::default(), Instant::now(), ReplicaId::random());
        assert!(filter.insert(sender, 10 * WINDOW_SIZE, now));
        assert!(filter.insert(sender, 9 * WINDOW_SIZE + 1, now));
        assert!(!filter.insert(sender, 9 * WINDOW_SIZE, now));
        // The same bit of the ring, one round later.
        assert!(filter.insert(sender, 11 * WINDOW_SIZE, now));
        assert!(!filter.insert(sender, 11 * WINDOW_SIZE, now));
    }

    #[test]
    fn window_is_deleted_after_its_requests_have_expired() {
        let (mut filter, start, sender) = (ReplayFilter::default(), Instant::now(), ReplicaId::random());
        assert!(filter.insert(sender, 1, start));
        assert!(filter.insert(ReplicaId::random(), 1, start + WINDOW_TTL));
        assert!(!filter.insert(sender, 1, start + WINDOW_TTL));
        assert!(filter.insert(ReplicaId::random(), 1, start + 3 * WINDOW_TTL));
        assert_eq!(filter.0.len(), 1);
    }
}
