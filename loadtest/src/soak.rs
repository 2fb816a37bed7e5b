//! `loadtest soak`: moderate load for hours, to find leaks.

mod local;
mod upstream;

use std::{pin::pin, sync::Arc, time::Duration};

use anyhow::ensure;
use serde::Serialize;
use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

use crate::{
    installation::stack::process,
    load::{self, Options, measure::measure, report::Table, target::TargetOptions},
};

/// Send requests for a long time, and check that the memory of processes does not grow
///
/// Memory may grow in the first half of the run. Growth is the highest value of the last quarter over that of the quarter
/// before.
///
/// Without a URL, starts kas, agentk and a cluster on this machine. The cluster fails, hangs and resets connections at
/// random, and callers cancel requests. Memory must not grow; file descriptors, tunnels and requests in flight must return
/// to their initial values.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = EXAMPLES, mut_arg("rate", |flag| flag.default_value("100")),
    mut_arg("duration", |flag| flag.default_value("1h")),
    mut_arg("urls", |flag| flag.required(false)))]
pub struct Soak {
    #[command(flatten)]
    target: TargetOptions,
    /// Process id on this machine whose memory is measured; may be repeated
    #[arg(long = "process", value_name = "PID", help_heading = "Memory")]
    processes: Vec<u32>,
    /// Interval of memory samples
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = settings::duration::parse,
        help_heading = "Memory")]
    every: Duration,
    /// Fail if the memory of a process grows by more than this, in percent
    #[arg(long, value_name = "PERCENT", default_value_t = 10.0, help_heading = "Memory")]
    max_growth: f64,
    #[command(flatten)]
    options: Options,
}

const EXAMPLES: &str = "\
Examples:
  loadtest soak --duration 1h --rate 200
  loadtest soak URL --token-file token --duration 8h --rate 200 --process $(pidof kas) --json soak.json";

impl Soak {
    /// Runs for `--duration`, or until `stop` is cancelled.
    pub async fn run(self, stop: CancellationToken) -> anyhow::Result<()> {
        ensure!(!self.every.is_zero(), "--every must be longer than 0");
        if self.target.urls.is_empty() {
            return self.run_local(stop).await;
        }
        let target = Arc::new(self.target.build()?);
        let memory = async || self.processes.iter().map(|pid| process::resident(*pid)).collect();
        let start: anyhow::Result<Vec<u64>> = memory().await;
        let mut figures: Vec<_> = self
            .processes
            .iter()
            .zip(start?)
            .map(|(pid, start)| {
                Series::new(format!("memory of process {pid}, KiB"), start, Bound::Growth(self.max_growth))
            })
            .collect();
        let plan = self.options.plan();
        let mut load = pin!(measure("soak", target, &plan, &self.options.output, stop));
        let result = tokio::select! {
            result = &mut load => result,
            // A process that has exited has no further samples. Failed requests report it.
            _ = self.watch(&mut figures, memory) => load.await,
        };
        if !figures.is_empty() {
            load::print(&table(&figures))?;
        }
        result?;
        check(&figures)
    }

    /// Adds a sample to each figure at each `--every`. Returns only if a figure cannot be read.
    async fn watch(
        &self,
        figures: &mut [Series],
        sample: impl AsyncFn() -> anyhow::Result<Vec<u64>>,
    ) -> anyhow::Result<()> {
        let mut ticks = interval(self.every);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        ticks.tick().await;
        loop {
            ticks.tick().await;
            for (series, value) in figures.iter_mut().zip(sample().await?) {
                series.samples.push(value);
                series.end = value;
            }
        }
    }
}

/// Returns a table of figures.
fn table(figures: &[Series]) -> Table {
    let mut table = Table::new(["", "start", "highest", "end", "growth %", "flat"]);
    for series in figures {
        let growth = series.growth().map_or_else(|| "-".to_owned(), |growth| format!("{growth:.1}"));
        let flat = if series.problem().is_none() { "yes" } else { "NO" };
        let [start, highest, end] =
            [series.start, series.highest(), series.end].map(|value| value.to_string());
        table.row([series.name.clone(), start, highest, end, growth, flat.to_owned()]);
    }
    table
}

