//! `loadtest failover`: the requests that fail when one of several replicas fails or Redis does.

mod outcome;
mod replicas;

use std::{
    fmt,
    path::PathBuf,
    time::{Duration, Instant},
};

use anyhow::ensure;
use clap::ValueEnum;
use serde::Serialize;
use testing::simulator::Simulator;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use self::{outcome::FaultOutcome, replicas::Replicas};
use crate::{
    installation::{
        callers::{CallerConfig, SentRequest, send_requests},
        stack::process::Signal,
    },
    load::{
        self,
        options::write_json,
        report::{Table, number},
    },
};

/// The time of load before the fault.
const BEFORE: Duration = Duration::from_secs(3);

/// Stop, kill, freeze or cut off a replica of kas or kill Redis, and count the requests that fail
///
/// For each fault, starts redis-server, replicas of kas, agentk processes and a simulated cluster on this machine, with
/// default settings. A load balancer sends each tunnel to a random replica. Requests are an open loop to random agents.
/// A caller tries the next replica if a connection is refused, as load balancers do, and a new connection if a kept one was
/// closed, as HTTP clients do.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "Example:\n  loadtest failover --fault sigkill --fault black-hole --rate 200")]
pub struct Failover {
    /// Fault to inject; may be repeated; all by default
    #[arg(long, value_name = "FAULT")]
    fault: Vec<Fault>,
    /// Number of replicas of kas
    #[arg(long, value_name = "NUMBER", default_value_t = 3, value_parser = clap::value_parser!(u8).range(2..=10))]
    replicas: u8,
    /// Number of agents
    #[arg(long, value_name = "NUMBER", default_value_t = 4, value_parser = clap::value_parser!(u8).range(1..=50))]
    agents: u8,
    /// Requests per second
    #[arg(long, short = 'r', value_name = "NUMBER", default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    rate: u32,
    /// Time limit for a response; a later one is a failure
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = settings::duration::parse)]
    timeout: Duration,
    /// Time for which a replica is dead, frozen or cut off; the others consider it dead within 20 s
    #[arg(long, value_name = "DURATION", default_value = "25s", value_parser = settings::duration::parse)]
    lasting: Duration,
    /// Time for which Redis is stopped
    #[arg(long, value_name = "DURATION", default_value = "60s", value_parser = settings::duration::parse)]
    redis_down: Duration,
    /// Time for which requests are sent after the end of the fault
    #[arg(long, value_name = "DURATION", default_value = "8s", value_parser = settings::duration::parse)]
    after: Duration,
    /// Seed of the choice among agents and replicas, so that a run can be repeated
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    seed: u64,
    /// Keep the logs of all programs in this directory
    #[arg(long, value_name = "DIRECTORY")]
    logs: Option<PathBuf>,
    /// Also write the report as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// A fault of the first replica or of Redis.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Fault {
    /// A replica receives SIGTERM and stops
    Sigterm,
    /// A replica is killed
    Sigkill,
    /// A replica is frozen, and continues later
    Sigstop,
    /// All packets from and to a replica are dropped, and later pass again
    BlackHole,
    /// Redis is killed, and starts empty later
    RedisKill,
}

/// The requests that may fail.
#[derive(Clone, Copy, Debug)]
enum FailureTarget {
    None,
    /// Requests in flight at the replica when the fault began.
    InFlight,
    /// Requests in a window that is shorter than this.
    Within(Duration),
}

/// The result of all faults; its JSON is this struct.
#[derive(Debug, Serialize)]
struct FailoverReport {
    replicas: u8,
    agents: u8,
    requests_per_second: u32,
    seed: u64,
    /// True if the run was stopped early.
    interrupted: bool,
    faults: Vec<FaultReport>,
}

/// The result of one fault.
#[derive(Debug, Serialize)]
struct FaultReport {
    fault: Fault,
    /// The number of tunnels at the affected replica.
    tunnels_at_stake: usize,
    /// The number of agents without a tunnel to another replica.
    agents_without_another: usize,
    /// True if requests were sent to the affected replica, too.
    through_all: bool,
    #[serde(flatten)]
    outcome: FaultOutcome,
    within_target: bool,
}

impl Fault {
    /// Returns whether callers also use the affected replica.
    fn is_through_all(self) -> bool {
        matches!(self, Self::Sigterm | Self::Sigkill | Self::RedisKill)
    }

