//! The results of the requests around a fault.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use serde::Serialize;

use crate::installation::callers::SentRequest;

/// Slower responses are counted as slow.
const SLOW: Duration = Duration::from_secs(1);

/// The summary of all requests around a fault.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(super) struct FaultOutcome {
    /// The number of requests.
    pub(super) sent: usize,
    /// The number of requests without a response, or with a status of 400 and above.
    pub(super) failed: usize,
    /// The number of failed requests that were in flight at the affected replica when the fault began.
    pub(super) failed_in_flight: usize,
    /// The time between the first and the last failed request.
    pub(super) window_seconds: f64,
    /// The time from the fault to the last failed request; `null` if none failed.
    pub(super) last_failed_seconds: Option<f64>,
    /// The number of successful requests that took more than a second.
    pub(super) slow: usize,
    /// The duration of the slowest request.
    pub(super) worst_seconds: f64,
    /// The number of failed requests by reason.
    pub(super) causes: BTreeMap<String, usize>,
}

impl FaultOutcome {
    /// Summarizes the requests around a fault that was injected between `fault` and `fault_end`.
    pub(super) fn of(requests: &[SentRequest], fault: Instant, fault_end: Instant) -> Self {
        let failed: Vec<_> = requests.iter().filter(|sent| sent.failure.is_some()).collect();
        let times = || failed.iter().map(|sent| sent.at);
        let (first, last) = (times().min(), times().max());
        let mut causes = BTreeMap::new();
        for cause in failed.iter().filter_map(|sent| sent.failure.as_ref()) {
            *causes.entry(cause.to_string()).or_default() += 1;
        }
        let seconds = |from: Instant, to: Instant| {
            let after = to.saturating_duration_since(from).as_secs_f64();
            after - from.saturating_duration_since(to).as_secs_f64()
        };
        Self {
            sent: requests.len(),
            failed: failed.len(),
            failed_in_flight: failed.iter().filter(|sent| was_in_flight(sent, fault, fault_end)).count(),
            window_seconds: first.zip(last).map_or(0.0, |(first, last)| seconds(first, last)),
            last_failed_seconds: last.map(|last| seconds(fault, last)),
            slow: requests.iter().filter(|sent| sent.failure.is_none() && sent.took > SLOW).count(),
            worst_seconds: requests.iter().map(|sent| sent.took).max().unwrap_or_default().as_secs_f64(),
            causes,
        }
    }
}

/// Returns whether the affected replica had this request when the fault began.
fn was_in_flight(sent: &SentRequest, fault: Instant, fault_end: Instant) -> bool {
    sent.replica == 0 && sent.at <= fault_end && sent.at + sent.took >= fault
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::installation::callers::RequestFailure;
    use crate::load::LoadError;

    const CLOSED: RequestFailure = RequestFailure::NoResponse(LoadError::Closed);

    #[test]
    fn window_spans_first_to_last_failed_request() {
        let begin = Instant::now();
        let sent = |at: u64, took: u64, failure: Option<RequestFailure>| SentRequest {
            at: begin + Duration::from_millis(at),
            took: Duration::from_millis(took),
            replica: 0,
            failure,
        };
        let requests = [
            sent(0, 3, None),
            sent(1500, 10, Some(CLOSED)),
            sent(1750, 1200, None),
            sent(2000, 2, None),
            sent(2500, 1500, Some(RequestFailure::Status(503, None))),
            sent(9000, 1000, None),
        ];
        let at = |millis: u64| begin + Duration::from_millis(millis);
        let outcome = FaultOutcome::of(&requests, at(2000), at(2000));
        assert_eq!((outcome.sent, outcome.failed, outcome.slow), (6, 2, 1));
        assert_eq!((outcome.window_seconds, outcome.last_failed_seconds), (1.0, Some(0.5)));
        assert_eq!(outcome.worst_seconds, 1.5);
        assert_eq!(
            outcome.causes.keys().collect::<Vec<_>>(),
            ["connection closed before the end of the response", "status 503"]
        );

        let none = FaultOutcome::of(&requests[..1], begin, begin);
        assert_eq!((none.failed, none.window_seconds, none.last_failed_seconds), (0, 0.0, None));
        let before = FaultOutcome::of(&requests[..2], at(2000), at(2000));
        assert_eq!(before.last_failed_seconds, Some(-0.5), "it was in flight when the fault began");
    }

    #[test]
    fn failure_in_flight_needs_the_replica_and_time_of_the_fault() {
        let begin = Instant::now();
        let at = |millis: u64| begin + Duration::from_millis(millis);
        let failed = |start: u64, took: u64, replica| SentRequest {
            at: at(start),
            took: Duration::from_millis(took),
            replica,
            failure: Some(CLOSED),
        };
        let in_flight = |sent| FaultOutcome::of(&[sent], at(1000), at(1010)).failed_in_flight == 1;
        assert!(in_flight(failed(990, 15, 0)) && in_flight(failed(1005, 3, 0)));
        assert!(!in_flight(failed(990, 15, 1)), "at another replica");
        assert!(!in_flight(failed(900, 50, 0)) && !in_flight(failed(1011, 5, 0)), "before or after it");
    }
}
