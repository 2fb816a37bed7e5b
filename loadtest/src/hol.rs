//! `loadtest hol`: the latency of requests while other callers do not read their responses (head-of-line blocking).

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

use crate::load::{
    self, LoadError, LoadTarget, Options, Plan, Report, Tally,
    client::LoadConnection,
    measure::{check_target, run_plan},
    median,
    progress::Counter,
    report::number,
    target::TargetOptions,
};

/// The number of bytes that a stalled reader reads of its response. It is small, so that the buffers on the way fill up.
const STALLED_READ: usize = 4096;
/// The time for unread responses to fill the buffers on the way.
const SETTLE: Duration = Duration::from_secs(2);

/// Measure requests while other callers have stopped reading long responses
///
/// Measures the URL first alone, and then while other connections hold an unread response of --stalled-url. Repeats both
/// --rounds times. Use an open loop (--rate): in a closed loop latency depends on the load.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = EXAMPLES, mut_arg("rate", |flag| flag.default_value("200")),
    mut_arg("duration", |flag| flag.default_value("5s")))]
pub struct HeadOfLine {
    #[command(flatten)]
    target: TargetOptions,
    /// URL that the stalled readers request: a long response of the same server
    #[arg(long, value_name = "URL", help_heading = "Stalled readers")]
    stalled_url: String,
    /// Number of stalled readers
    #[arg(long, value_name = "NUMBER", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=10_000),
        help_heading = "Stalled readers")]
    stalled: u32,
    /// Number of rounds; the result is the median of their ratios
    #[arg(long, value_name = "NUMBER", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=100),
        help_heading = "Load")]
    rounds: u32,
    /// Fail if the 99th percentile grows by more than this factor and exceeds 10 ms
    #[arg(long, value_name = "FACTOR", default_value_t = 5.0, help_heading = "Report")]
    max_ratio: f64,
    #[command(flatten)]
    options: Options,
}

const EXAMPLES: &str = "\
Example:
  loadtest hol https://kas.example.com:8154/agents/a/kubernetes/version --token-file token \\
    --stalled-url https://kas.example.com:8154/agents/a/kubernetes/api/v1/events --stalled 100 --rate 200";

/// The result of all rounds; its JSON is this struct.
#[derive(Debug, Default, Serialize)]
struct Comparison {
    stalled: usize,
    rounds: Vec<Round>,
    /// The ratios of the finished rounds.
    p99_ratio: Option<Ratio>,
}

/// One measurement alone and one beside stalled readers, right after each other so that other load disturbs both alike.
#[derive(Debug, Serialize)]
struct Round {
    alone: Report,
    /// `null` if the run was stopped before it.
    beside: Option<Report>,
    p99_ratio: Option<f64>,
}

/// The ratios of several rounds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
struct Ratio {
    median: f64,
    least: f64,
    most: f64,
}

impl HeadOfLine {
    /// Runs all rounds, each for twice `--duration`, or until `stop` is cancelled.
    pub async fn run(self, stop: CancellationToken) -> anyhow::Result<()> {
        let target = Arc::new(self.target.build()?);
        let long = TargetOptions { urls: vec![self.stalled_url.clone()], ..self.target.clone() };
        let long = long.build().context("--stalled-url")?;
        let plan = self.options.plan();
        let Some(checked) = stop.run_until_cancelled(check_target(&target, &plan)).await else {
            return Ok(());
        };
        checked?;

        let mut comparison = Comparison::default();
        let compared = self.compare(&target, &long, &plan, &stop, &mut comparison).await;
        comparison.p99_ratio = Ratio::of(comparison.rounds.iter().filter_map(|round| round.p99_ratio));
        // Report the finished rounds even if a later one failed.
        self.options.output.write_json(&comparison)?;
        let Some(ratio) = comparison.p99_ratio else { return compared };
        let last =
            comparison.rounds.iter().rev().find_map(|round| Some((&round.alone, round.beside.as_ref()?)));
        let (alone, beside) = last.expect("it has a ratio");
        load::print(&format!(
            "99th percentile alone {} ms, beside {} stalled readers {} ms; over {} rounds × {ratio}",
            number(alone.latency_ms.p99),
            comparison.stalled,
            number(beside.latency_ms.p99),
            comparison.rounds.iter().filter(|round| round.p99_ratio.is_some()).count(),
        ))?;
        self.options.output.write_svg(beside)?;
        compared?;
        let slow = ratio.median > self.max_ratio && beside.latency_ms.p99 > 10.0;
        ensure!(!slow, "stalled readers slow down the others: see --max-ratio");
        Ok(())
    }

    async fn compare(
        &self,
        target: &Arc<LoadTarget>,
        long: &LoadTarget,
        plan: &Plan,
        stop: &CancellationToken,
        comparison: &mut Comparison,
    ) -> anyhow::Result<()> {
        for _ in 0..self.rounds {
            let (alone, tally) = run_plan("alone", target, plan, stop).await?;
            comparison.rounds.push(Round { alone, beside: None, p99_ratio: None });
            self.options.output.check_errors(&tally)?;
            if stop.is_cancelled() {
                break;
            }
            let Some(readers) =
                stop.run_until_cancelled(self.open_stalled_readers(long, plan)).await.transpose()?
            else {
                break;
            };
            comparison.stalled = readers.len();
            let (beside, tally) = run_plan("beside", target, plan, stop).await?;
            let round = comparison.rounds.last_mut().expect("it began above");
            round.p99_ratio = Some(beside.latency_ms.p99 / round.alone.latency_ms.p99);
            round.beside = Some(beside);
            self.options.output.check_errors(&tally)?;
            drop(readers);
            if stop.run_until_cancelled(sleep(SETTLE)).await.is_none() {
                break;
            }
        }
        Ok(())
    }

    /// Opens connections that have stopped reading, and waits until buffers are full. Opens one first; if it fails, no other.
    async fn open_stalled_readers(
        &self,
        long: &LoadTarget,
        plan: &Plan,
    ) -> anyhow::Result<Vec<LoadConnection>> {
        let now = Instant::now();
        let (mut tally, mut readers) = (Tally::new(now, now), Vec::new());
        for share in [1, self.stalled - 1] {
            for opened in join_all((0..share).map(|_| open_stalled(long, plan.timeout))).await {
                match opened {
                    Ok((status, reader)) => {
                        tally.answered(now, now, status, plan.accepts(status));
                        readers.push(reader);
                    }
                    Err(failure) => tally.failed(now, &failure),
                }
            }
            self.options.output.check_errors(&tally).context("--stalled-url")?;
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

/// Requests a long response and reads its beginning.
async fn open_stalled(target: &LoadTarget, limit: Duration) -> Result<(u16, LoadConnection), LoadError> {
    let opening = async {
        let mut connection = LoadConnection::open(target, STALLED_READ, Counter::default()).await?;
        connection.send(&target.requests()[0]).await?;
        let head = connection.head().await?;
        Ok((head.status, connection))
    };
    timeout(limit, opening).await.unwrap_or(Err(LoadError::TimedOut))
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
    fn defaults_are_bounded() {
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
    fn one_disturbed_round_does_not_decide() {
        let ratio = Ratio::of([1.02, 0.97, 3.5, 1.0, 1.04].into_iter()).unwrap();
        assert_eq!(ratio, Ratio { median: 1.02, least: 0.97, most: 3.5 });
        assert_eq!(ratio.to_string(), "1.02 (0.970 to 3.50)");
        assert_eq!(Ratio::of(std::iter::empty()), None);
    }
}
