//! Detects that a load balancer cuts connections at an age: tunnels keep breaking off at the same age.

use std::{collections::VecDeque, time::Duration};

use tokio::time::Instant;

/// The number of losses that indicate a cut age.
const MIN_LOSSES: usize = 5;

/// The difference between two ages that count as the same, relative to the age.
///
/// It is also the least time between two losses that count. Tunnels that were opened together break off together at any
/// failure of the network: if their ends are this far apart, their ages are too different.
const TOLERANCE: f64 = 0.03;

/// The shortest cut age. Tunnels that end earlier were never useful, for example because agentk crashes at its start.
const MIN_AGE: Duration = Duration::from_secs(10);

/// Remembers the last tunnels that broke off.
#[derive(Debug, Default)]
pub(super) struct CutAgeDetector {
    losses: VecDeque<Loss>,
    /// The detected age.
    cut_age: Option<Duration>,
}

#[derive(Clone, Copy, Debug)]
struct Loss {
    age: Duration,
    at: Instant,
}

impl CutAgeDetector {
    /// Records that a tunnel broke off at `age`. Returns the age at which connections are cut, if this loss reveals it.
    pub(super) fn record_loss(&mut self, age: Duration, now: Instant) -> Option<Duration> {
        let tolerance = age.mul_f64(TOLERANCE);
        if let Some(last) = self.losses.back()
            && last.age.abs_diff(age) <= tolerance
            && now < last.at + tolerance
        {
            return None;
        }
        self.losses.push_back(Loss { age, at: now });
        if self.losses.len() > MIN_LOSSES {
            self.losses.pop_front();
        }

        let ages = || self.losses.iter().map(|loss| loss.age);
        let (shortest, mean) = (ages().min()?, ages().sum::<Duration>() / MIN_LOSSES as u32);
        let same = |other: Duration| other.abs_diff(mean) <= mean.mul_f64(TOLERANCE);
        let found = self.losses.len() == MIN_LOSSES && shortest >= MIN_AGE && ages().all(same);
        if !found || self.cut_age.is_some_and(same) {
            return None;
        }
        self.cut_age = Some(shortest);
        self.cut_age
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the results for losses: pairs of the second of the loss and the age in seconds.
    fn results(losses: &[(u64, u64)]) -> Vec<Option<u64>> {
        let (mut detector, start) = (CutAgeDetector::default(), Instant::now());
        let lost = |(at, age): &(u64, u64)| {
            let now = start + Duration::from_secs(*at);
            detector.record_loss(Duration::from_secs(*age), now).map(|age| age.as_secs())
        };
        losses.iter().map(lost).collect()
    }

    fn last(losses: &[(u64, u64)]) -> Option<u64> {
        results(losses).pop().unwrap()
    }

    #[test]
    fn fifth_loss_at_one_age_reveals_it_once() {
        let losses =
            [(600, 600), (1200, 605), (1800, 598), (2400, 600), (3000, 612), (3600, 600), (9000, 601)];
        assert_eq!(results(&losses), [None, None, None, None, Some(598), None, None]);
    }

    #[test]
    fn ages_may_differ_by_three_percent_from_their_mean() {
        assert_eq!(last(&[(0, 1000), (100, 1000), (200, 1000), (300, 1000), (400, 1035)]), Some(1000));
        assert_eq!(last(&[(0, 1000), (100, 1000), (200, 1000), (300, 1000), (400, 1045)]), None);
    }

    #[test]
    fn loss_at_another_age_restarts_the_count() {
        let mut losses =
            vec![(30, 30), (60, 30), (90, 30), (91, 7000), (120, 30), (150, 30), (180, 30), (210, 30)];
        assert_eq!(last(&losses), None);
        losses.push((240, 30));
        assert_eq!(last(&losses), Some(30));
    }

    #[test]
    fn tunnels_that_were_opened_together_and_break_off_together_reveal_nothing() {
        // A network fails after 300 s, and pings detect it within 40 s.
        let losses: Vec<_> = (0..=400).map(|tenth| (300 + tenth / 10, 300 + tenth / 10)).collect();
        assert!(results(&losses).iter().all(Option::is_none));
    }

    #[test]
    fn tunnels_of_one_agent_that_are_cut_together_count_once() {
        let rounds: Vec<_> = (1..=5).flat_map(|round| [(round * 30, 30); 2]).collect();
        let results = results(&rounds);
        assert_eq!((results[7], results[8]), (None, Some(30)));
    }

    #[test]
    fn agent_that_crashes_at_its_start_reveals_nothing() {
        let losses: Vec<_> = (1..20).map(|round| (round * 5, 3)).collect();
        assert!(results(&losses).iter().all(Option::is_none));
    }

    #[test]
    fn another_age_is_revealed_later() {
        let mut losses: Vec<_> = (1..=5).map(|round| (round * 600, 600)).collect();
        losses.extend((1..=5).map(|round| (5000 + round * 60, 60)));
        assert_eq!(last(&losses), Some(60));
    }
}
