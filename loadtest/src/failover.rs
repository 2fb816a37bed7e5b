//! `loadtest failover`: a replica of several goes, in each of the ways in which one can, and callers ask on.

mod callers;
mod outcome;
mod replicas;

use std::{
    fmt,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use anyhow::ensure;
use clap::ValueEnum;
use serde::Serialize;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use self::{
    callers::{Pace, call},
    outcome::{Outcome, Sent},
    replicas::Replicas,
};
use crate::{
    load::{
        options::write_json,
        table::{Table, number},
    },
    simulator::Simulator,
};

/// How long requests are sent before the fault.
const BEFORE: Duration = Duration::from_secs(3);

/// Take a replica of kas away in several ways, and see which requests fail
///
/// Starts redis-server, replicas of kas, agentk processes and a simulated cluster on this machine, anew for each fault,
/// with their own defaults. A load balancer sends each tunnel to a replica at random. Requests are of an open loop, and go
/// to all agents by chance. A caller tries the next replica where a connection is refused, as load balancers do, and
/// another connection where one that it kept was closed, as HTTP clients do.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "Example:\n  loadtest failover --fault sigkill --fault black-hole --rate 200")]
pub struct Failover {
    /// What happens; may be repeated, and is everything by default
    #[arg(long, value_name = "FAULT")]
    fault: Vec<Fault>,
    /// How many replicas there are
    #[arg(long, value_name = "NUMBER", default_value_t = 3, value_parser = clap::value_parser!(u8).range(2..=10))]
    replicas: u8,
    /// How many agents there are
    #[arg(long, value_name = "NUMBER", default_value_t = 4, value_parser = clap::value_parser!(u8).range(1..=50))]
    agents: u8,
    /// Requests a second
    #[arg(long, short = 'r', value_name = "NUMBER", default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    rate: u32,
    /// How long an answer may take; later is a failure
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = proto::duration::parse)]
    timeout: Duration,
    /// How long a replica is dead, frozen or cut off; the others give it up within 12 s
    #[arg(long, value_name = "DURATION", default_value = "20s", value_parser = proto::duration::parse)]
    lasting: Duration,
    /// How long Redis is away
    #[arg(long, value_name = "DURATION", default_value = "60s", value_parser = proto::duration::parse)]
    redis_down: Duration,
    /// How long requests are sent once it is back
    #[arg(long, value_name = "DURATION", default_value = "8s", value_parser = proto::duration::parse)]
    after: Duration,
    /// Of the choice among agents and replicas, so that a run can be repeated
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    seed: u64,
    /// Keep the logs of all programs in this directory
    #[arg(long, value_name = "DIRECTORY")]
    logs: Option<PathBuf>,
    /// Write the report as JSON, too
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// What happens, to the first replica or to Redis.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Fault {
    /// A replica is asked to stop, and stops
    Sigterm,
    /// A replica is killed
    Sigkill,
    /// A replica is stopped where it stands, and goes on later
    Sigstop,
    /// Nothing reaches a replica or leaves it, and later everything does
    BlackHole,
    /// Redis is killed, and comes back empty later
    RedisKill,
}

/// What came of all of them.
#[derive(Debug, Serialize)]
struct Report {
    replicas: u8,
    agents: u8,
    requests_per_second: u32,
    seed: u64,
    /// Whether it was stopped before its end.
    interrupted: bool,
    faults: Vec<Result>,
}

/// What came of one.
#[derive(Debug, Serialize)]
struct Result {
    fault: Fault,
    /// How many tunnels ended at the replica that it happened to.
    tunnels_at_stake: usize,
    /// How many agents had no tunnel to another replica.
    agents_without_another: usize,
    /// `true` if requests were sent to that replica, too.
    through_all: bool,
    #[serde(flatten)]
    outcome: Outcome,
    within_target: bool,
}

impl Fault {
    /// Whether callers go on to use the replica that it happens to.
    fn is_through_all(self) -> bool {
        matches!(self, Self::Sigterm | Self::RedisKill)
    }

