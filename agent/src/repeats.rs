//! Keeps a log readable while kas is away, or a policy refuses: the same is a line a minute, not one per attempt.

use tokio::time::{Duration, Instant};

const EVERY: Duration = Duration::from_secs(60);

/// What was said last, and how often since.
#[derive(Debug, Default)]
pub(crate) struct Repeats {
    last: Option<Said>,
}

#[derive(Debug)]
struct Said {
    what: String,
    when: Instant,
    unsaid: u32,
}

impl Repeats {
    /// Something happened: the number of times that it happened unsaid before, if it is worth saying now.
    pub(crate) fn happened(&mut self, what: &str, now: Instant) -> Option<u32> {
        let unsaid = match &mut self.last {
            Some(last) if last.what == what && now < last.when + EVERY => {
                last.unsaid += 1;
                return None;
            }
            Some(last) if last.what == what => last.unsaid,
            _ => 0,
        };
        self.last = Some(Said { what: what.to_owned(), when: now, unsaid: 0 });

        Some(unsaid)
    }

    /// It is over; the next time is news.
    pub(crate) fn over(&mut self) {
        self.last = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_is_said_once_a_minute_with_a_count() {
        let (mut repeats, start) = (Repeats::default(), Instant::now());
        let mut at = |seconds, what| repeats.happened(what, start + Duration::from_secs(seconds));
        assert_eq!(at(0, "refused"), Some(0));
        assert_eq!(at(1, "refused"), None);
        assert_eq!(at(59, "refused"), None);
        assert_eq!(at(60, "refused"), Some(2));
        assert_eq!(at(61, "no such host"), Some(0), "another failure is news");
        assert_eq!(at(62, "refused"), Some(0));
        repeats.over();
        assert_eq!(repeats.happened("refused", start + Duration::from_secs(63)), Some(0));
    }
}
