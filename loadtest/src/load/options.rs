//! The flags that all load commands share, and their limits. The default is 64 connections for 30 seconds.

use std::{path::PathBuf, time::Duration};

use anyhow::{Context as _, bail, ensure};
use clap::value_parser;

use super::{Plan, Report, Tally, plot};

/// The maximum number of connections in one run.
const MAX_CONNECTIONS: u32 = 50_000;
/// The maximum of `--rate`, in requests per second.
const MAX_RATE: f64 = 10_000_000.0;
/// The maximum of `--duration`.
const LONGEST: Duration = Duration::from_secs(7 * 24 * 3600);

/// The amount and the duration of the load.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// Duration of the measurement
    #[arg(long, short = 'd', value_name = "DURATION", default_value = "30s", value_parser = duration,
        help_heading = "Load")]
    pub duration: Duration,
    /// Duration of the warm-up before that, whose requests are not counted
    #[arg(long, value_name = "DURATION", default_value = "1s", value_parser = settings::duration::parse,
        help_heading = "Load")]
    pub warm_up: Duration,
    /// Connections, each with one request at a time
    #[arg(long, short = 'c', value_name = "NUMBER", default_value_t = 64,
        value_parser = value_parser!(u32).range(1..=i64::from(MAX_CONNECTIONS)), help_heading = "Load")]
    pub connections: u32,
    /// Requests per second over all connections, independent of the responses (open loop)
    ///
    /// Without it, each connection sends its next request after the last response (closed loop). Only an open loop measures
    /// what users wait for while a server stalls: latency counts from when a request was due.
    #[arg(long, short = 'r', value_name = "NUMBER", value_parser = rate, help_heading = "Load")]
    pub rate: Option<f64>,
    /// Time limit for a response; a later one is a failure
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = settings::duration::parse,
        help_heading = "Load")]
    pub timeout: Duration,
    /// Seed of the random choices, so that a run can be repeated
    #[arg(long, value_name = "NUMBER", default_value_t = 1, help_heading = "Load")]
    pub seed: u64,
    /// Threads that send requests; one per core by default
    #[arg(
        long,
        value_name = "NUMBER",
        default_value_t = 0,
        hide_default_value = true,
        help_heading = "Load"
    )]
    pub threads: usize,
    #[command(flatten)]
    pub output: OutputOptions,
}

/// The files of the report, and the error rate above which the run fails.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct OutputOptions {
    /// Also write the report as JSON
    #[arg(long, value_name = "FILE", help_heading = "Report")]
    pub json: Option<PathBuf>,
    /// Write a plot of latency and throughput
    #[arg(long, value_name = "FILE", help_heading = "Report")]
    pub svg: Option<PathBuf>,
    /// Exit with success if at most this share of the requests failed or was refused (4xx, 5xx), in percent
    #[arg(long, value_name = "PERCENT", default_value_t = 0.0, help_heading = "Report")]
    pub allow_errors: f64,
}

impl Options {
    /// Converts the flags to a plan.
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

impl OutputOptions {
    /// Writes the JSON report and the plot, if their flags are set.
    pub fn write_json(&self, report: &impl serde::Serialize) -> anyhow::Result<()> {
        self.json.as_ref().map_or(Ok(()), |file| write_json(file, report))
    }

    /// Writes the JSON report, if its flag is set.
    pub fn write(&self, report: &Report) -> anyhow::Result<()> {
        self.write_json(report)?;
        self.write_svg(report)
    }

    /// Writes the plot, if its flag is set.
    pub fn write_svg(&self, report: &Report) -> anyhow::Result<()> {
        let Some(file) = &self.svg else { return Ok(()) };
        let written = std::fs::write(file, plot::svg(report));
        written.with_context(|| format!("cannot write {}", file.display()))
    }

    /// Returns an error of one line if more requests failed than allowed.
    pub fn check_errors(&self, tally: &Tally) -> anyhow::Result<()> {
        let errors = tally.errors();
        let all = tally.answers() + tally.failures.values().sum::<u64>() + tally.unsent;
        if all == 0 {
            bail!("no response arrived in the measured time");
        }
        let share = errors as f64 / all as f64 * 100.0;
        ensure!(share <= self.allow_errors, "{errors} of {all} requests failed: {}", tally.causes());
        Ok(())
    }
}

/// Writes a value as JSON.
pub fn write_json(file: &std::path::Path, report: &impl serde::Serialize) -> anyhow::Result<()> {
    let text = serde_json::to_string_pretty(report)? + "\n";
    std::fs::write(file, text).with_context(|| format!("cannot write {}", file.display()))
}

fn duration(text: &str) -> Result<Duration, String> {
    let duration = settings::duration::parse(text).map_err(|error| error.to_string())?;
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
    use crate::load::LoadError;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        options: Options,
    }

    #[test]
    fn defaults_are_bounded() {
        let plan = Line::try_parse_from(["x"]).unwrap().options.plan();
        assert_eq!((plan.connections, plan.duration.as_secs(), plan.rate), (64, 30, None));
    }

    #[test]
    fn invalid_value_is_refused_with_its_flag() {
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
    fn error_is_one_line_with_most_frequent_cause_first() {
        let start = Instant::now();
        let mut tally = Tally::new(start, start + Duration::from_secs(1));
        for _ in 0..97 {
            tally.answered(start, start, 200, true);
        }
        tally.answered(start, start, 503, false);
        tally.failed(start, &LoadError::TimedOut);
        tally.failed(start, &LoadError::TimedOut);
        let output = OutputOptions::default();
        assert_eq!(
            output.check_errors(&tally).unwrap_err().to_string(),
            "3 of 100 requests failed: 2 × no response in time, 1 × status 503"
        );
        OutputOptions { allow_errors: 3.0, ..output }.check_errors(&tally).unwrap();
    }
}
