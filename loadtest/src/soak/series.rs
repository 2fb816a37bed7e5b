//! The values of a figure over a run, and the check that it does not leak.

use serde::Serialize;

use super::growth;

/// The values of one figure over a run.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Series {
    pub(super) name: &'static str,
    /// The value before the load.
    pub(super) start: u64,
    /// The values under load.
    #[serde(skip)]
    pub(super) samples: Vec<u64>,
    /// The value after the load.
    pub(super) end: u64,
    pub(super) bound: Bound,
}

/// The check of a figure.
#[derive(Clone, Copy, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Bound {
    /// The highest value of the last quarter is at most this much above that of the quarter before, in percent. Allocators keep
    /// freed memory, so memory does not return to its start.
    Growth(f64),
    /// The end is at most this much higher than the start, and not lower.
    Returns(u64),
}

impl Series {
    pub(super) fn new(name: &'static str, start: u64, bound: Bound) -> Self {
        Self { name, start, samples: Vec::new(), end: start, bound }
    }

    /// Returns the highest sample.
    pub(super) fn highest(&self) -> u64 {
        self.samples.iter().copied().max().unwrap_or(self.start)
    }

    /// Returns the growth from the third quarter to the last, in percent.
    pub(super) fn growth(&self) -> Option<f64> {
        growth(&self.samples)
    }

    /// Returns whether the value after the load has returned to the start.
    pub(super) fn has_returned(&self) -> bool {
        match self.bound {
            Bound::Growth(_) => true,
            Bound::Returns(slack) => (self.start..=self.start + slack).contains(&self.end),
        }
    }

    /// Returns a description of the failed check, if it failed.
    pub(super) fn problem(&self) -> Option<String> {
        let Self { name, start, end, .. } = self;
        match self.bound {
            Bound::Growth(limit) => {
                let growth = self.growth().filter(|growth| *growth > limit)?;
                Some(format!("{name} grew by {growth:.1} %"))
            }
            Bound::Returns(_) if self.has_returned() => None,
            Bound::Returns(_) => Some(format!("{name} began at {start} and ended at {end}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counter_that_does_not_return_is_reported() {
        let mut tunnels = Series::new("tunnels of kas", 2, Bound::Returns(0));
        assert_eq!(tunnels.problem(), None);
        for end in [1, 3] {
            tunnels.end = end;
            let problem = format!("tunnels of kas began at 2 and ended at {end}");
            assert_eq!(tunnels.problem(), Some(problem));
        }
        let mut descriptors = Series::new("descriptors", 20, Bound::Returns(4));
        for (end, returned) in [(20, true), (24, true), (25, false), (19, false)] {
            descriptors.end = end;
            assert_eq!(descriptors.has_returned(), returned, "{end}");
        }
    }

    #[test]
    fn memory_growth_is_reported_independent_of_its_start() {
        let mut memory = Series::new("memory of kas", 100, Bound::Growth(10.0));
        memory.samples = vec![200, 300, 400, 400, 400, 400, 420, 410];
        assert_eq!((memory.problem(), memory.highest()), (None, 420));
        memory.samples = vec![200, 300, 400, 400, 400, 400, 420, 600];
        assert_eq!(memory.problem().unwrap(), "memory of kas grew by 50.0 %");
    }
}
