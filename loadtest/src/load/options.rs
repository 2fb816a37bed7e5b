//! Flags that all commands share, with bounds: without any, a run is 64 connections for 30 seconds.

use std::{path::PathBuf, time::Duration};

use anyhow::{Context as _, bail, ensure};
use clap::value_parser;

use super::{Plan, Report, Tally, plot};

/// The most connections or tunnels of one run.
const MAX_CONNECTIONS: u32 = 50_000;
/// The most requests a second that are asked for.
const MAX_RATE: f64 = 10_000_000.0;
/// The longest run.
const LONGEST: Duration = Duration::from_secs(7 * 24 * 3600);

/// How much load, for how long.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// How long to measure
    #[arg(long, short = 'd', value_name = "DURATION", default_value = "30s", value_parser = duration,
        help_heading = "Load")]
    pub duration: Duration,
    /// How long to send requests before that, without counting them
    #[arg(long, value_name = "DURATION", default_value = "1s", value_parser = proto::duration::parse,
        help_heading = "Load")]
    pub warm_up: Duration,
    /// Connections, each with one request at a time
    #[arg(long, short = 'c', value_name = "NUMBER", default_value_t = 64,
        value_parser = value_parser!(u32).range(1..=i64::from(MAX_CONNECTIONS)), help_heading = "Load")]
    pub connections: u32,
    /// Requests a second over all connections, whatever the target does (open loop)
    ///
    /// Without it, each connection sends its next request when it has the answer to its last (closed loop). Only an open
    /// loop shows what users see while a server stalls: latency counts from when a request was due.
    #[arg(long, short = 'r', value_name = "NUMBER", value_parser = rate, help_heading = "Load")]
    pub rate: Option<f64>,
    /// How long an answer may take; later is a failure
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = proto::duration::parse,
        help_heading = "Load")]
    pub timeout: Duration,
    /// Of everything that is random, so that a run can be repeated
    #[arg(long, value_name = "NUMBER", default_value_t = 1, help_heading = "Load")]
    pub seed: u64,
    /// Threads that send; one per core by default
    #[arg(
        long,
        value_name = "NUMBER",
        default_value_t = 0,
        hide_default_value = true,
        help_heading = "Load"
    )]
    pub threads: usize,
    #[command(flatten)]
    pub verdict: Verdict,
}

/// Where the result goes, and when it is a failure.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct Verdict {
    /// Write the report as JSON, too
    #[arg(long, value_name = "FILE", help_heading = "Report")]
    pub json: Option<PathBuf>,
    /// Write a plot of latency and of throughput
    #[arg(long, value_name = "FILE", help_heading = "Report")]
    pub svg: Option<PathBuf>,
    /// Exit with success if no more than this share of the requests failed or was refused (4xx, 5xx), in percent
    #[arg(long, value_name = "PERCENT", default_value_t = 0.0, help_heading = "Report")]
    pub allow_errors: f64,
}

impl Options {
    /// As a plan.
    pub fn plan(&self) -> Plan {
        Plan {
            connections: self.connections as usize,
            duration: self.duration,
            warm_up: self.warm_up,
            rate: self.rate,
            timeout: self.timeout,
            seed: self.seed,
            threads: self.threads,
            ..Plan::default()
        }
    }
}

impl Verdict {
    /// Writes what was measured, if that was asked for.
    pub fn write_json(&self, report: &impl serde::Serialize) -> anyhow::Result<()> {
        self.json.as_ref().map_or(Ok(()), |file| write_json(file, report))
    }

    /// Writes the files that were asked for.
    pub fn write(&self, report: &Report) -> anyhow::Result<()> {
        self.write_json(report)?;
        self.write_svg(report)
    }

    /// Plots a run, if that was asked for.
    pub fn write_svg(&self, report: &Report) -> anyhow::Result<()> {
        let Some(file) = &self.svg else { return Ok(()) };
        let written = std::fs::write(file, plot::svg(report));
        written.with_context(|| format!("cannot write {}", file.display()))
    }

