//! `loadtest hol`: readers who stopped reading, and what they do to the others (head-of-line blocking).

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context as _, ensure};
use futures_util::future::join_all;
use serde::Serialize;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::{
    http::first,
    load::{
        Failure, Options, Plan, Report, Tally, Target,
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
    /// `null` if it was stopped before.
    beside: Option<Report>,
    p99_ratio: Option<f64>,
}

impl HeadOfLine {
    /// Runs for twice its time, or until `stop`.
    pub async fn run(self, stop: CancellationToken) -> anyhow::Result<()> {
        let target = Arc::new(self.target.build()?);
        let long = TargetOptions { urls: vec![self.stalled_url.clone()], ..self.target.clone() };
        let long = long.build().context("--stalled-url")?;
        let plan = self.options.plan();
        let verdict = &self.options.verdict;
        let Some(checked) = stop.run_until_cancelled(first(&target, &plan)).await else { return Ok(()) };
        checked?;

        let (alone, tally) = measure("alone", &target, &plan, &stop).await?;
        let judged = verdict.judge(&tally);
        let mut comparison = Comparison { stalled: 0, alone, beside: None, p99_ratio: None };
        if stop.is_cancelled() || judged.is_err() {
            verdict.write_json(&comparison)?;
            return judged;
        }
        let Some(readers) = stop.run_until_cancelled(self.stall(&long, &plan)).await.transpose()? else {
            return verdict.write_json(&comparison);
        };
        comparison.stalled = readers.len();
        let (beside, tally) = measure("beside", &target, &plan, &stop).await?;
        drop(readers);

        let [p99_alone, p99_beside] = [&comparison.alone, &beside].map(|report| report.latency_ms.p99);
        let ratio = p99_beside / p99_alone;
        crate::say(&format!(
            "99th percentile alone {} ms, beside {} stalled readers {} ms: × {}",
            number(p99_alone),
            comparison.stalled,
            number(p99_beside),
            number(ratio)
        ))?;
        verdict.write_svg(&beside)?;
        (comparison.beside, comparison.p99_ratio) = (Some(beside), Some(ratio));
        verdict.write_json(&comparison)?;
        verdict.judge(&tally)?;
        let slow = ratio > self.max_ratio && p99_beside > 10.0;
        ensure!(!slow, "stalled readers slow down the others: see --max-ratio");
        Ok(())
    }

    /// Readers who have stopped, some time ago. The first is alone: if it fails, there are no others.
    async fn stall(&self, long: &Target, plan: &Plan) -> anyhow::Result<Vec<Connection>> {
        let now = Instant::now();
        let (mut tally, mut readers) = (Tally::new(now, now), Vec::new());
        for share in [1, self.stalled - 1] {
            for opened in join_all((0..share).map(|_| stall(long, plan.timeout))).await {
                match opened {
                    Ok((status, reader)) => {
                        tally.answered(now, now, status, plan.accepts(status));
                        readers.push(reader);
                    }
                    Err(failure) => tally.failed(now, &failure),
                }
            }
            self.options.verdict.judge(&tally).context("--stalled-url")?;
        }
        sleep(SETTLE).await;
        Ok(readers)
    }
}

/// Asks for a long answer and takes its beginning.
async fn stall(target: &Target, patience: Duration) -> Result<(u16, Connection), Failure> {
    let opening = async {
        let mut connection = Connection::open(target, TAKEN, Counter::default()).await?;
        connection.send(&target.requests()[0]).await?;
        let head = connection.head().await?;
        Ok((head.status, connection))
    };
    timeout(patience, opening).await.unwrap_or(Err(Failure::TimedOut))
}

async fn measure(
    what: &'static str,
    target: &Arc<Target>,
    plan: &Plan,
    stop: &CancellationToken,
) -> anyhow::Result<(Report, Tally)> {
    let counter = Counter::default();
    let progress = Progress::show(what, plan.warm_up + plan.duration, counter.clone());
    let begin = Instant::now();
    let tally = plan.run(Arc::clone(target), counter, stop.clone()).await?;
    drop(progress);
    let ran = stop.is_cancelled().then(|| begin.elapsed());
    let report = Report::new(what, target.name(), plan, &tally, ran);
    crate::say(&report)?;
    Ok((report, tally))
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    #[derive(Debug, clap::Parser)]
    struct Line {
        #[command(flatten)]
        hol: HeadOfLine,
    }

    #[test]
    fn it_is_bounded_by_default() {
        let line = Line::try_parse_from(["x", "http://kas/short", "--stalled-url", "http://kas/long"]);
        let hol = line.unwrap().hol;
        let plan = hol.options.plan();
        assert_eq!((hol.stalled, plan.connections), (100, 64));
        assert_eq!((plan.rate, plan.duration), (Some(200.0), Duration::from_secs(10)));
    }
}
