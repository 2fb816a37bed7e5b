//! `loadtest storm`: many agents reconnect at the same time, after kas or one of several replicas was killed.

use std::{
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use agentk_core::KasAddress;
use anyhow::{Context as _, ensure};
use serde::Serialize;
use tokio::time::{interval, sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::{
    installation::{
        agent_fleet::{AgentFleet, AgentFleetConfig},
        stack::{
            KasProcess, StackConfig, free_port, process,
            redis::{Commands, RedisProcess, list},
            start_replicas,
        },
    },
    load::{self, options::write_json, report::Table},
};

/// The interval at which memory and CPU time are sampled.
const LOOK: Duration = Duration::from_millis(100);
/// The number of samples over which CPU time is averaged: one second.
const LOOKS: usize = 10;
/// The idle time before the storm.
const CALM: Duration = Duration::from_secs(5);

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
    /// New tunnels per second that each kas accepts (agent.listen.connections_per_second)
    #[arg(long, value_name = "NUMBER", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    rate: u32,
    /// Time for which the load balancer still sends agents to the killed one of several replicas
    #[arg(long, value_name = "DURATION", default_value = "1s", value_parser = settings::duration::parse)]
    notice: Duration,
    /// Time for which a single kas is stopped
    #[arg(long, value_name = "DURATION", default_value = "3s", value_parser = settings::duration::parse)]
    outage: Duration,
    /// Time limit for the agents to connect, and to reconnect
    #[arg(long, value_name = "DURATION", default_value = "1m", value_parser = settings::duration::parse)]
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
#[derive(Clone, Debug, Serialize)]
struct StormReport {
    agents: u32,
    tunnels: usize,
    replicas: u16,
    tls: bool,
    /// The limit of new tunnels per second and replica.
    per_second: u32,
    /// True if the run was stopped early.
    interrupted: bool,
    /// The times count from the kill of a replica, or from the restart of a single kas.
    back: Recovery,
    /// The highest CPU usage of a running kas in one second, in cores.
    peak_cores: f64,
    /// The highest resident memory of a running kas.
    peak_mib: f64,
    /// The number of commands that Redis received until all tunnels were back.
    redis_commands: u64,
    redis_by_command: Vec<(String, u64)>,
}

/// The highest resource usage of the running replicas.
#[derive(Clone, Copy, Debug, Default)]
struct Peak {
    cores: f64,
    kib: u64,
}

impl Storm {
    /// Runs to the end, or until `stop` is cancelled.
    pub async fn run(self, stop: CancellationToken) -> anyhow::Result<()> {
        let directory = tempfile::tempdir()?;
        let several = self.replicas > 1;
        let redis = if several { Some(RedisProcess::start(directory.path()).await?) } else { None };
        let setup = StackConfig {
            tls: self.tls.into(),
            redis: redis.as_ref().map(|redis| redis.address),
            // A single kas listens at the same port again.
            agent_port: if several { 0 } else { free_port()? },
            extra_agents: self.count,
            per_second: Some(self.rate),
            ..StackConfig::default()
        };
        let mut replicas = start_replicas(directory.path(), &setup, self.replicas).await?;
        // In production the agents have connected over days, so they do not wait at the rate limit here.
        let per_second = f64::from(self.rate) / f64::from(self.tunnels()) / 2.0;
        let fleet = AgentFleetConfig::new(&replicas, self.count, self.tunnels(), per_second)?.start()?;
        let first = fleet.wait_until_all_connected(self.timeout, &stop).await?;
        let what = if several { format!("one of {} replicas", self.replicas) } else { "kas".to_owned() };
        load::print(&format!("{} tunnels are up; {what} is killed now", first.up))?;
        stop.run_until_cancelled(sleep(CALM)).await;

        let before = match &redis {
            Some(redis) => redis.commands().await?,
            None => Commands::default(),
        };
        let killed = replicas.remove(0);
        let lost = killed.agent_address()?;
        killed.kill().await?;
        let mut since = Instant::now();
        if !several {
            let restarting = self.restart(directory.path(), &setup, &fleet);
            replicas.extend(stop.run_until_cancelled(restarting).await.transpose()?);
            since = Instant::now();
        }
        let (samples, peak) = self.watch(&fleet, &replicas, since, &lost, &stop).await?;
        let asked = match &redis {
            Some(redis) => redis.commands().await?.since(&before),
            None => Commands::default(),
        };
        let failure = fleet.last_failure();
        let count = fleet.count();
        fleet.stop().await;

        let report = StormReport {
            agents: self.count,
            tunnels: count,
            replicas: self.replicas,
            tls: self.tls,
            per_second: self.rate,
            interrupted: stop.is_cancelled(),
            back: Recovery::of(&samples, count),
            peak_cores: peak.cores,
            peak_mib: peak.kib as f64 / 1024.0,
            redis_commands: asked.total(),
            redis_by_command: asked.by_count(),
        };
        report.print()?;
        if let Some(file) = &self.json {
            write_json(file, &report)?;
        }
        let Recovery { missing, all, .. } = report.back;
        let failure = failure.as_deref().unwrap_or("no failure was seen");
        ensure!(all.is_some() || report.interrupted, "{missing} of {count} tunnels are not back: {failure}");
        Ok(())
    }

    fn tunnels(&self) -> u16 {
        self.tunnels.unwrap_or(if self.replicas > 1 { 2 } else { 1 })
    }

    /// Starts a single kas again after the outage.
    async fn restart(
        &self,
        directory: &Path,
        setup: &StackConfig,
        fleet: &AgentFleet,
    ) -> anyhow::Result<KasProcess> {
        ensure!(
            fleet.wait_until_disconnected(self.timeout).await,
            "some tunnels stayed up after kas was killed"
        );
        sleep(self.outage).await;
        KasProcess::start(directory, setup).await.context("kas did not start again")
    }

    /// Samples tunnels and resource usage until all tunnels are back. After `--notice`, agents no longer dial `lost`, unless it
    /// is the only one.
    async fn watch(
        &self,
        fleet: &AgentFleet,
        replicas: &[KasProcess],
        since: Instant,
        lost: &KasAddress,
        stop: &CancellationToken,
    ) -> anyhow::Result<(Vec<(f64, usize)>, Peak)> {
        let finished = CancellationToken::new();
        let notice = async {
            sleep(self.notice).await;
            if self.replicas > 1 {
                fleet.remove_replica(lost);
            }
        };
        let returning = async {
            let watching = async { tokio::join!(samples(fleet, since, self.timeout), notice).0 };
            let samples = stop.run_until_cancelled(watching).await.unwrap_or_default();
            finished.cancel();
            samples
        };
        let pids: Vec<u32> = replicas.iter().map(KasProcess::pid).collect();
        let (samples, peak) = tokio::join!(returning, peaks(&pids, &finished));
        Ok((samples, peak?))
    }
}

impl StormReport {
    fn print(&self) -> anyhow::Result<()> {
        let mut table = Table::new([
            "lost",
            "half back s",
            "95 % s",
            "all s",
            "busiest second",
            "peak cores",
            "peak MiB",
            "Redis commands",
        ]);
        let [half, most, all] = [self.back.half, self.back.most, self.back.all]
            .map(|seconds| seconds.map_or_else(|| "never".to_owned(), |s| format!("{s:.2}")));
        table.row([
            self.back.lost.to_string(),
            half,
            most,
            all,
            self.back.busiest_second.to_string(),
            format!("{:.2}", self.peak_cores),
            format!("{:.0}", self.peak_mib),
            self.redis_commands.to_string(),
        ]);
        load::print(&table)?;
        if self.redis_commands > 0 {
            let by_command = list(&self.redis_by_command);
            load::print(&format!("Redis commands, including those of scripts: {by_command}"))?;
        }
        if self.interrupted {
            load::print(&"stopped early")?;
        }
        Ok(())
    }
}

/// Returns the number of tunnels at each change, with the seconds since `since`, until all are up.
async fn samples(fleet: &AgentFleet, since: Instant, within: Duration) -> Vec<(f64, usize)> {
    let (mut changes, count) = (fleet.changes(), fleet.count());
    let mut samples = Vec::new();
    let watching = async {
        let mut lost = false;
        loop {
            let up = *changes.borrow_and_update();
            samples.push((since.elapsed().as_secs_f64(), up));
            lost |= up < count;
            // The sender lives as long as the fleet, so this does not fail.
            if (lost && up >= count) || changes.changed().await.is_err() {
                return;
            }
        }
    };
    let _ = timeout(within, watching).await;
    samples
}

/// Samples the processes until `finished` is cancelled, and returns their peak usage.
async fn peaks(processes: &[u32], finished: &CancellationToken) -> anyhow::Result<Peak> {
    let mut looks: Vec<Vec<(Instant, Duration)>> = vec![Vec::new(); processes.len()];
    let mut peak = Peak::default();
    let mut ticks = interval(LOOK);
    while finished.run_until_cancelled(ticks.tick()).await.is_some() {
        for (pid, looks) in processes.iter().zip(&mut looks) {
            looks.push((Instant::now(), process::cpu(*pid).context("kas has exited")?));
            if let Some((from, before)) = looks.len().checked_sub(LOOKS + 1).map(|index| looks[index])
                && let Some((to, after)) = looks.last().copied()
            {
                let cores = (after - before).as_secs_f64() / (to - from).as_secs_f64();
                peak.cores = peak.cores.max(cores);
            }
            peak.kib = peak.kib.max(process::resident(*pid)?);
        }
    }
    Ok(peak)
}

/// The loss and return of tunnels after a fault.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
struct Recovery {
    /// The highest number of missing tunnels.
    lost: usize,
    /// The number of missing tunnels at the end.
    missing: usize,
    /// Seconds until half of the lost tunnels were back; `null` if they never were.
    half: Option<f64>,
    /// Seconds until 95 % of them were back.
    most: Option<f64>,
    /// Seconds until all of them were back.
    all: Option<f64>,
    /// The highest number of tunnels that came back within one second.
    busiest_second: usize,
}

impl Recovery {
    /// Computes the recovery from pairs of seconds and tunnels that were up. `count` is the expected number of tunnels.
    fn of(samples: &[(f64, usize)], count: usize) -> Self {
        let Some((worst, least)) =
            samples.iter().enumerate().map(|(index, (_, up))| (index, *up)).min_by_key(|(_, up)| *up)
        else {
            return Self::default();
        };
        let lost = count.saturating_sub(least);
        let reached = |share: f64| {
            let enough = least + (lost as f64 * share).ceil() as usize;
            samples[worst..].iter().find(|(_, up)| *up >= enough).map(|(at, _)| *at)
        };
        let last = samples.last().map_or(0, |(_, up)| *up);
        Self {
            lost,
            missing: count.saturating_sub(last),
            half: reached(0.5),
            most: reached(0.95),
            all: reached(1.0),
            busiest_second: busiest(samples),
        }
    }
}

/// Returns the highest number of tunnels that came back within one second.
fn busiest(samples: &[(f64, usize)]) -> usize {
    let (mut most, mut first, mut gained) = (0, 0, vec![0usize]);
    for pair in samples.windows(2) {
        let last = gained.last().copied().unwrap_or_default();
        gained.push(last + pair[1].1.saturating_sub(pair[0].1));
    }
    for (index, (at, _)) in samples.iter().enumerate() {
        while samples[first].0 < at - 1.0 {
            first += 1;
        }
        most = most.max(gained[index] - gained[first]);
    }
    most
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser as _;

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

    #[test]
    fn recovery_counts_lost_tunnels_only() {
        // 40 of 100 tunnels are lost, some of them after the first is back.
        let samples = [
            (0.0, 100),
            (0.1, 70),
            (0.2, 71),
            (0.3, 60),
            (1.0, 79),
            (1.5, 80),
            (2.0, 97),
            (2.1, 98),
            (4.0, 100),
        ];
        let back = Recovery::of(&samples, 100);
        let expected = Recovery {
            lost: 40,
            missing: 0,
            half: Some(1.5),
            most: Some(2.1),
            all: Some(4.0),
            busiest_second: 20,
        };
        assert_eq!(back, expected);
    }

    #[test]
    fn tunnel_that_does_not_return_is_missing() {
        let back = Recovery::of(&[(0.0, 10), (1.0, 0), (2.0, 9)], 10);
        assert_eq!((back.lost, back.missing, back.half, back.most), (10, 1, Some(2.0), None));
        assert_eq!(Recovery::of(&[], 10), Recovery::default());
    }
}
