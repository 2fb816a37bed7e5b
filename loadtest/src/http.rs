//! `loadtest http`: many short requests.

use std::{sync::Arc, time::Instant};

use anyhow::{Context as _, ensure};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::load::{
    LoadError, Options, Plan, Report, Target,
    options::OutputOptions,
    progress::{Counter, Progress},
    target::TargetOptions,
    workers::KeptConnection,
};

/// Send requests and measure the latency of their responses
///
/// The first request is a check: if it fails, no other is sent. Ctrl-C ends the run with the report of the measurements so far.
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

Exit codes: 0 success, 1 requests failed (see --allow-errors), 2 invalid arguments";

impl Http {
    /// Runs for `--duration`, or until `stop` is cancelled.
    pub async fn run(self, stop: CancellationToken) -> anyhow::Result<()> {
        let target = Arc::new(self.target.build()?);
        let plan = Plan { fresh: self.fresh, ..self.options.plan() };
        measure("http", target, &plan, &self.options.output, stop).await
    }
}

/// Checks the target with one request and runs the plan. Prints and writes the report.
///
/// Returns an error if more requests failed than allowed.
pub(crate) async fn measure(
    command: &'static str,
    target: Arc<Target>,
    plan: &Plan,
    output: &OutputOptions,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    let Some(checked) = stop.run_until_cancelled(check_target(&target, plan)).await else { return Ok(()) };
    checked?;
    let counter = Counter::default();
    let progress = Progress::show(command, plan.warm_up + plan.duration, counter.clone());
    let begin = Instant::now();
    let tally = plan.run(Arc::clone(&target), counter, stop.clone()).await?;
    drop(progress);
    let ran = stop.is_cancelled().then(|| begin.elapsed());
    let report = Report::new(command, target.name(), plan, &tally, ran);
    crate::print(&report)?;
    output.write(&report)?;
    output.check_errors(&tally)
}

/// Sends one request, so that a target that is unreachable or refuses it receives no load.
pub(crate) async fn check_target(target: &Target, plan: &Plan) -> anyhow::Result<()> {
    let (mut link, counter) = (KeptConnection::None, Counter::default());
    let exchange = plan.exchange(target, &mut link, &target.requests()[0], &counter);
    let answer = timeout(plan.timeout, exchange).await.unwrap_or(Err(LoadError::TimedOut));
    let status = answer.with_context(|| format!("1 of 1 requests to {} failed", target.name()))?;
    ensure!(
        plan.accepts(status),
        "1 of 1 requests to {} failed: status {status}; nothing else was sent",
        target.name()
    );
    Ok(())
}