    /// The longest window in which requests may fail; none may where it is zero.
    fn target(self) -> Duration {
        match self {
            Self::Sigterm | Self::RedisKill => Duration::ZERO,
            Self::Sigkill => Duration::from_secs(1),
            Self::Sigstop | Self::BlackHole => Duration::from_secs(10),
        }
    }

    fn is_within_target(self, outcome: &Outcome) -> bool {
        let target = self.target().as_secs_f64();
        outcome.failed == 0 || outcome.window_seconds.max(outcome.last_failed_seconds.unwrap_or(0.0)) < target
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Sigterm => "SIGTERM",
            Self::Sigkill => "SIGKILL",
            Self::Sigstop => "SIGSTOP",
            Self::BlackHole => "black hole",
            Self::RedisKill => "Redis kill",
        })
    }
}

impl Failover {
    /// Runs to the end, or until `stop`.
    pub async fn run(self, stop: CancellationToken) -> anyhow::Result<()> {
        let all = if self.fault.is_empty() { Fault::value_variants() } else { &self.fault };
        let mut report = Report {
            replicas: self.replicas,
            agents: self.agents,
            requests_per_second: self.rate,
            seed: self.seed,
            interrupted: false,
            faults: Vec::new(),
        };
        for fault in all {
            match stop.run_until_cancelled(self.suffer(*fault)).await {
                Some(result) => report.faults.push(result?),
                None => report.interrupted = true,
            }
        }
        self.tell(&report)?;
        let missed: Vec<_> = report.faults.iter().filter(|result| !result.within_target).collect();
        let missed: Vec<_> = missed.iter().map(|result| result.fault.to_string()).collect();
        ensure!(missed.is_empty(), "requests failed for longer than they may: {}", missed.join(", "));
        Ok(())
    }

    async fn suffer(&self, fault: Fault) -> anyhow::Result<Result> {
        let temporary = tempfile::tempdir()?;
        let directory = match &self.logs {
            Some(logs) => logs.join(fault.to_string().replace(' ', "-").to_lowercase()),
            None => temporary.path().to_owned(),
        };
        let cluster = Simulator::start(([127, 0, 0, 1], 0).into())?;
        let (replicas, agents) = (self.replicas.into(), self.agents.into());
        let mut fleet = Replicas::start(&directory, replicas, agents, cluster.address(), self.seed).await?;
        let (at_stake, stranded) = fleet.at_stake().await?;
        crate::say(&format!(
            "{fault}: {} replicas; at the one in question {at_stake} tunnels, and {stranded} agents that have no other",
            self.replicas
        ))?;
        let (requests, at) = self.load(fault, &mut fleet, &directory).await?;
        drop(fleet);
        cluster.shutdown().await;

        let outcome = Outcome::of(&requests, at);
        let (through_all, within_target) = (fault.is_through_all(), fault.is_within_target(&outcome));
        Ok(Result {
            fault,
            tunnels_at_stake: at_stake,
            agents_without_another: stranded,
            through_all,
            outcome,
            within_target,
        })
    }

    /// Sends requests while the fault comes and goes. What was sent, and when the fault came.
    async fn load(
        &self,
        fault: Fault,
        fleet: &mut Replicas,
        directory: &Path,
    ) -> anyhow::Result<(Vec<Sent>, Instant)> {
        let pace = Pace { rate: self.rate.into(), timeout: self.timeout, seed: self.seed };
        let end = CancellationToken::new();
        let _end = end.clone().drop_guard();
        let calling = tokio::spawn(call(fleet.doors(directory, fault.is_through_all())?, pace, end.clone()));
        sleep(BEFORE).await;
        let at = Instant::now();
        self.strike(fault, fleet).await?;
        sleep(self.after).await;
        end.cancel();
        Ok((calling.await?, at))
    }