/// Returns an error if a figure grew or did not return.
fn check(figures: &[Series]) -> anyhow::Result<()> {
    let problems: Vec<_> = figures.iter().filter_map(Series::problem).collect();
    ensure!(problems.is_empty(), "{}", problems.join(", "));
    Ok(())
}

/// The values of one figure over a run.
#[derive(Clone, Debug, Serialize)]
struct Series {
    name: String,
    /// The value before the load.
    start: u64,
    /// The values under load.
    #[serde(skip)]
    samples: Vec<u64>,
    /// The value after the load.
    end: u64,
    bound: Bound,
}

/// The check of a figure.
#[derive(Clone, Copy, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
enum Bound {
    /// The highest value of the last quarter is at most this much above that of the quarter before, in percent. Allocators keep
    /// freed memory, so memory does not return to its start.
    Growth(f64),
    /// The end differs from the start by at most this much.
    Returns(u64),
    /// The end is at most this much above the start. Connections that a process needed at its start may be closed by then.
    Released(u64),
}

impl Series {
    fn new(name: impl Into<String>, start: u64, bound: Bound) -> Self {
        Self { name: name.into(), start, samples: Vec::new(), end: start, bound }
    }

    /// Returns the highest sample.
    fn highest(&self) -> u64 {
        self.samples.iter().copied().max().unwrap_or(self.start)
    }

    /// Returns the growth from the third quarter to the last, in percent.
    fn growth(&self) -> Option<f64> {
        growth(&self.samples)
    }

    /// Returns whether the value after the load has returned to the start.
    fn has_returned(&self) -> bool {
        match self.bound {
            Bound::Growth(_) => true,
            Bound::Returns(slack) => self.end.abs_diff(self.start) <= slack,
            Bound::Released(slack) => self.end.saturating_sub(self.start) <= slack,
        }
    }

    /// Returns a description of the failed check, if it failed.
    fn problem(&self) -> Option<String> {
        let Self { name, start, end, .. } = self;
        match self.bound {
            Bound::Growth(limit) => {
                let growth = self.growth().filter(|growth| *growth > limit)?;
                Some(format!("{name} grew by {growth:.1} %"))
            }
            Bound::Returns(_) | Bound::Released(_) if self.has_returned() => None,
            Bound::Returns(_) | Bound::Released(_) => {
                Some(format!("{name} began at {start} and ended at {end}"))
            }
        }
    }
}

/// Returns the growth from the third quarter to the last in percent, or `None` for fewer than eight samples.
fn growth(samples: &[u64]) -> Option<f64> {
    if samples.len() < 8 {
        return None;
    }
    let quarter = samples.len() / 4;
    let (before, last) = samples[samples.len() - 2 * quarter..].split_at(quarter);
    let highest = |samples: &[u64]| samples.iter().max().copied().unwrap_or_default() as f64;
    Some((highest(last) / highest(before) - 1.0) * 100.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn growth_ignores_the_first_half() {
        assert_eq!(growth(&[1, 50, 90, 99, 100, 100, 100, 100]), Some(0.0));
        let leak: Vec<u64> = (1..=100).map(|minute| 1000 + 50 * minute).collect();
        assert!(growth(&leak).unwrap() > 20.0);
        assert_eq!(growth(&[1, 2, 3]), None);
    }

    #[test]
    fn counter_that_does_not_return_is_reported() {
        let mut tunnels = Series::new("tunnels of kas", 2, Bound::Returns(0));
        assert_eq!(tunnels.problem(), None);
        for end in [1, 3] {
            tunnels.end = end;
            let problem = format!("tunnels of kas began at 2 and ended at {end}");
            assert_eq!(tunnels.problem(), Some(problem));
        }
        let mut descriptors = Series::new("descriptors", 20, Bound::Released(4));
        for (end, returned) in [(20, true), (24, true), (25, false), (15, true)] {
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
