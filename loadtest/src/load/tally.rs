//! Counts and latencies of requests. Each thread has a tally; their sum is reported.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use hdrhistogram::Histogram;

use super::LoadError;

/// The highest recorded latency, in nanoseconds: one hour.
const LONGEST: u64 = 3_600_000_000_000;
/// The lowest recorded latency, in nanoseconds.
const SHORTEST: u64 = 1000;
/// The number of significant decimal digits of a latency.
const DIGITS: u8 = 3;

/// Counts and latencies of one thread or of all threads.
#[derive(Clone, Debug)]
pub struct Tally {
    start: Instant,
    end: Instant,
    latency: Histogram<u64>,
    /// The delay of this program's own timers, which is no latency of the target.
    lag: Histogram<u64>,
    /// Responses by status.
    pub statuses: BTreeMap<u16, u64>,
    /// Responses with an unexpected status.
    pub refusals: BTreeMap<u16, u64>,
    /// Requests without a response, by reason.
    pub failures: BTreeMap<String, u64>,
    /// In open loops: requests that were due but never sent, because the connection still waited for a response.
    pub unsent: u64,
    /// The bytes of bodies that arrived in the measured time.
    pub bytes: u64,
    /// Responses before the end of the measured time.
    pub in_time: u64,
    /// The measurements of each second.
    pub timeline: Vec<Second>,
}

/// One second of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, serde::Serialize)]
pub struct Second {
    /// Responses.
    pub answers: u64,
    /// Failed requests.
    pub failures: u64,
    /// The longest latency, in milliseconds.
    pub worst_ms: f64,
}

impl Tally {
    /// Creates a tally for the measured time from `start` to `end`. Requests that end before `start` are ignored.
    pub fn new(start: Instant, end: Instant) -> Self {
        let histogram =
            || Histogram::new_with_bounds(SHORTEST, LONGEST, DIGITS).expect("constants that are in range");
        Self {
            start,
            end,
            latency: histogram(),
            lag: histogram(),
            statuses: BTreeMap::new(),
            refusals: BTreeMap::new(),
            failures: BTreeMap::new(),
            unsent: 0,
            bytes: 0,
            in_time: 0,
            timeline: Vec::new(),
        }
    }

    /// Records a response at `now` to a request that was due at `since`.
    pub fn answered(&mut self, since: Instant, now: Instant, status: u16, accepted: bool) {
        if now < self.start {
            return;
        }
        let latency = now.saturating_duration_since(since);
        self.latency.saturating_record(nanoseconds(latency));
        *self.statuses.entry(status).or_default() += 1;
        if !accepted {
            *self.refusals.entry(status).or_default() += 1;
        }
        if now > self.end {
            return;
        }
        self.in_time += 1;
        let second = self.second(now);
        second.answers += 1;
        second.worst_ms = second.worst_ms.max(latency.as_secs_f64() * 1e3);
    }

    /// Records a request without a response.
    pub fn failed(&mut self, now: Instant, failure: &LoadError) {
        if now < self.start {
            return;
        }
        *self.failures.entry(failure.to_string()).or_default() += 1;
        self.second(now.min(self.end)).failures += 1;
    }

    /// Records a request that was due but not sent before the end. Its latency is at least the time until then.
    pub fn record_unsent(&mut self, due: Instant) {
        self.unsent += 1;
        self.latency.saturating_record(nanoseconds(self.end.saturating_duration_since(due)));
    }

    /// Records a delay of this program's own timer.
    pub fn record_timer_delay(&mut self, by: Duration) {
        self.lag.saturating_record(nanoseconds(by));
    }

    /// Adds the tally of another thread, except for the bytes, which the threads count together.
    pub fn add(&mut self, other: &Self) {
        self.latency.add(&other.latency).expect("equal bounds");
        self.lag.add(&other.lag).expect("equal bounds");
        for (status, count) in &other.statuses {
            *self.statuses.entry(*status).or_default() += count;
        }
        for (status, count) in &other.refusals {
            *self.refusals.entry(*status).or_default() += count;
        }
        for (failure, count) in &other.failures {
            *self.failures.entry(failure.clone()).or_default() += count;
        }
        self.unsent += other.unsent;
        self.in_time += other.in_time;
        let length = self.timeline.len().max(other.timeline.len());
        self.timeline.resize(length, Second::default());
        for (mine, theirs) in self.timeline.iter_mut().zip(&other.timeline) {
            mine.answers += theirs.answers;
            mine.failures += theirs.failures;
            mine.worst_ms = mine.worst_ms.max(theirs.worst_ms);
        }
    }

