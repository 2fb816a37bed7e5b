//! A measurement from its first request, which checks the target, to its report.

use std::{sync::Arc, time::Instant};

use anyhow::{Context as _, ensure};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::load::{
    self, LoadError, LoadTarget, Plan, Report, Tally,
    options::OutputOptions,
    progress::{Counter, Progress},
    workers::KeptConnection,
};

/// Checks the target with one request and runs the plan. Prints and writes the report.
///
/// Returns an error if more requests failed than allowed.
pub async fn measure(
    command: &'static str,
    target: Arc<LoadTarget>,
    plan: &Plan,
    output: &OutputOptions,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    let Some(checked) = stop.run_until_cancelled(check_target(&target, plan)).await else { return Ok(()) };
    checked?;
    let (report, tally) = run_plan(command, &target, plan, &stop).await?;
    output.write(&report)?;
    output.check_errors(&tally)
}

/// Runs the plan with a progress bar, and prints the report.
pub async fn run_plan(
    what: &'static str,
    target: &Arc<LoadTarget>,
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
    load::print(&report)?;
    Ok((report, tally))
}

/// Sends one request, so that a target that is unreachable or refuses it receives no load.
pub async fn check_target(target: &LoadTarget, plan: &Plan) -> anyhow::Result<()> {
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
