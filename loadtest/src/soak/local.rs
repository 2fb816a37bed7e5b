//! A soak of kas and agentk on this machine, with a misbehaving cluster and callers that cancel.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use anyhow::{Context as _, ensure};
use rand::{RngExt as _, SeedableRng as _, rngs::SmallRng};
use serde::Serialize;
use tokio::{
    task::JoinSet,
    time::{MissedTickBehavior, interval, sleep, timeout},
};
use tokio_util::sync::CancellationToken;

use super::{
    Soak,
    series::{Bound, Series},
    upstream::{PATH, Upstream},
};
use crate::{
    caller::Caller,
    load::{Target, options::write_json, table::Table},
    stack::{self, KasProcess, POLL, START, StackConfig, child::ChildProcess, usage},
};

/// The timeout of a request.
const TIMEOUT: Duration = Duration::from_secs(2);

/// The time after which some requests are cancelled.
const CANCEL_AFTER: Duration = Duration::from_millis(20);

/// One of this many requests is cancelled.
const LEAVERS: u32 = 20;

/// The time for file descriptors and counters to return after the load: agentk keeps idle connections to its cluster for a
/// minute.
const RETURN: Duration = Duration::from_secs(90);

/// The number of additional file descriptors after the load that are no leak, but kept connections.
const KEPT: u64 = 4;

/// The number of successful and failed requests.
#[derive(Debug, Default)]
struct RequestCounts {
    answered: AtomicU64,
    failed: AtomicU64,
}

#[derive(Debug, Serialize)]
struct SoakReport {
    seconds: f64,
    /// True if the run was stopped early.
    interrupted: bool,
    answered: u64,
    failed: u64,
    figures: Vec<Series>,
}

impl Soak {
    /// Runs for `--duration`, or until `stop` is cancelled.
    pub(super) async fn run_local(&self, stop: CancellationToken) -> anyhow::Result<()> {
        let directory = tempfile::tempdir()?;
        let upstream = Upstream::start(self.options.seed).await?;
        let setup = StackConfig::default();
        let kas = KasProcess::start(directory.path(), &setup).await?;
        let agentk = kas.start_agentk(&setup, upstream.address, "/version").await?;
        let mut figures = self.figures(&kas, &agentk).await?;

        let (begin, counts, end) =
            (Instant::now(), Arc::new(RequestCounts::default()), CancellationToken::new());
        let callers = self.callers(&Arc::new(kas.target(PATH)?), &counts, &end);
        let load = stop.run_until_cancelled(sleep(self.options.duration));
        let sampled = tokio::select! {
            _ = load => Ok(()),
            failed = self.watch_figures(&kas, &agentk, &mut figures) => failed,
        };
        end.cancel();
        callers.join_all().await;
        sampled?;
        let seconds = begin.elapsed().as_secs_f64();
        wait_until_returned(&kas, &agentk, &mut figures, &stop).await?;
        drop(agentk);
        kas.stop().await?;

        let report = SoakReport {
            seconds,
            interrupted: stop.is_cancelled(),
            answered: counts.answered.load(Relaxed),
            failed: counts.failed.load(Relaxed),
            figures,
        };
        self.print(&report)
    }

    async fn figures(&self, kas: &KasProcess, agentk: &ChildProcess) -> anyhow::Result<Vec<Series>> {
        // Wait until the connection of the readiness check is closed.
        let deadline = Instant::now() + START;
        while metric(kas, "kas_connections").await? > 0 {
            ensure!(Instant::now() < deadline, "a connection to kas did not end");
            sleep(POLL).await;
        }
        let start = sample(kas, agentk).await?;
        let memory = Bound::Growth(self.max_growth);
        let bounds = [
            ("memory of kas, KiB", memory),
            ("memory of agentk, KiB", memory),
            ("descriptors of kas", Bound::Returns(KEPT)),
            ("descriptors of agentk", Bound::Returns(KEPT)),
            ("tunnels", Bound::Returns(0)),
            ("requests in flight", Bound::Returns(0)),
            ("connections of callers", Bound::Returns(0)),
        ];
        Ok(bounds
            .into_iter()
            .zip(start)
            .map(|((name, bound), start)| Series::new(name, start, bound))
            .collect())
    }

    fn callers(
        &self,
        target: &Arc<Target>,
        counts: &Arc<RequestCounts>,
        end: &CancellationToken,
    ) -> JoinSet<()> {
        let callers = self.options.connections;
        let pause = self
            .options
            .rate
            .map_or(Duration::ZERO, |rate| Duration::from_secs_f64(f64::from(callers) / rate));
        let mut tasks = JoinSet::new();
        for number in 0..callers {
            let random = SmallRng::seed_from_u64(self.options.seed.wrapping_add(number.into()));
            tasks.spawn(send_requests(Arc::clone(target), pause, random, Arc::clone(counts), end.clone()));
        }
        tasks
    }

