//! `loadtest storm`: many agents reconnect at the same time.

mod replicas;
mod timeline;

use std::{
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use anyhow::{Context as _, ensure};
use serde::Serialize;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use crate::{
    fleet::{AgentFleet, AgentFleetConfig, ConnectTimes},
    load::{options::write_json, table::Table, target::read_token},
    stack::{KasProcess, StackConfig, free_port},
};

/// Kill a kas with many agents, and measure how long they take to reconnect
///
/// Starts kas and the agents on this machine, with default settings. A single kas is started again; with --replicas, which
/// needs redis-server, the agents reconnect to the other replicas.
///
/// Most of the time is the backoff of the agents, which is that of agentk: 0.25 to 0.5 s ten times, then ½ to 1 of 0.5 s,
/// 1 s, 2 s, … 20 s.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Storm {
    /// Number of agents
    #[arg(long, value_name = "NUMBER", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=50_000))]
    count: u32,
    /// Tunnels per agent; by default 1, or 2 with several replicas
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u16).range(1..=16))]
    tunnels: Option<u16>,
    /// Number of replicas of kas
    #[arg(long, value_name = "NUMBER", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=10))]
    replicas: u16,
    /// With several replicas: new tunnels per second that each accepts (agent.listen.connections_per_second)
    #[arg(long, value_name = "NUMBER", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    rate: u32,
    /// With several replicas: how long the load balancer still sends agents to the killed one
    #[arg(long, value_name = "DURATION", default_value = "1s", value_parser = proto::duration::parse)]
    notice: Duration,
    /// How long a single kas is stopped
    #[arg(long, value_name = "DURATION", default_value = "3s", value_parser = proto::duration::parse)]
    outage: Duration,
    /// How long the agents may take to reconnect
    #[arg(long, value_name = "DURATION", default_value = "1m", value_parser = proto::duration::parse)]
    timeout: Duration,
    /// Use TLS in the tunnels
    #[arg(long)]
    tls: bool,
    /// Also write the report as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

const EXAMPLES: &str = "\
Examples:
  loadtest storm --count 2000 --outage 3s
  loadtest storm --count 2000 --replicas 2";

/// The result; its JSON is this struct.
#[derive(Clone, Copy, Debug, Serialize)]
struct StormReport {
    count: u32,
    outage_seconds: f64,
    tls: bool,
    /// True if the run was stopped early.
    interrupted: bool,
    first: ConnectTimes,
    /// `null` if the run was stopped before kas listened again.
    back: Option<ConnectTimes>,
}

impl Storm {
    /// Runs to the end, or until `stop` is cancelled.
    pub async fn run(self, stop: CancellationToken) -> anyhow::Result<()> {
        let directory = tempfile::tempdir()?;
        if self.replicas > 1 {
            return replicas::run(&self, directory.path(), &stop).await;
        }
        let setup = StackConfig { tls: self.tls.into(), agent_port: free_port()?, ..StackConfig::default() };
        let starting = KasProcess::start(directory.path(), &setup);
        let Some(kas) = stop.run_until_cancelled(starting).await.transpose()? else { return Ok(()) };
        let config = AgentFleetConfig {
            kas: vec![kas.agent_address()?],
            cacert: self.tls.then(|| directory.path().join("kas.crt")),
            tokens: vec![read_token(&kas.agent_token())?],
            count: self.count as usize,
            tunnels: self.tunnels(),
            per_second: f64::INFINITY,
            answer: 200,
        };
        let (begin, count) = (Instant::now(), config.count * usize::from(config.tunnels));
        let fleet = config.start()?;
        let first = fleet.wait_until_connected(begin, self.timeout, &stop).await;
        ensure!(
            first.all.is_some() || stop.is_cancelled(),
            "{} of {count} tunnels came up: {}",
            first.up,
            fleet.last_failure().as_deref().unwrap_or("no failure was seen")
        );
        crate::print(&format!("{} tunnels are up; kas is killed now and started again later", first.up))?;
        let outage = self.outage(kas, directory.path(), &setup, &fleet);
        let kas = stop.run_until_cancelled(outage).await.transpose()?;
        let back = match &kas {
            Some(_) => Some(fleet.wait_until_connected(Instant::now(), self.timeout, &stop).await),
            None => None,
        };
        fleet.stop().await;

        let report = StormReport {
            count: self.count,
            outage_seconds: self.outage.as_secs_f64(),
            tls: self.tls,
            interrupted: stop.is_cancelled(),
            first,
            back,
        };
        self.print(&report)?;
        let back = back.unwrap_or_default();
        let all = back.all.is_some() || report.interrupted;
        ensure!(all, "{} of {count} tunnels were back in time", back.up);
        Ok(())
    }

    fn tunnels(&self) -> u16 {
        self.tunnels.unwrap_or(if self.replicas > 1 { 2 } else { 1 })
    }

    /// Kills kas, waits and starts it again.
    async fn outage(
        &self,
        kas: KasProcess,
        directory: &Path,
        setup: &StackConfig,
        fleet: &AgentFleet,
    ) -> anyhow::Result<KasProcess> {
        kas.kill().await?;
        ensure!(
            fleet.wait_until_disconnected(self.timeout).await,
            "some tunnels stayed up after kas was killed"
        );
        sleep(self.outage).await;
        KasProcess::start(directory, setup).await.context("kas did not start again")
    }

    fn print(&self, report: &StormReport) -> anyhow::Result<()> {
        let mut table = Table::new(["", "tunnels", "half s", "95 % s", "all s"]);
        let back = report.back.map(|arrival| ("back", arrival));
        for (name, arrival) in [("first", report.first)].into_iter().chain(back) {
            let [half, most, all] = [arrival.half, arrival.most, arrival.all]
                .map(|seconds| seconds.map_or_else(|| "never".to_owned(), |s| format!("{s:.2}")));
            table.row([name.to_owned(), arrival.up.to_string(), half, most, all]);
        }
        crate::print(&table)?;
        if report.interrupted {
            crate::print(&"stopped early")?;
        }
        if let Some(file) = &self.json {
            write_json(file, report)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    #[derive(Debug, clap::Parser)]
    struct Line {
        #[command(flatten)]
        storm: Storm,
    }

    #[test]
    fn defaults_are_bounded() {
        let storm = Line::try_parse_from(["x"]).unwrap().storm;
        assert_eq!((storm.count, storm.outage.as_secs(), storm.timeout.as_secs()), (1000, 3, 60));
        assert_eq!((storm.replicas, storm.tunnels()), (1, 1));
        let several = Line::try_parse_from(["x", "--replicas=2"]).unwrap().storm;
        assert_eq!((several.tunnels(), several.rate, several.notice.as_secs()), (2, 1000, 1));
        for flags in [
            "--replicas=0",
            "--replicas=11",
            "--rate=0",
            "--tunnels=17",
            "--count=0",
            "--count=50001",
            "--outage=3",
            "--timeout=x",
        ] {
            assert!(Line::try_parse_from(["x", flags]).is_err(), "{flags}");
        }
    }
}