    /// Fails, in one line, if more failed than was allowed.
    pub fn judge(&self, tally: &Tally) -> anyhow::Result<()> {
        let errors = tally.errors();
        let all = tally.answers() + tally.failures.values().sum::<u64>() + tally.unsent;
        if all == 0 {
            bail!("nothing was answered in the measured time");
        }
        let share = errors as f64 / all as f64 * 100.0;
        ensure!(share <= self.allow_errors, "{errors} of {all} requests failed: {}", causes(tally));
        Ok(())
    }
}

/// Writes a report.
pub fn write_json(file: &std::path::Path, report: &impl serde::Serialize) -> anyhow::Result<()> {
    let text = serde_json::to_string_pretty(report)? + "\n";
    std::fs::write(file, text).with_context(|| format!("cannot write {}", file.display()))
}

/// Errors by count, the most frequent first.
pub fn causes(tally: &Tally) -> String {
    let refused = tally.refusals.iter().map(|(status, count)| (*count, format!("status {status}")));
    let failed = tally.failures.iter().map(|(failure, count)| (*count, failure.clone()));
    let unsent = (tally.unsent > 0).then(|| (tally.unsent, "due but never sent".to_owned()));
    let mut causes: Vec<_> = refused.chain(failed).chain(unsent).collect();
    causes.sort_by_key(|cause| std::cmp::Reverse(cause.0));
    causes.iter().map(|(count, what)| format!("{count} × {what}")).collect::<Vec<_>>().join(", ")
}

fn duration(text: &str) -> Result<Duration, String> {
    let duration = proto::duration::parse(text).map_err(|error| error.to_string())?;
    match duration {
        Duration::ZERO => Err("it must be longer than nothing".to_owned()),
        long if long > LONGEST => Err("it must not be longer than a week".to_owned()),
        duration => Ok(duration),
    }
}

fn rate(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(rate) if rate > 0.0 && rate <= MAX_RATE => Ok(rate),
        _ => Err(format!("it must be a number above 0, and at most {MAX_RATE}")),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use clap::Parser;

    use super::*;
    use crate::load::Failure;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        options: Options,
    }

    #[test]
    fn a_run_is_bounded_by_default() {
        let plan = Line::try_parse_from(["x"]).unwrap().options.plan();
        assert_eq!((plan.connections, plan.duration.as_secs(), plan.rate), (64, 30, None));
    }

    #[test]
    fn bad_values_are_refused_with_the_flag() {
        for (flags, expected) in [
            ("--duration 0s", "longer than nothing"),
            ("--duration 8000h", "a week"),
            ("--duration 10", "number and a unit"),
            ("--connections 0", "--connections"),
            ("--connections 1000000", "--connections"),
            ("--rate 0", "above 0"),
            ("--rate NaN", "above 0"),
            ("--rate=-5", "above 0"),
            ("--seed x", "--seed"),
        ] {
            let words = ["x"].into_iter().chain(flags.split(' '));
            let error = Line::try_parse_from(words).unwrap_err().to_string();
            assert!(error.contains(expected), "{flags}: {error}");
        }
    }

    #[test]
    fn a_failure_is_one_line_with_the_most_frequent_cause_first() {
        let start = Instant::now();
        let mut tally = Tally::new(start, start + Duration::from_secs(1));
        for _ in 0..97 {
            tally.answered(start, start, 200, true);
        }
        tally.answered(start, start, 503, false);
        tally.failed(start, &Failure::TimedOut);
        tally.failed(start, &Failure::TimedOut);
        let verdict = Verdict::default();
        assert_eq!(
            verdict.judge(&tally).unwrap_err().to_string(),
            "3 of 100 requests failed: 2 × no answer in time, 1 × status 503"
        );
        Verdict { allow_errors: 3.0, ..verdict }.judge(&tally).unwrap();
    }
}
