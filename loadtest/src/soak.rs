//! `loadtest soak`: moderate load for hours, to find leaks.

mod local;
mod series;
mod upstream;

use std::{sync::Arc, time::Duration};

use anyhow::ensure;
use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

use crate::{
    http::measure,
    load::{Options, target::TargetOptions},
    stack::usage,
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
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = proto::duration::parse,
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
        for pid in &self.processes {
            usage::resident(*pid)?;
        }
        let target = Arc::new(self.target.build()?);
        let done = CancellationToken::new();
        let load = async {
            let result = measure("soak", target, &self.options.plan(), &self.options.output, stop).await;
            done.cancel();
            result
        };
        let (result, memory) = tokio::join!(load, self.watch(&done));
        let mut grown = Vec::new();
        for (pid, samples) in self.processes.iter().zip(&memory) {
            let Some(growth) = growth(samples) else {
                crate::print(&format!("memory of process {pid}: too few samples ({})", samples.len()))?;
                continue;
            };
            let last = samples.last().copied().unwrap_or_default();
            crate::print(&format!("memory of process {pid}: {last} KiB at the end, growth {growth:.1} %"))?;
            if growth > self.max_growth {
                grown.push(format!("process {pid} grew by {growth:.1} %"));
            }
        }
        result?;
        ensure!(grown.is_empty(), "{}", grown.join(", "));
        Ok(())
    }

    async fn watch(&self, done: &CancellationToken) -> Vec<Vec<u64>> {
        let mut samples = vec![Vec::new(); self.processes.len()];
        let mut ticks = interval(self.every);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        while done.run_until_cancelled(ticks.tick()).await.is_some() {
            for (pid, samples) in self.processes.iter().zip(&mut samples) {
                // A process that has exited has no further samples. Failed requests report it.
                samples.extend(usage::resident(*pid).ok());
            }
        }
        samples
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
}
