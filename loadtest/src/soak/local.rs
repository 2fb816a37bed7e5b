//! A soak of kas and agentk on this machine, with a misbehaving cluster and callers that cancel.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context as _, ensure};
use serde::Serialize;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::{
    Bound, Series, Soak, check, table,
    upstream::{PATH, Upstream},
};
use crate::{
    installation::stack::{
        self, KasProcess, POLL, START, StackConfig,
        process::{self, ChildProcess},
    },
    load::{
        self, Plan,
        options::write_json,
        progress::{Counter, Progress},
    },
};

/// The timeout of a request.
const TIMEOUT: Duration = Duration::from_secs(2);

/// One of this many requests is cancelled.
const CANCELLED: u32 = 20;

/// The time for file descriptors and counters to return after the load: agentk keeps idle connections to its cluster for a
/// minute.
const RETURN: Duration = Duration::from_secs(90);

/// The number of file descriptors that may be more after the load, for connections that are kept.
const KEPT: u64 = 4;

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

        let (begin, counter) = (Instant::now(), Counter::default());
        let plan = Plan {
            warm_up: Duration::ZERO,
            timeout: TIMEOUT,
            cancelled: Some(CANCELLED),
            ..self.options.plan()
        };
        let target = Arc::new(kas.target(PATH)?);
        let progress = Progress::show("soak", plan.duration, counter.clone());
        let tally = tokio::select! {
            tally = plan.run(target, counter, stop.clone()) => tally?,
            failed = self.watch(&mut figures, async || sample(&kas, &agentk).await) => {
                return failed.context("the figures");
            }
        };
        drop(progress);
        let seconds = begin.elapsed().as_secs_f64();
        wait_until_returned(&kas, &agentk, &mut figures, &stop).await?;
        drop(agentk);
        kas.stop().await?;

        let refused: u64 = tally.refusals.values().sum();
        let report = SoakReport {
            seconds,
            interrupted: stop.is_cancelled(),
            answered: tally.answers() - refused,
            failed: refused + tally.failures.values().sum::<u64>(),
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
            ("descriptors of kas", Bound::Released(KEPT)),
            ("descriptors of agentk", Bound::Released(KEPT)),
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

    fn print(&self, report: &SoakReport) -> anyhow::Result<()> {
        let SoakReport { seconds, answered, failed, figures, .. } = report;
        let table = table(figures);
        load::print(&format!(
            "{table}\n{answered} requests succeeded and {failed} failed in {seconds:.0} s, as intended\n{EXPLANATION}"
        ))?;
        if report.interrupted {
            load::print(&"stopped early")?;
        }
        if let Some(file) = &self.options.output.json {
            write_json(file, report)?;
        }
        check(figures)?;
        ensure!(*answered > 0, "no request succeeded");
        Ok(())
    }
}

const EXPLANATION: &str = "\
growth: of the highest value in the last quarter over that in the quarter before. Only memory need not return to its start.";

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
async fn sample(kas: &KasProcess, agentk: &ChildProcess) -> anyhow::Result<Vec<u64>> {
    Ok(vec![
        process::resident(kas.pid())?,
        process::resident(agentk.pid())?,
        process::descriptors(kas.pid())?,
        process::descriptors(agentk.pid())?,
        metric(kas, "kas_tunnels").await?,
        metric(kas, "kas_requests_in_flight").await?,
        metric(kas, "kas_connections").await?,
    ])
}

/// Returns the sum of a metric of kas over its labels.
async fn metric(kas: &KasProcess, name: &str) -> anyhow::Result<u64> {
    let text = stack::get(kas.observability, "/metrics").await.context("the metrics of kas")?;
    Ok(stack::sum(&text, name))
}
