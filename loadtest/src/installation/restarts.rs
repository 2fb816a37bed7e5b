//! `loadtest restarts`: a single kas restarts again and again under load.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::ensure;
use proto::Reason;
use serde::Serialize;
use testing::simulator::Simulator;
use tokio::{task::JoinSet, time::sleep};
use tokio_util::sync::CancellationToken;

use crate::{
    installation::{
        callers::{RequestFailure, SentRequest, send_repeatedly},
        stack::{KasProcess, StackConfig, free_port, prepare_directory},
    },
    load::{
        self, LoadError,
        options::write_json,
        report::{Table, number},
    },
};

/// The path that callers request.
const PATH: &str = "/version";

/// Restart a single kas again and again, and count the responses of its callers
///
/// Starts kas, agentk and a simulated cluster on this machine. Every second restart is SIGKILL, the others are SIGTERM. A
/// caller keeps its connection and waits for --pause between a response and its next request. It does not retry.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "Example:\n  loadtest restarts --count 18 --every 3s --clients 4")]
pub struct Restarts {
    /// Number of restarts
    #[arg(long, value_name = "NUMBER", default_value_t = 18, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    count: u32,
    /// Time for which kas runs before it is restarted
    #[arg(long, value_name = "DURATION", default_value = "3s", value_parser = settings::duration::parse)]
    every: Duration,
    /// Number of callers
    #[arg(long, short = 'c', value_name = "NUMBER", default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=1000))]
    clients: u16,
    /// Pause of a caller after a response
    #[arg(long, value_name = "DURATION", default_value = "100ms", value_parser = settings::duration::parse)]
    pause: Duration,
    /// Time limit for a response
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = settings::duration::parse)]
    timeout: Duration,
    /// Fail if more responses than this have the reason agent-not-connected
    #[arg(long, value_name = "NUMBER", default_value_t = 19)]
    max_not_connected: usize,
    /// Keep the logs of all programs in this directory
    #[arg(long, value_name = "DIRECTORY")]
    logs: Option<PathBuf>,
    /// Also write the report as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// The summary of all requests.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
struct RestartOutcome {
    /// The number of responses below 400.
    answered: usize,
    /// The number of refused connections.
    refused: usize,
    /// The number of responses with the reason `agent-not-connected`.
    not_connected: usize,
    /// The number of connections that were closed before the end of the response.
    cut: usize,
    /// The number of other failures by reason.
    other: BTreeMap<String, usize>,
    /// The duration of the slowest request.
    worst_seconds: f64,
    /// The longest time from a start of kas to the first response after it.
    back_seconds: f64,
}

/// The result; its JSON is this struct.
#[derive(Debug, Serialize)]
struct RestartsReport {
    restarts: usize,
    clients: u16,
    every_seconds: f64,
    /// True if the run was stopped early.
    interrupted: bool,
    #[serde(flatten)]
    outcome: RestartOutcome,
}

impl Restarts {
    /// Runs to the end, or until `stop` is cancelled.
    pub async fn run(self, stop: CancellationToken) -> anyhow::Result<()> {
        let temporary = tempfile::tempdir()?;
        let directory = &prepare_directory(self.logs.as_deref().unwrap_or_else(|| temporary.path()))?;
        let cluster = Simulator::start(([127, 0, 0, 1], 0).into())?;
        let setup =
            StackConfig { agent_port: free_port()?, public_port: free_port()?, ..StackConfig::default() };
        let kas = KasProcess::start(directory, &setup).await?;
        let _agentk = kas.start_agentk(&setup, cluster.address(), PATH).await?;
        let target = Arc::new(kas.target(PATH)?);

        let end = CancellationToken::new();
        let _end = end.clone().drop_guard();
        let mut callers = JoinSet::new();
        for _ in 0..self.clients {
            callers.spawn(send_repeatedly(Arc::clone(&target), self.pause, self.timeout, end.clone()));
        }
        let mut starts = Vec::new();
        let restarting = self.restart(kas, directory, &setup, &mut starts);
        let kas = stop.run_until_cancelled(restarting).await.transpose()?;
        end.cancel();
        let sent: Vec<_> = callers.join_all().await.into_iter().flatten().collect();
        drop(kas);
        cluster.shutdown().await;

        let report = RestartsReport {
            restarts: starts.len(),
            clients: self.clients,
            every_seconds: self.every.as_secs_f64(),
            interrupted: stop.is_cancelled(),
            outcome: RestartOutcome::of(&sent, &starts),
        };
        self.print(&report)?;
        let not_connected = report.outcome.not_connected;
        ensure!(
            not_connected <= self.max_not_connected,
            "{not_connected} responses were agent-not-connected: the agent was not back in time"
        );
        ensure!(report.outcome.other.is_empty(), "some requests failed in other ways");
        Ok(())
    }

