//! `loadtest hol`: readers who stopped reading, and what they do to the others (head-of-line blocking).

use std::{
    fmt,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context as _, ensure};
use futures_util::future::join_all;
use serde::Serialize;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::{
    bench::median,
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
/// Measures the URL first alone, and then again while connections hold an unread answer of --stalled-url, and both
/// --rounds times. Run it with an open loop (--rate), or latency only shows how much load there is.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = EXAMPLES, mut_arg("rate", |flag| flag.default_value("200")),
    mut_arg("duration", |flag| flag.default_value("5s")))]
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
    /// How often both are measured, one after the other; the result is the median of the ratios
    #[arg(long, value_name = "NUMBER", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=100),
        help_heading = "Load")]
    rounds: u32,
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

/// All rounds; its JSON is this struct.
#[derive(Debug, Default, Serialize)]
struct Comparison {
    stalled: usize,
    rounds: Vec<Round>,
    /// Over the rounds that were finished.
    p99_ratio: Option<Ratio>,
}

/// Once alone, and right after it beside stalled readers: what else goes on meanwhile concerns both.
#[derive(Debug, Serialize)]
struct Round {
    alone: Report,
    /// `null` if it was stopped before.
    beside: Option<Report>,
    p99_ratio: Option<f64>,
}

/// Of several.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
struct Ratio {
    median: f64,
    least: f64,
    most: f64,
}

impl HeadOfLine {
    /// Runs for twice its time in each round, or until `stop`.
    pub async fn run(self, stop: CancellationToken) -> anyhow::Result<()> {
        let target = Arc::new(self.target.build()?);
        let long = TargetOptions { urls: vec![self.stalled_url.clone()], ..self.target.clone() };
        let long = long.build().context("--stalled-url")?;
        let plan = self.options.plan();
        let Some(checked) = stop.run_until_cancelled(first(&target, &plan)).await else { return Ok(()) };
        checked?;

        let mut comparison = Comparison::default();
        let compared = self.compare(&target, &long, &plan, &stop, &mut comparison).await;
        comparison.p99_ratio = Ratio::of(comparison.rounds.iter().filter_map(|round| round.p99_ratio));
        // What was measured before something failed is worth its seconds.
        self.options.verdict.write_json(&comparison)?;
        let Some(ratio) = comparison.p99_ratio else { return compared };
        let last =
            comparison.rounds.iter().rev().find_map(|round| Some((&round.alone, round.beside.as_ref()?)));
        let (alone, beside) = last.expect("it has a ratio");
        crate::say(&format!(
            "99th percentile alone {} ms, beside {} stalled readers {} ms; over {} rounds × {ratio}",
            number(alone.latency_ms.p99),
            comparison.stalled,
            number(beside.latency_ms.p99),
            comparison.rounds.iter().filter(|round| round.p99_ratio.is_some()).count(),
        ))?;
        self.options.verdict.write_svg(beside)?;
        compared?;
        let slow = ratio.median > self.max_ratio && beside.latency_ms.p99 > 10.0;
        ensure!(!slow, "stalled readers slow down the others: see --max-ratio");
        Ok(())
    }

    async fn compare(
        &self,
        target: &Arc<Target>,
        long: &Target,
        plan: &Plan,
        stop: &CancellationToken,
        comparison: &mut Comparison,
    ) -> anyhow::Result<()> {
        for _ in 0..self.rounds {
            let (alone, tally) = measure("alone", target, plan, stop).await?;
            comparison.rounds.push(Round { alone, beside: None, p99_ratio: None });
            self.options.verdict.judge(&tally)?;
            if stop.is_cancelled() {
                break;
            }
            let Some(readers) = stop.run_until_cancelled(self.stall(long, plan)).await.transpose()? else {
                break;
            };
            comparison.stalled = readers.len();
            let (beside, tally) = measure("beside", target, plan, stop).await?;
            let round = comparison.rounds.last_mut().expect("it began above");
            round.p99_ratio = Some(beside.latency_ms.p99 / round.alone.latency_ms.p99);
            round.beside = Some(beside);
            self.options.verdict.judge(&tally)?;
            drop(readers);
            if stop.run_until_cancelled(sleep(SETTLE)).await.is_none() {
                break;
            }
        }
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

impl Ratio {
    fn of(ratios: impl Iterator<Item = f64> + Clone) -> Option<Self> {
        let least = ratios.clone().min_by(f64::total_cmp)?;
        let most = ratios.clone().max_by(f64::total_cmp)?;
        Some(Self { median: median(ratios), least, most })
    }
}

impl fmt::Display for Ratio {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({} to {})", number(self.median), number(self.least), number(self.most))
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
        assert_eq!((plan.rate, plan.duration), (Some(200.0), Duration::from_secs(5)));
        assert_eq!(hol.rounds, 5);
        let line =
            Line::try_parse_from(["x", "http://kas/a", "--stalled-url", "http://kas/b", "--rounds", "101"]);
        assert!(line.unwrap_err().to_string().contains("1..=100"));
    }

    #[test]
    fn one_round_in_which_something_else_went_on_does_not_decide() {
        let ratio = Ratio::of([1.02, 0.97, 3.5, 1.0, 1.04].into_iter()).unwrap();
        assert_eq!(ratio, Ratio { median: 1.02, least: 0.97, most: 3.5 });
        assert_eq!(ratio.to_string(), "1.02 (0.970 to 3.50)");
        assert_eq!(Ratio::of(std::iter::empty()), None);
    }
}
