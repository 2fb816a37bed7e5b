//! The limits of one search for a note. Strangers can write any number of huge notes, and meanwhile no other note is written.

use std::time::Duration;

use tokio::time::Instant;

/// The most requests. A search among notes of usual length has at most 20.
const MAX_REQUESTS: u32 = 40;
/// The bytes after which no further page is read.
const MAX_BYTES: usize = 32 << 20;
/// The time after which no further page is read.
const MAX_TIME: Duration = Duration::from_secs(15);

/// The requests, the bytes and the time that a search has left.
#[derive(Debug)]
pub(super) struct NoteBudget {
    requests: u32,
    bytes: usize,
    end: Instant,
}

impl NoteBudget {
    pub(super) fn new(now: Instant) -> Self {
        Self { requests: MAX_REQUESTS, bytes: MAX_BYTES, end: now + MAX_TIME }
    }

    /// Takes a request, or returns false if the search has to end.
    pub(super) fn take_request(&mut self, now: Instant) -> bool {
        if self.requests == 0 || self.bytes == 0 || now >= self.end {
            return false;
        }
        self.requests -= 1;
        true
    }

    /// Takes the bytes of a page.
    pub(super) fn take_bytes(&mut self, bytes: usize) {
        self.bytes = self.bytes.saturating_sub(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn search_ends_after_its_requests_its_bytes_or_its_time() {
        let now = Instant::now();
        let mut requests = NoteBudget::new(now);
        assert_eq!((0..100).filter(|_| requests.take_request(now)).count(), 40);

        let mut bytes = NoteBudget::new(now);
        bytes.take_bytes(MAX_BYTES - 1);
        assert!(bytes.take_request(now));
        bytes.take_bytes(MAX_BYTES);
        assert!(!bytes.take_request(now));

        let mut time = NoteBudget::new(now);
        let last = now + MAX_TIME;
        assert!(time.take_request(last - Duration::from_millis(1)) && !time.take_request(last));
    }
}
