//! The loss and return of tunnels over time.

use serde::Serialize;

/// The loss and return of tunnels after a fault.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(super) struct Recovery {
    /// The highest number of missing tunnels.
    pub(super) lost: usize,
    /// The number of missing tunnels at the end.
    pub(super) missing: usize,
    /// Seconds until half of the lost tunnels were back; `null` if they never were.
    pub(super) half: Option<f64>,
    /// Seconds until 95 % of them were back.
    pub(super) most: Option<f64>,
    /// Seconds until all of them were back.
    pub(super) all: Option<f64>,
    /// The highest number of tunnels that came back within one second.
    pub(super) busiest_second: usize,
}

impl Recovery {
    /// Computes the recovery from pairs of seconds and tunnels that were up. `count` is the expected number of tunnels.
    pub(super) fn of(samples: &[(f64, usize)], count: usize) -> Self {
        let Some((worst, least)) =
            samples.iter().enumerate().map(|(index, (_, up))| (index, *up)).min_by_key(|(_, up)| *up)
        else {
            return Self::default();
        };
        let lost = count.saturating_sub(least);
        let reached = |share: f64| {
            let enough = least + (lost as f64 * share).ceil() as usize;
            samples[worst..].iter().find(|(_, up)| *up >= enough).map(|(at, _)| *at)
        };
        let last = samples.last().map_or(0, |(_, up)| *up);
        Self {
            lost,
            missing: count.saturating_sub(last),
            half: reached(0.5),
            most: reached(0.95),
            all: reached(1.0),
            busiest_second: busiest(samples),
        }
    }
}

/// Returns the highest number of tunnels that came back within one second.
fn busiest(samples: &[(f64, usize)]) -> usize {
    let (mut most, mut first, mut gained) = (0, 0, vec![0usize]);
    for pair in samples.windows(2) {
        let last = gained.last().copied().unwrap_or_default();
        gained.push(last + pair[1].1.saturating_sub(pair[0].1));
    }
    for (index, (at, _)) in samples.iter().enumerate() {
        while samples[first].0 < at - 1.0 {
            first += 1;
        }
        most = most.max(gained[index] - gained[first]);
    }
    most
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recovery_counts_lost_tunnels_only() {
        // 40 of 100 tunnels are lost, some of them after the first is back.
        let samples = [
            (0.0, 100),
            (0.1, 70),
            (0.2, 71),
            (0.3, 60),
            (1.0, 79),
            (1.5, 80),
            (2.0, 97),
            (2.1, 98),
            (4.0, 100),
        ];
        let back = Recovery::of(&samples, 100);
        let expected = Recovery {
            lost: 40,
            missing: 0,
            half: Some(1.5),
            most: Some(2.1),
            all: Some(4.0),
            busiest_second: 20,
        };
        assert_eq!(back, expected);
    }

    #[test]
    fn tunnel_that_does_not_return_is_missing() {
        let back = Recovery::of(&[(0.0, 10), (1.0, 0), (2.0, 9)], 10);
        assert_eq!((back.lost, back.missing, back.half, back.most), (10, 1, Some(2.0), None));
        assert_eq!(Recovery::of(&[], 10), Recovery::default());
    }
}
