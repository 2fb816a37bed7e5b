//! `loadtest hol`: readers who stopped reading, and what they do to the others (head-of-line blocking).

use std::{sync::Arc, time::Duration};

use anyhow::{Context as _, ensure};
use futures_util::future::join_all;
use serde::Serialize;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::{
    http::first,
    load::{
        Failure, Options, Plan, Report, Target,
        client::Connection,
        progress::{Counter, Progress},
        table::number,
        target::TargetOptions,
    },
};

/// A reader takes this much of its long answer, and then no more: a small buffer, so that the rest waits elsewhere.
const TAKEN: usize = 4096;
/// How long the answers that nobody takes have to fill what there is to fill.
const SETTLE: Duration = Duration::from_secs(2);

/// Measure requests while other callers have stopped reading long answers
///
/// Measures the URL first alone, and then again while connections hold an unread answer of --stalled-url. Run it with
/// an open loop (--rate), or latency only shows how much load there is.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = EXAMPLES, mut_arg("rate", |flag| flag.default_value("200")),
    mut_arg("duration", |flag| flag.default_value("10s")))]
pub struct HeadOfLine {
    #[command(flatten)]
    target: TargetOptions,
    /// What the stalled readers ask for: a long answer of the same server
    #[arg(long, value_name = "URL", help_heading = "Stalled readers")]
    stalled_url: String,
    /// How many of them there are
    #[arg(long, value_name = "NUMBER", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=10_000),
        help_heading = "Stalled readers")]
    stalled: u32,
    /// Fail if the 99th percentile becomes more than so many times what it was, and more than 10 ms
    #[arg(long, value_name = "FACTOR", default_value_t = 5.0, help_heading = "Report")]
    max_ratio: f64,
    #[command(flatten)]
    options: Options,
}

const EXAMPLES: &str = "\
Example:
  loadtest hol https://kas.example.com:8154/agents/a/kubernetes/version --token-file token \\
    --stalled-url https://kas.example.com:8154/agents/a/kubernetes/api/v1/events --stalled 100 --rate 200";

/// Both measurements; its JSON is this struct.
#[derive(Debug, Serialize)]
struct Comparison {
    stalled: usize,
    alone: Report,
    beside: Report,
    p99_ratio: f64,
}

impl HeadOfLine {
    /// Runs for twice its time, or until `stop`.
    pub async fn run(self, stop: CancellationToken) -> anyhow::Result<()> {
        let target = Arc::new(self.target.build()?);
        let long = TargetOptions { urls: vec![self.stalled_url.clone()], ..self.target.clone() };
        let long = long.build().context("--stalled-url")?;
        let plan = self.options.plan();
        let verdict = &self.options.verdict;
        first(&target, &plan).await?;

        let (alone, tally) = measure("alone", &target, &plan, &stop).await?;
        verdict.judge(&tally)?;
        let readers = join_all((0..self.stalled).map(|_| stall(&long, plan.timeout))).await;
        let readers = readers.into_iter().collect::<Result<Vec<_>, _>>().context("--stalled-url")?;
        stop.run_until_cancelled(sleep(SETTLE)).await;
        let (beside, tally) = measure("beside", &target, &plan, &stop).await?;
        let ratio = beside.latency_ms.p99 / alone.latency_ms.p99;
        let comparison = Comparison { stalled: readers.len(), alone, beside, p99_ratio: ratio };
        drop(readers);

        crate::say(&format!(
            "99th percentile alone {} ms, beside {} stalled readers {} ms: × {}",
            number(comparison.alone.latency_ms.p99),
            comparison.stalled,
            number(comparison.beside.latency_ms.p99),
            number(ratio)
        ))?;
        verdict.write_json(&comparison)?;
        verdict.write_svg(&comparison.beside)?;
        verdict.judge(&tally)?;
        let slow = ratio > self.max_ratio && comparison.beside.latency_ms.p99 > 10.0;
        ensure!(!slow, "stalled readers slow down the others: see --max-ratio");
        Ok(())
    }
}

/// Asks for a long answer and takes its beginning.
async fn stall(target: &Target, patience: Duration) -> Result<Connection, Failure> {
    let opening = async {
        let mut connection = Connection::open(target, TAKEN, Counter::default()).await?;
        connection.send(&target.requests()[0]).await?;
        connection.head().await?;
        Ok(connection)
    };
    timeout(patience, opening).await.unwrap_or(Err(Failure::TimedOut))
}

async fn measure(
    what: &'static str,
    target: &Arc<Target>,
    plan: &Plan,
    stop: &CancellationToken,
) -> anyhow::Result<(Report, crate::load::Tally)> {
    let counter = Counter::default();
    let progress = Progress::show(what, plan.warm_up + plan.duration, counter.clone());
    let tally = plan.run(Arc::clone(target), counter, stop.clone()).await?;
    drop(progress);
    ensure!(!stop.is_cancelled(), "stopped before there was anything to compare");
    let report = Report::new(what, target.name(), plan, &tally, None);
    crate::say(&report)?;
    Ok((report, tally))
}