    /// Returns the number of requests with a response.
    pub fn answers(&self) -> u64 {
        self.statuses.values().sum()
    }

    /// Returns the number of requests without a response or with an unexpected status.
    pub fn errors(&self) -> u64 {
        self.refusals.values().sum::<u64>() + self.failures.values().sum::<u64>() + self.unsent
    }

    /// Returns a latency quantile in milliseconds; `quantile` is from 0 to 1.
    pub fn quantile(&self, quantile: f64) -> f64 {
        milliseconds(self.latency.value_at_quantile(quantile))
    }

    /// Returns the mean latency in milliseconds.
    pub fn mean(&self) -> f64 {
        self.latency.mean() / 1e6
    }

    /// Returns a quantile of [`Self::record_timer_delay`] in milliseconds.
    pub fn lag(&self, quantile: f64) -> f64 {
        milliseconds(self.lag.value_at_quantile(quantile))
    }

    /// Formats the errors with their counts, the most frequent first.
    pub fn causes(&self) -> String {
        let refused = self.refusals.iter().map(|(status, count)| (*count, format!("status {status}")));
        let failed = self.failures.iter().map(|(failure, count)| (*count, failure.clone()));
        let unsent = (self.unsent > 0).then(|| (self.unsent, "due but never sent".to_owned()));
        let mut causes: Vec<_> = refused.chain(failed).chain(unsent).collect();
        causes.sort_by_key(|cause| std::cmp::Reverse(cause.0));
        causes.iter().map(|(count, what)| format!("{count} × {what}")).collect::<Vec<_>>().join(", ")
    }

    fn second(&mut self, now: Instant) -> &mut Second {
        let index = now.saturating_duration_since(self.start).as_secs() as usize;
        if self.timeline.len() <= index {
            self.timeline.resize(index + 1, Second::default());
        }
        &mut self.timeline[index]
    }
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

fn milliseconds(nanoseconds: u64) -> f64 {
    nanoseconds as f64 / 1e6
}

#[cfg(test)]
mod tests {
    use super::*;

    const MILLISECOND: Duration = Duration::from_millis(1);

    #[test]
    fn percentiles_cover_all_threads() {
        let start = Instant::now();
        let new = || Tally::new(start, start + Duration::from_secs(10));
        let mut sum = new();
        for thread in 0..4 {
            let mut tally = new();
            for nth in 0..250 {
                let took = MILLISECOND * (thread * 250 + nth + 1);
                tally.answered(start, start + took, 200, true);
            }
            sum.add(&tally);
        }
        let close = |quantile, expected: f64| {
            let found = sum.quantile(quantile);
            assert!((found / expected - 1.0).abs() < 0.002, "{quantile}: {found} is not {expected}");
        };
        close(0.5, 500.0);
        close(0.99, 990.0);
        close(1.0, 1000.0);
        assert_eq!((sum.answers(), sum.errors()), (1000, 0));
        assert_eq!(sum.timeline.iter().map(|second| second.answers).collect::<Vec<_>>(), [999, 1]);
    }

    #[test]
    fn unsent_request_is_slow_and_an_error() {
        let start = Instant::now();
        let mut tally = Tally::new(start, start + Duration::from_secs(10));
        tally.answered(start, start + MILLISECOND, 200, true);
        tally.record_unsent(start + Duration::from_secs(4));
        assert_eq!(tally.errors(), 1);
        assert!(tally.quantile(1.0) > 5990.0);
    }

    #[test]
    fn errors_are_counted_by_reason() {
        let start = Instant::now();
        let mut tally = Tally::new(start, start + Duration::from_secs(1));
        tally.answered(start, start, 302, true);
        tally.answered(start, start, 404, false);
        tally.failed(start, &LoadError::TimedOut);
        tally.failed(start, &LoadError::TimedOut);
        assert_eq!(tally.errors(), 3);
        assert_eq!(tally.failures, BTreeMap::from([("no response in time".to_owned(), 2)]));
    }

    #[test]
    fn warm_up_is_not_counted() {
        let now = Instant::now();
        let mut tally = Tally::new(now + MILLISECOND, now + Duration::from_secs(1));
        tally.answered(now, now, 500, false);
        tally.failed(now, &LoadError::Closed);
        assert_eq!((tally.answers(), tally.errors()), (0, 0));
    }
}