    /// Stops and starts kas. Adds the moments when it listened again to `starts`.
    async fn restart(
        &self,
        mut kas: KasProcess,
        directory: &Path,
        setup: &StackConfig,
        starts: &mut Vec<Instant>,
    ) -> anyhow::Result<KasProcess> {
        for number in 0..self.count {
            sleep(self.every).await;
            if number % 2 == 0 {
                kas.stop().await?
            } else {
                kas.kill().await?
            }
            kas = KasProcess::start(directory, setup).await?;
            starts.push(Instant::now());
        }
        sleep(self.every).await;
        Ok(kas)
    }

    fn print(&self, report: &RestartsReport) -> anyhow::Result<()> {
        let RestartOutcome { answered, refused, not_connected, cut, ref other, .. } = report.outcome;
        let headings = [
            "restarts",
            "answered",
            "refused",
            "agent-not-connected",
            "cut",
            "other",
            "worst s",
            "back after s",
        ];
        let mut table = Table::new(headings);
        let counts = [report.restarts, answered, refused, not_connected, cut, other.values().sum()];
        let seconds = [report.outcome.worst_seconds, report.outcome.back_seconds];
        table.row(counts.map(|count| count.to_string()).into_iter().chain(seconds.map(number)));
        load::print(&format!("{table}\n{EXPLANATION}"))?;
        for (cause, count) in other {
            load::print(&format!("{count} × {cause}"))?;
        }
        if report.interrupted {
            load::print(&"stopped early")?;
        }
        if let Some(file) = &self.json {
            write_json(file, report)?;
        }
        Ok(())
    }
}

const EXPLANATION: &str = "\
refused: no process listened. cut: the connection was closed before the end of the response. worst: the slowest request.
back after: the longest time from the start of kas to the first response.";

impl RestartOutcome {
    /// Summarizes the requests around the `starts` of kas.
    fn of(sent: &[SentRequest], starts: &[Instant]) -> Self {
        let mut outcome = Self::default();
        for SentRequest { failure, .. } in sent {
            match failure {
                None => outcome.answered += 1,
                Some(RequestFailure::NoResponse(LoadError::Connect(_))) => outcome.refused += 1,
                Some(RequestFailure::Status(_, Some(Reason::AgentNotConnected))) => {
                    outcome.not_connected += 1
                }
                Some(RequestFailure::NoResponse(LoadError::Closed)) => outcome.cut += 1,
                Some(other) => *outcome.other.entry(other.to_string()).or_default() += 1,
            }
        }
        let answered = || sent.iter().filter(|sent| sent.failure.is_none());
        let back = starts.iter().filter_map(|start| {
            let ends = answered().map(|sent| sent.at + sent.took);
            ends.filter_map(|end| end.checked_duration_since(*start)).min()
        });
        outcome.back_seconds = back.max().unwrap_or_default().as_secs_f64();
        outcome.worst_seconds = sent.iter().map(|sent| sent.took).max().unwrap_or_default().as_secs_f64();
        outcome
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    #[derive(Debug, clap::Parser)]
    struct Line {
        #[command(flatten)]
        restarts: Restarts,
    }

    #[test]
    fn defaults_are_bounded() {
        let restarts = Line::try_parse_from(["x"]).unwrap().restarts;
        assert_eq!((restarts.count, restarts.every.as_secs(), restarts.clients), (18, 3, 4));
        for flags in ["--count=0", "--count=10001", "--clients=0", "--clients=1001", "--every=3"] {
            assert!(Line::try_parse_from(["x", flags]).is_err(), "{flags}");
        }
    }

    #[test]
    fn outcome_counts_responses_and_recovery_time() {
        let no_response = |error| Some(RequestFailure::NoResponse(error));
        let begin = Instant::now();
        let sent = |at: u64, took: u64, failure| SentRequest {
            at: begin + Duration::from_millis(at),
            took: Duration::from_millis(took),
            replica: 0,
            failure,
        };
        let requests = [
            sent(0, 2, None),
            sent(100, 1, no_response(LoadError::Closed)),
            sent(200, 1, no_response(LoadError::Connect(String::new()))),
            sent(300, 2000, Some(RequestFailure::Status(503, Some(Reason::AgentNotConnected)))),
            sent(400, 350, None),
            sent(900, 5, Some(RequestFailure::Status(500, None))),
        ];
        let outcome = RestartOutcome::of(&requests, &[begin + Duration::from_millis(250)]);
        let RestartOutcome { answered, refused, not_connected, cut, ref other, .. } = outcome;
        assert_eq!((answered, refused, not_connected, cut), (2, 1, 1, 1));
        assert_eq!(other["status 500"], 1);
        assert_eq!((outcome.worst_seconds, outcome.back_seconds), (2.0, 0.5));
        assert_eq!(RestartOutcome::of(&[], &[begin]), RestartOutcome::default());
    }
}
