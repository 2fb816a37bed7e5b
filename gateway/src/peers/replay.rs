//! Which numbers of a sender were seen: a sealed request is good once.
//!
//! As in IPsec (RFC 4303 section 3.4.3): a window that ends at the highest number seen, one bit for each. Requests may
//! overtake one another within it; what is older than it is refused. A sender is forgotten once whatever it sent has
//! expired, and what is counted here was sealed before: strangers take no memory.

use std::{collections::HashMap, time::Duration};

use proto::ReplicaId;
use tokio::time::Instant;

use super::seal::TOLERANCE;

/// Numbers that one sender's requests may overtake one another by: more than two seconds of the fastest.
const WINDOW: u64 = 1 << 16;

/// After this, whatever a sender has sent is too old by its time alone.
const MEMORY: Duration = TOLERANCE.saturating_mul(2);

/// The numbers that were seen.
#[derive(Debug, Default)]
pub struct Seen(HashMap<ReplicaId, Window>);

#[derive(Debug)]
struct Window {
    highest: u64,
    bits: Vec<u64>,
    last: Instant,
}

impl Seen {
    /// Whether this number is new; it is not the second time.
    pub fn admit(&mut self, sender: ReplicaId, number: u64, now: Instant) -> bool {
        if !self.0.contains_key(&sender) {
            self.0.retain(|_, window| now.saturating_duration_since(window.last) <= MEMORY);
        }
        let window = self.0.entry(sender).or_insert_with(|| Window::new(number, now));
        window.last = now;
        window.admit(number)
    }
}

impl Window {
    fn new(number: u64, now: Instant) -> Self {
        Self { highest: number, bits: vec![0; (WINDOW / 64) as usize], last: now }
    }

    fn admit(&mut self, number: u64) -> bool {
        if number > self.highest {
            // What the window leaves behind makes room for what it now covers.
            let first = (self.highest + 1).max(number.saturating_sub(WINDOW - 1));
            for skipped in first..=number {
                *self.word(skipped) &= !bit(skipped);
            }
            self.highest = number;
        } else if self.highest - number >= WINDOW {
            return false;
        }

        let word = self.word(number);
        let new = *word & bit(number) == 0;
        *word |= bit(number);
        new
    }

    fn word(&mut self, number: u64) -> &mut u64 {
        &mut self.bits[(number % WINDOW / 64) as usize]
    }
}

const fn bit(number: u64) -> u64 {
    1 << (number % 64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_good_once() {
        let (mut seen, now) = (Seen::default(), Instant::now());
        let (one, other) = (ReplicaId::random(), ReplicaId::random());
        for number in [5, 3, 4, 900, 64, 128, u64::MAX - 1, u64::MAX] {
            assert!(seen.admit(one, number, now), "{number}");
            assert!(!seen.admit(one, number, now), "{number} again");
        }
        assert!(seen.admit(other, 5, now));
    }

    #[test]
    fn whatever_the_order_each_is_good_once() {
        let (mut seen, now, sender) = (Seen::default(), Instant::now(), ReplicaId::random());
        // Steps of an odd number visit each of a power of two once.
        let order: Vec<u64> = (0..4096).map(|step| step * 1365 % 4096).collect();
        assert!(order.iter().all(|number| seen.admit(sender, *number, now)));
        assert!(!order.iter().any(|number| seen.admit(sender, *number, now)));
    }

    #[test]
    fn what_is_older_than_the_window_is_refused() {
        let (mut seen, now, sender) = (Seen::default(), Instant::now(), ReplicaId::random());
        assert!(seen.admit(sender, 10 * WINDOW, now));
        assert!(seen.admit(sender, 9 * WINDOW + 1, now));
        assert!(!seen.admit(sender, 9 * WINDOW, now));
        // The same place in the ring, a round later.
        assert!(seen.admit(sender, 11 * WINDOW, now));
        assert!(!seen.admit(sender, 11 * WINDOW, now));
    }

    #[test]
    fn a_sender_is_forgotten_when_its_requests_have_expired_and_not_before() {
        let (mut seen, start, sender) = (Seen::default(), Instant::now(), ReplicaId::random());
        assert!(seen.admit(sender, 1, start));
        assert!(seen.admit(ReplicaId::random(), 1, start + MEMORY));
        assert!(!seen.admit(sender, 1, start + MEMORY));
        assert!(seen.admit(ReplicaId::random(), 1, start + 3 * MEMORY));
        assert_eq!(seen.0.len(), 1);
    }
}