    /// From the beginning of a fault to its end.
    async fn strike(&self, fault: Fault, fleet: &mut Replicas) -> anyhow::Result<()> {
        match fault {
            Fault::Sigterm => return fleet.stop().await,
            Fault::Sigkill => fleet.signal("KILL").await?,
            Fault::Sigstop => fleet.signal("STOP").await?,
            Fault::BlackHole => fleet.network().cut(),
            Fault::RedisKill => fleet.kill_redis().await?,
        }
        sleep(if fault == Fault::RedisKill { self.redis_down } else { self.lasting }).await;
        match fault {
            Fault::Sigterm | Fault::Sigkill => {}
            Fault::Sigstop => fleet.signal("CONT").await?,
            Fault::BlackHole => fleet.network().mend(),
            Fault::RedisKill => fleet.start_redis().await?,
        }
        Ok(())
    }

    fn tell(&self, report: &Report) -> anyhow::Result<()> {
        let headings = [
            "fault",
            "sent to",
            "requests",
            "failed",
            "window s",
            "last after s",
            "over 1 s",
            "worst s",
            "target",
        ];
        let mut table = Table::new(headings);
        for Result { fault, through_all, outcome, within_target, .. } in &report.faults {
            let target = match (fault.target().as_secs(), within_target) {
                (0, true) => "none failed, met".to_owned(),
                (0, false) => "none failed, MISSED".to_owned(),
                (seconds, true) => format!("< {seconds} s, met"),
                (seconds, false) => format!("< {seconds} s, MISSED"),
            };
            table.row([
                fault.to_string(),
                if *through_all { "all replicas" } else { "the others" }.to_owned(),
                outcome.sent.to_string(),
                outcome.failed.to_string(),
                number(outcome.window_seconds),
                outcome.last_failed_seconds.map_or_else(|| "-".to_owned(), number),
                outcome.slow.to_string(),
                number(outcome.worst_seconds),
                target,
            ]);
        }
        if !table.is_empty() {
            crate::say(&format!("\n{table}\n{EXPLANATION}"))?;
        }
        for Result { fault, outcome, .. } in &report.faults {
            for (cause, count) in &outcome.causes {
                crate::say(&format!("{fault}: {count} × {cause}"))?;
            }
        }
        if report.interrupted {
            crate::say(&"stopped early")?;
        }
        if let Some(file) = &self.json {
            write_json(file, report)?;
        }
        Ok(())
    }
}

const EXPLANATION: &str = "\
failed: no whole answer in time, or a status of 400 and above. window: from when the first request that failed was sent
until the last one was; last after: when that was, counted from the fault. Over 1 s were answered, and late.
\"the others\": requests went to the replicas that nothing happened to, as a load balancer sends them once a replica is
gone; of the agents' tunnels, some ended at the one that was lost.";

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    #[derive(Debug, clap::Parser)]
    struct Line {
        #[command(flatten)]
        failover: Failover,
    }

    #[test]
    fn it_is_bounded_by_default() {
        let failover = Line::try_parse_from(["x"]).unwrap().failover;
        assert_eq!((failover.replicas, failover.agents, failover.rate), (3, 4, 200));
        assert_eq!((failover.lasting.as_secs(), failover.redis_down.as_secs()), (20, 60));
        for flags in
            ["--replicas=1", "--replicas=11", "--agents=0", "--rate=0", "--fault=x", "--redis-down=3"]
        {
            assert!(Line::try_parse_from(["x", flags]).is_err(), "{flags}");
        }
    }

    #[test]
    fn a_window_is_held_against_the_target_of_its_fault() {
        let failed = |window_seconds, last| Outcome {
            failed: 2,
            window_seconds,
            last_failed_seconds: Some(last),
            ..Outcome::default()
        };
        for fault in Fault::value_variants() {
            assert!(fault.is_within_target(&Outcome::default()));
            assert!(!fault.is_within_target(&failed(12.0, 1.0)));
            assert!(!fault.is_within_target(&failed(0.1, 15.0)), "long after");
        }
        assert!(Fault::Sigkill.is_within_target(&failed(0.9, 0.8)));
        assert!(Fault::BlackHole.is_within_target(&failed(9.0, 9.0)));
        assert!(!Fault::Sigterm.is_within_target(&failed(0.0, 0.0)));
    }
}