    fn target(self) -> FailureTarget {
        match self {
            Self::Sigterm | Self::RedisKill => FailureTarget::None,
            Self::Sigkill => FailureTarget::InFlight,
            Self::Sigstop | Self::BlackHole => FailureTarget::Within(Duration::from_secs(10)),
        }
    }
}

impl FailureTarget {
    fn is_met_by(self, outcome: &FaultOutcome) -> bool {
        match self {
            Self::None => outcome.failed == 0,
            Self::InFlight => outcome.failed == outcome.failed_in_flight,
            Self::Within(window) => {
                let last = outcome.last_failed_seconds.unwrap_or(0.0);
                outcome.failed == 0 || outcome.window_seconds.max(last) < window.as_secs_f64()
            }
        }
    }
}

impl fmt::Display for FailureTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("none failed"),
            Self::InFlight => f.write_str("only in flight there"),
            Self::Within(window) => write!(f, "< {} s", window.as_secs()),
        }
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
    /// Runs all faults, or until `stop` is cancelled.
    pub async fn run(self, stop: CancellationToken) -> anyhow::Result<()> {
        let all = if self.fault.is_empty() { Fault::value_variants() } else { &self.fault };
        let mut report = FailoverReport {
            replicas: self.replicas,
            agents: self.agents,
            requests_per_second: self.rate,
            seed: self.seed,
            interrupted: false,
            faults: Vec::new(),
        };
        for fault in all {
            match stop.run_until_cancelled(self.run_fault(*fault)).await {
                Some(result) => report.faults.push(result?),
                None => report.interrupted = true,
            }
        }
        self.print(&report)?;
        let missed: Vec<_> = report.faults.iter().filter(|result| !result.within_target).collect();
        let missed: Vec<_> = missed.iter().map(|result| result.fault.to_string()).collect();
        ensure!(missed.is_empty(), "more requests failed than the target allows: {}", missed.join(", "));
        Ok(())
    }

    async fn run_fault(&self, fault: Fault) -> anyhow::Result<FaultReport> {
        let temporary = tempfile::tempdir()?;
        let directory = match &self.logs {
            Some(logs) => logs.join(fault.to_string().replace(' ', "-").to_lowercase()),
            None => temporary.path().to_owned(),
        };
        let cluster = Simulator::start(([127, 0, 0, 1], 0).into())?;
        let (replicas, agents) = (self.replicas.into(), self.agents.into());
        let mut fleet = Replicas::start(&directory, replicas, agents, cluster.address(), self.seed).await?;
        let (tunnels_at_stake, without_another) = fleet.tunnels_at_stake().await?;
        load::print(&format!(
            "{fault}: {} replicas; the affected one has {tunnels_at_stake} tunnels, and {without_another} agents have no other",
            self.replicas
        ))?;
        let (requests, at, fault_end) = self.load(fault, &mut fleet).await?;
        drop(fleet);
        cluster.shutdown().await;

        let outcome = FaultOutcome::of(&requests, at, fault_end);
        let (through_all, within_target) = (fault.is_through_all(), fault.target().is_met_by(&outcome));
        Ok(FaultReport {
            fault,
            tunnels_at_stake,
            agents_without_another: without_another,
            through_all,
            outcome,
            within_target,
        })
    }

    /// Sends requests before, during and after the fault.
    ///
    /// Returns the requests, and the moments before and after the fault was injected.
    async fn load(
        &self,
        fault: Fault,
        fleet: &mut Replicas,
    ) -> anyhow::Result<(Vec<SentRequest>, Instant, Instant)> {
        let config = CallerConfig { rate: self.rate.into(), timeout: self.timeout, seed: self.seed };
        let end = CancellationToken::new();
        let _end = end.clone().drop_guard();
        let calling =
            tokio::spawn(send_requests(fleet.endpoints(fault.is_through_all())?, config, end.clone()));
        sleep(BEFORE).await;
        let at = Instant::now();
        self.begin_fault(fault, fleet).await?;
        let fault_end = Instant::now();
        self.end_fault(fault, fleet).await?;
        sleep(self.after).await;
        end.cancel();
        Ok((calling.await?, at, fault_end))
    }

    /// Injects the fault.
    async fn begin_fault(&self, fault: Fault, fleet: &mut Replicas) -> anyhow::Result<()> {
        match fault {
            Fault::Sigterm => fleet.stop().await,
            Fault::Sigkill => fleet.signal(Signal::KILL),
            Fault::Sigstop => fleet.signal(Signal::STOP),
            Fault::BlackHole => {
                fleet.network().cut();
                Ok(())
            }
            Fault::RedisKill => fleet.kill_redis().await,
        }
    }

    /// Waits for the duration of the fault and ends it.
    async fn end_fault(&self, fault: Fault, fleet: &mut Replicas) -> anyhow::Result<()> {
        if fault == Fault::Sigterm {
            return Ok(());
        }
        sleep(if fault == Fault::RedisKill { self.redis_down } else { self.lasting }).await;
        match fault {
            Fault::Sigterm | Fault::Sigkill => {}
            Fault::Sigstop => fleet.signal(Signal::CONT)?,
            Fault::BlackHole => fleet.network().mend(),
            Fault::RedisKill => fleet.start_redis().await?,
        }
        Ok(())
    }

    fn print(&self, report: &FailoverReport) -> anyhow::Result<()> {
        let headings = [
            "fault",
            "sent to",
            "requests",
            "failed",
            "in flight",
            "window s",
            "last after s",
            "over 1 s",
            "worst s",
            "target",
        ];
        let mut table = Table::new(headings);
        for FaultReport { fault, through_all, outcome, within_target, .. } in &report.faults {
            let met = if *within_target { "met" } else { "MISSED" };
            let target = format!("{}, {met}", fault.target());
            table.row([
                fault.to_string(),
                if *through_all { "all replicas" } else { "the others" }.to_owned(),
                outcome.sent.to_string(),
                outcome.failed.to_string(),
                outcome.failed_in_flight.to_string(),
                number(outcome.window_seconds),
                outcome.last_failed_seconds.map_or_else(|| "-".to_owned(), number),
                outcome.slow.to_string(),
                number(outcome.worst_seconds),
                target,
            ]);
        }
        if !table.is_empty() {
            load::print(&format!("\n{table}\n{EXPLANATION}"))?;
        }
        for FaultReport { fault, outcome, .. } in &report.faults {
            for (cause, count) in &outcome.causes {
                load::print(&format!("{fault}: {count} × {cause}"))?;
            }
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
failed: no complete response in time, or a status of 400 and above. in flight: failed requests that the affected replica
had when the fault began. window s: time between the first and the last failed request. last after s: time from the fault
to the last failed request. over 1 s: successful requests that took longer.
\"the others\": requests went to the unaffected replicas, as from a load balancer that has removed the affected one, which
still had some of the agents' tunnels.";

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
    fn defaults_are_bounded() {
        let failover = Line::try_parse_from(["x"]).unwrap().failover;
        assert_eq!((failover.replicas, failover.agents, failover.rate), (3, 4, 200));
        assert_eq!((failover.lasting.as_secs(), failover.redis_down.as_secs()), (25, 60));
        for flags in
            ["--replicas=1", "--replicas=11", "--agents=0", "--rate=0", "--fault=x", "--redis-down=3"]
        {
            assert!(Line::try_parse_from(["x", flags]).is_err(), "{flags}");
        }
    }

    #[test]
    fn failure_target_depends_on_the_fault() {
        let met = |fault: Fault, outcome| fault.target().is_met_by(&outcome);
        let failed = |window_seconds, last| FaultOutcome {
            failed: 2,
            window_seconds,
            last_failed_seconds: Some(last),
            ..FaultOutcome::default()
        };
        for fault in Fault::value_variants() {
            assert!(met(*fault, FaultOutcome::default()));
            assert!(!met(*fault, failed(12.0, 1.0)));
            assert!(!met(*fault, failed(0.1, 15.0)), "long after");
        }
        assert!(met(Fault::BlackHole, failed(9.0, 9.0)));
        assert!(!met(Fault::Sigterm, failed(0.0, 0.0)));
        assert!(!met(Fault::Sigkill, failed(0.0, 0.0)));
        assert!(met(Fault::Sigkill, FaultOutcome { failed_in_flight: 2, ..failed(0.0, 0.0) }));
    }
}
