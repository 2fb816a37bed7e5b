//! A storm with several replicas: one is killed, and its agents reconnect to the others.

use std::{
    path::Path,
    time::{Duration, Instant},
};

use anyhow::{Context as _, ensure};
use serde::Serialize;
use tokio::time::{interval, sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::{Storm, timeline::Recovery};
use crate::{
    fleet::{AgentFleet, AgentFleetConfig},
    load::{options::write_json, table::Table},
    stack::{
        KasProcess, StackConfig,
        redis::{Commands, RedisProcess},
        usage,
    },
};

/// The interval at which memory and CPU time are sampled.
const LOOK: Duration = Duration::from_millis(100);
/// The number of samples over which CPU time is averaged: one second.
const LOOKS: usize = 10;
/// The idle time before the storm.
const CALM: Duration = Duration::from_secs(5);

/// The result; its JSON is this struct.
#[derive(Clone, Debug, Serialize)]
struct ReplicasReport {
    agents: u32,
    tunnels: usize,
    replicas: u16,
    tls: bool,
    /// The limit of new tunnels per second and replica.
    per_second: u32,
    /// True if the run was stopped early.
    interrupted: bool,
    back: Recovery,
    /// The highest CPU usage of a remaining replica in one second, in cores.
    peak_cores: f64,
    /// The highest resident memory of a remaining replica.
    peak_mib: f64,
    /// The number of commands that Redis received until all tunnels were back.
    redis_commands: u64,
    redis_by_command: Vec<(String, u64)>,
}

/// The highest resource usage of the remaining replicas.
#[derive(Clone, Copy, Debug, Default)]
struct Peak {
    cores: f64,
    kib: u64,
}

pub(super) async fn run(storm: &Storm, directory: &Path, stop: &CancellationToken) -> anyhow::Result<()> {
    let redis = RedisProcess::start(&directory.join("redis")).await?;
    let setup = StackConfig {
        tls: storm.tls.into(),
        redis: Some(redis.address),
        extra_agents: storm.count,
        per_second: Some(storm.rate),
        ..StackConfig::default()
    };
    let first = KasProcess::start(directory, &setup).await?;
    let mut others = Vec::new();
    for number in 2..=storm.replicas {
        others.push(first.start_replica(&format!("kas-{number}"), &setup).await?);
    }
    let tunnels = storm.tunnels();
    let replicas = std::iter::once(&first).chain(&others);
    let config = AgentFleetConfig {
        kas: replicas.map(KasProcess::agent_address).collect::<Result<_, _>>()?,
        cacert: storm.tls.then(|| directory.join("kas.crt")),
        tokens: first.extra_agent_tokens()?,
        count: storm.count as usize,
        tunnels,
        // In production the agents have connected over days, so they do not wait_until_connected at the rate limit here.
        per_second: f64::from(storm.rate) / f64::from(tunnels) / 2.0,
        answer: 200,
    };
    let count = config.count * usize::from(tunnels);
    let fleet = config.start()?;
    let limit = storm.timeout + Duration::from_secs_f64(4.0 * count as f64 / f64::from(storm.rate));
    let arrival = fleet.wait_until_connected(Instant::now(), limit, stop).await;
    ensure!(
        arrival.all.is_some() || stop.is_cancelled(),
        "{} of {count} tunnels came up: {}",
        arrival.up,
        fleet.last_failure().as_deref().unwrap_or("no failure was seen")
    );
    crate::print(&format!(
        "{} tunnels are up; one of {} replicas is killed now",
        arrival.up, storm.replicas
    ))?;
    stop.run_until_cancelled(sleep(CALM)).await;

    let before = redis.commands().await?;
    let stay: Vec<u32> = others.iter().map(KasProcess::pid).collect();
    let lost = first.agent_address()?;
    let killed = Instant::now();
    first.kill().await?;
    let watching = async {
        let notice = async {
            sleep(storm.notice).await;
            fleet.remove_replica(&lost);
        };
        let (samples, ()) = tokio::join!(samples(&fleet, killed, count, storm.timeout), notice);
        samples
    };
    let finished = CancellationToken::new();
    let peaks = peaks(&stay, &finished);
    let returning = async {
        let samples = tokio::select! {
            samples = watching => samples,
            () = stop.cancelled() => Vec::new(),
        };
        finished.cancel();
        samples
    };
    let (samples, peak) = tokio::join!(returning, peaks);
    let asked = redis.commands().await?.since(&before);
    let failure = fleet.last_failure();
    fleet.stop().await;
    let report =
        ReplicasReport::new(storm, Recovery::of(&samples, count), peak?, &asked, stop.is_cancelled());
    report.print()?;
    if let Some(file) = &storm.json {
        write_json(file, &report)?;
    }
    let Recovery { missing, all, .. } = report.back;
    let failure = failure.as_deref().unwrap_or("no failure was seen");
    ensure!(all.is_some() || report.interrupted, "{missing} of {count} tunnels are not back: {failure}");
    Ok(())
}

/// Returns the number of tunnels at each change, with the seconds since `since`, until all are up.
async fn samples(fleet: &AgentFleet, since: Instant, count: usize, within: Duration) -> Vec<(f64, usize)> {
    let mut changes = fleet.changes();
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
            looks.push((Instant::now(), usage::cpu(*pid).context("a remaining replica has exited")?));
            if let Some((from, before)) = looks.len().checked_sub(LOOKS + 1).map(|index| looks[index])
                && let Some((to, after)) = looks.last().copied()
            {
                let cores = (after - before).as_secs_f64() / (to - from).as_secs_f64();
                peak.cores = peak.cores.max(cores);
            }
            peak.kib = peak.kib.max(usage::resident(*pid)?);
        }
    }
    Ok(peak)
}

impl ReplicasReport {
    fn new(storm: &Storm, back: Recovery, peak: Peak, asked: &Commands, interrupted: bool) -> Self {
        let by_command = asked.by_count();
        Self {
            agents: storm.count,
            tunnels: storm.count as usize * usize::from(storm.tunnels()),
            replicas: storm.replicas,
            tls: storm.tls,
            per_second: storm.rate,
            interrupted,
            back,
            peak_cores: peak.cores,
            peak_mib: peak.kib as f64 / 1024.0,
            redis_commands: asked.total(),
            redis_by_command: by_command.into_iter().map(|(name, calls)| (name.to_owned(), calls)).collect(),
        }
    }

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
        crate::print(&table)?;
        let by_command = self.redis_by_command.iter().map(|(name, calls)| format!("{name} {calls}"));
        crate::print(&format!(
            "Redis commands, including those of scripts: {}",
            by_command.collect::<Vec<_>>().join(", ")
        ))?;
        if self.interrupted {
            crate::print(&"stopped early")?;
        }
        Ok(())
    }
}
