//! What became of the requests around a fault: pure.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use serde::Serialize;

/// An answer that took longer was noticed by somebody.
const SLOW: Duration = Duration::from_secs(1);

/// One request.
#[derive(Clone, Debug)]
pub(super) struct Sent {
    /// When it was sent.
    pub(super) at: Instant,
    /// How long until its answer was whole, or it was given up.
    pub(super) took: Duration,
    /// Why it failed, if it did.
    pub(super) failure: Option<String>,
}

/// All of them together.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(super) struct Outcome {
    /// Requests.
    pub(super) sent: usize,
    /// Those without an answer, or with one of 400 and above.
    pub(super) failed: usize,
    /// From the moment that the first of them was sent until the last one was.
    pub(super) window_seconds: f64,
    /// When the last of them was sent, counted from the fault; `null` if none failed.
    pub(super) last_failed_seconds: Option<f64>,
    /// Requests that were answered, and took more than a second.
    pub(super) slow: usize,
    /// The longest that any request took.
    pub(super) worst_seconds: f64,
    /// How many failed for which reason.
    pub(super) causes: BTreeMap<String, usize>,
}

impl Outcome {
    /// Sums up the requests around a fault.
    pub(super) fn of(requests: &[Sent], fault: Instant) -> Self {
        let failed: Vec<_> = requests.iter().filter(|sent| sent.failure.is_some()).collect();
        let times = || failed.iter().map(|sent| sent.at);
        let (first, last) = (times().min(), times().max());
        let mut causes = BTreeMap::new();
        for cause in failed.iter().filter_map(|sent| sent.failure.clone()) {
            *causes.entry(cause).or_default() += 1;
        }
        let seconds = |from: Instant, to: Instant| {
            let after = to.saturating_duration_since(from).as_secs_f64();
            after - from.saturating_duration_since(to).as_secs_f64()
        };
        Self {
            sent: requests.len(),
            failed: failed.len(),
            window_seconds: first.zip(last).map_or(0.0, |(first, last)| seconds(first, last)),
            last_failed_seconds: last.map(|last| seconds(fault, last)),
            slow: requests.iter().filter(|sent| sent.failure.is_none() && sent.took > SLOW).count(),
            worst_seconds: requests.iter().map(|sent| sent.took).max().unwrap_or_default().as_secs_f64(),
            causes,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_is_from_the_first_request_that_failed_to_the_last() {
        let begin = Instant::now();
        let sent = |at: u64, took: u64, failure: Option<&str>| Sent {
            at: begin + Duration::from_millis(at),
            took: Duration::from_millis(took),
            failure: failure.map(str::to_owned),
        };
        let requests = [
            sent(0, 3, None),
            sent(1500, 10, Some("closed")),
            sent(1750, 1200, None),
            sent(2000, 2, None),
            sent(2500, 1500, Some("status 503")),
            sent(9000, 1000, None),
        ];
        let outcome = Outcome::of(&requests, begin + Duration::from_secs(2));
        assert_eq!((outcome.sent, outcome.failed, outcome.slow), (6, 2, 1));
        assert_eq!((outcome.window_seconds, outcome.last_failed_seconds), (1.0, Some(0.5)));
        assert_eq!(outcome.worst_seconds, 1.5);
        assert_eq!(outcome.causes.keys().collect::<Vec<_>>(), ["closed", "status 503"]);

        let none = Outcome::of(&requests[..1], begin);
        assert_eq!((none.failed, none.window_seconds, none.last_failed_seconds), (0, 0.0, None));
        let before = Outcome::of(&requests[..2], begin + Duration::from_secs(2));
        assert_eq!(before.last_failed_seconds, Some(-0.5), "it was under way when the fault came");
    }
}
