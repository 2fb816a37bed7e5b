//! `loadtest http`: small requests, many of them.

use std::{sync::Arc, time::Instant};

use anyhow::{Context as _, ensure};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::load::{
    Failure, Options, Plan, Report, Target,
    options::Verdict,
    progress::{Counter, Progress},
    target::TargetOptions,
    workers::Link,
};

/// Send requests and measure their answers
///
/// First one request is sent; if that fails, nothing else is. Ctrl-C ends the run, and reports what was measured.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Http {
    #[command(flatten)]
    target: TargetOptions,
    #[command(flatten)]
    options: Options,
    /// Open a new connection for each request
    #[arg(long, help_heading = "Load")]
    fresh: bool,
}

const EXAMPLES: &str = "\
Examples:
  loadtest http https://kas.example.com:8154/agents/production/kubernetes/version --token-file token
  loadtest http URL --token-file token --rate 500 --duration 2m --json report.json --svg report.svg

Exit codes: 0 all went well, 1 requests failed (see --allow-errors), 2 bad arguments";

impl Http {
    /// Runs for its time, or until `stop`.
    pub async fn run(self, stop: CancellationToken) -> anyhow::Result<()> {
        let target = Arc::new(self.target.build()?);
        let plan = Plan { fresh: self.fresh, ..self.options.plan() };
        measure("http", target, &plan, &self.options.verdict, stop).await
    }
}

/// Runs a plan against a target that answers at all; prints, writes and judges the report.
pub(crate) async fn measure(
    command: &'static str,
    target: Arc<Target>,
    plan: &Plan,
    verdict: &Verdict,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    let Some(first) = stop.run_until_cancelled(first(&target, plan)).await else { return Ok(()) };
    first?;
    let counter = Counter::default();
    let progress = Progress::show(command, plan.warm_up + plan.duration, counter.clone());
    let begin = Instant::now();
    let tally = plan.run(Arc::clone(&target), counter, stop.clone()).await?;
    drop(progress);
    let ran = stop.is_cancelled().then(|| begin.elapsed());
    let report = Report::new(command, target.name(), plan, &tally, ran);
    crate::say(&report)?;
    verdict.write(&report)?;
    verdict.judge(&tally)
}

/// One request, so that a target that is dead, or refuses, gets no more than that.
pub(crate) async fn first(target: &Target, plan: &Plan) -> anyhow::Result<()> {
    let (mut link, counter) = (Link::None, Counter::default());
    let exchange = plan.exchange(target, &mut link, &target.requests()[0], &counter);
    let answer = timeout(plan.timeout, exchange).await.unwrap_or(Err(Failure::TimedOut));
    let status = answer.with_context(|| format!("1 of 1 requests to {} failed", target.name()))?;
    ensure!(
        plan.accepts(status),
        "1 of 1 requests to {} failed: status {status}; nothing else was sent",
        target.name()
    );
    Ok(())
}