    /// Samples the figures. Returns only if a figure cannot be read.
    async fn watch_figures(
        &self,
        kas: &KasProcess,
        agentk: &ChildProcess,
        figures: &mut [Series],
    ) -> anyhow::Result<()> {
        let mut ticks = interval(self.every);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        ticks.tick().await;
        loop {
            ticks.tick().await;
            for (series, value) in figures.iter_mut().zip(sample(kas, agentk).await?) {
                series.samples.push(value);
            }
        }
    }

    fn print(&self, report: &SoakReport) -> anyhow::Result<()> {
        let mut table = Table::new(["", "start", "highest", "end", "growth %", "flat"]);
        for series in &report.figures {
            let growth = series.growth().map_or_else(|| "-".to_owned(), |growth| format!("{growth:.1}"));
            let flat = if series.problem().is_none() { "yes" } else { "NO" };
            let [start, highest, end] =
                [series.start, series.highest(), series.end].map(|value| value.to_string());
            table.row([series.name.to_owned(), start, highest, end, growth, flat.to_owned()]);
        }
        let SoakReport { seconds, answered, failed, .. } = report;
        crate::print(&format!(
            "{table}\n{answered} requests succeeded and {failed} failed in {seconds:.0} s, as intended\n{EXPLANATION}"
        ))?;
        if report.interrupted {
            crate::print(&"stopped early")?;
        }
        if let Some(file) = &self.options.output.json {
            write_json(file, report)?;
        }
        let problems: Vec<_> = report.figures.iter().filter_map(Series::problem).collect();
        ensure!(problems.is_empty(), "{}", problems.join(", "));
        ensure!(*answered > 0, "no request succeeded");
        Ok(())
    }
}

const EXPLANATION: &str = "\
growth: of the highest value in the last quarter over that in the quarter before. Only memory need not return to its start.";

async fn send_requests(
    target: Arc<Target>,
    pause: Duration,
    mut random: SmallRng,
    counts: Arc<RequestCounts>,
    end: CancellationToken,
) {
    let mut caller = Caller::new(target);
    // The callers do not start at the same moment.
    end.run_until_cancelled(sleep(pause.mul_f64(random.random()))).await;
    while !end.is_cancelled() {
        let begin = Instant::now();
        let limit = if random.random_range(0..LEAVERS) == 0 { CANCEL_AFTER } else { TIMEOUT };
        let count = match timeout(limit, caller.send()).await {
            Ok(Ok(head)) if head.status < 400 => &counts.answered,
            _ => &counts.failed,
        };
        count.fetch_add(1, Relaxed);
        end.run_until_cancelled(sleep(pause.saturating_sub(begin.elapsed()))).await;
    }
}

/// Waits until all figures have returned, for at most [`RETURN`].
async fn wait_until_returned(
    kas: &KasProcess,
    agentk: &ChildProcess,
    figures: &mut [Series],
    stop: &CancellationToken,
) -> anyhow::Result<()> {
    let deadline = Instant::now() + RETURN;
    loop {
        for (series, value) in figures.iter_mut().zip(sample(kas, agentk).await?) {
            series.end = value;
        }
        if figures.iter().all(Series::has_returned) || Instant::now() > deadline || stop.is_cancelled() {
            return Ok(());
        }
        stop.run_until_cancelled(sleep(Duration::from_secs(1))).await;
    }
}

/// Returns the current value of each figure.
async fn sample(kas: &KasProcess, agentk: &ChildProcess) -> anyhow::Result<[u64; 7]> {
    Ok([
        usage::resident(kas.pid())?,
        usage::resident(agentk.pid())?,
        usage::descriptors(kas.pid())?,
        usage::descriptors(agentk.pid())?,
        metric(kas, "kas_tunnels").await?,
        metric(kas, "kas_requests_in_flight").await?,
        metric(kas, "kas_connections").await?,
    ])
}

/// Returns the sum of a metric of kas over its labels.
async fn metric(kas: &KasProcess, name: &str) -> anyhow::Result<u64> {
    let text = stack::get(kas.observability, "/metrics").await.context("the metrics of kas")?;
    Ok(sum(&text, name))
}

fn sum(metrics: &str, name: &str) -> u64 {
    let values = metrics.lines().filter_map(|line| {
        let rest = line.strip_prefix(name)?;
        let value = rest
            .strip_prefix(' ')
            .or_else(|| rest.strip_prefix('{')?.split_once("} ").map(|(_, value)| value))?;
        value.parse::<u64>().ok()
    });
    values.sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metric_is_summed_over_its_labels() {
        let text = "# TYPE kas_tunnels gauge\nkas_tunnels 2\nkas_in_flight{service=\"a\"} 3\n\
                    kas_in_flight{service=\"b\"} 4\nkas_in_flight_bytes 5\n";
        assert_eq!([sum(text, "kas_tunnels"), sum(text, "kas_in_flight"), sum(text, "other")], [2, 7, 0]);
    }
}
