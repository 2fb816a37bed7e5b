//! `loadtest restarts`: a single kas restarts again and again under load.

mod outcome;

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::ensure;
use serde::Serialize;
use simulator::Simulator;
use tokio::{
    task::JoinSet,
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;

use self::outcome::{RequestResult, RestartOutcome, SentRequest};
use crate::{
    caller::Caller,
    load::{
        Target,
        options::write_json,
        table::{Table, number},
    },
    stack::{KasProcess, StackConfig, free_port},
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
    /// How long kas runs before it is restarted
    #[arg(long, value_name = "DURATION", default_value = "3s", value_parser = proto::duration::parse)]
    every: Duration,
    /// Number of callers
    #[arg(long, short = 'c', value_name = "NUMBER", default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=1000))]
    clients: u16,
    /// How long a caller waits after a response
    #[arg(long, value_name = "DURATION", default_value = "100ms", value_parser = proto::duration::parse)]
    pause: Duration,
    /// How long a response may take
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = proto::duration::parse)]
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
        let directory = self.logs.as_deref().unwrap_or_else(|| temporary.path());
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
            callers.spawn(send_requests(Arc::clone(&target), self.pause, self.timeout, end.clone()));
        }
        let mut starts = Vec::new();
        let restarting = self.restart(kas, directory, &setup, &mut starts);
        let kas = stop.run_until_cancelled(restarting).await.transpose()?;
        end.cancel();
        let sent = callers.join_all().await.concat();
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
        crate::print(&format!("{table}\n{EXPLANATION}"))?;
        for (cause, count) in other {
            crate::print(&format!("{count} × {cause}"))?;
        }
        if report.interrupted {
            crate::print(&"stopped early")?;
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

async fn send_requests(
    target: Arc<Target>,
    pause: Duration,
    limit: Duration,
    end: CancellationToken,
) -> Vec<SentRequest> {
    let (mut caller, mut sent) = (Caller::new(target), Vec::new());
    while !end.is_cancelled() {
        let at = Instant::now();
        let response = match timeout(limit, caller.send()).await {
            Ok(result) => RequestResult::from(result),
            Err(_) => RequestResult::Other("no response in time".to_owned()),
        };
        sent.push(SentRequest { at, took: at.elapsed(), response });
        end.run_until_cancelled(sleep(pause)).await;
    }
    sent
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
}
