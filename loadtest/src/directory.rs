//! `loadtest directory`: what many idle agents cost Redis.

use std::{
    fmt,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use anyhow::ensure;
use serde::Serialize;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use crate::{
    fleet::Crowd,
    load::{
        options::write_json,
        table::{Table, number},
    },
    stack::{Kas, Setup, redis::Redis},
};

/// Measure what many idle agents on several replicas cost Redis
///
/// redis-server and the replicas are started by this program on this machine. What Redis counts for itself is what is told (INFO commandstats, MEMORY USAGE): a script counts, and each command in it.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "Example:\n  loadtest directory --count 10000 --replicas 3 --duration 1m")]
pub struct Directory {
    /// How many agents
    #[arg(long, value_name = "NUMBER", default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..=20_000))]
    count: u32,
    /// How many replicas of kas
    #[arg(long, value_name = "NUMBER", default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=10))]
    replicas: u16,
    /// How many tunnels each agent has; 2, or 1 if this process may not open as many files
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u16).range(1..=16))]
    tunnels: Option<u16>,
    /// How long Redis is watched
    #[arg(long, short = 'd', value_name = "DURATION", default_value = "1m", value_parser = proto::duration::parse)]
    duration: Duration,
    /// How long the agents may take to be there
    #[arg(long, value_name = "DURATION", default_value = "2m", value_parser = proto::duration::parse)]
    timeout: Duration,
    /// Write the report as JSON, too
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// Most commands in a second, of the whole fleet.
const MOST_COMMANDS: f64 = 5.0;
/// Most bytes for an agent at a replica.
const MOST_BYTES: f64 = 200.0;

/// How many agents begin in a second.
const PER_SECOND: f64 = 1000.0;
/// Open files of this program besides tunnels.
const OTHER_FILES: u64 = 200;
/// Until limits of tokens, and what came with the agents, are over.
const CALM: Duration = Duration::from_secs(15);

/// What it came to.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Cost {
    pub(crate) agents: u32,
    pub(crate) replicas: u16,
    /// Agents at a replica, over all replicas.
    pub(crate) pairs: u64,
    pub(crate) seconds: f64,
    /// By all replicas together.
    pub(crate) commands_per_second: f64,
    pub(crate) by_command: Vec<(String, u64)>,
    /// Of all keys, with what Redis needs to keep them.
    pub(crate) bytes: u64,
    pub(crate) bytes_per_pair: f64,
    /// Commands for each agent that came, all of its tunnels together.
    pub(crate) commands_per_arrival: f64,
}

impl Directory {
    /// Runs for its time, or until `stop`.
    pub async fn run(self, stop: CancellationToken) -> anyhow::Result<()> {
        let directory = tempfile::tempdir()?;
        let measuring = self.measure(directory.path(), &stop);
        let Some(cost) = stop.run_until_cancelled(measuring).await.transpose()? else { return Ok(()) };
        crate::say(&cost)?;
        if let Some(file) = &self.json {
            write_json(file, &cost)?;
        }
        cost.promised()
    }

    /// As it is by default.
    pub(crate) fn usual() -> Self {
        Self {
            count: 10_000,
            replicas: 3,
            tunnels: None,
            duration: Duration::from_secs(60),
            timeout: Duration::from_secs(120),
            json: None,
        }
    }

    fn tunnels(&self) -> u16 {
        let files = rlimit::Resource::NOFILE.get_soft().unwrap_or_default();
        let two = u64::from(self.count) * 2 + OTHER_FILES <= files;
        self.tunnels.unwrap_or(if two { 2 } else { 1 })
    }

    /// Starts everything in `directory`, and ends it.
    pub(crate) async fn measure(&self, directory: &Path, stop: &CancellationToken) -> anyhow::Result<Cost> {
        let redis = Redis::start(&directory.join("redis")).await?;
        let setup = Setup { redis: Some(redis.address), crowd: self.count, ..Setup::default() };
        let mut replicas = vec![Kas::start(directory, &setup).await?];
        for number in 2..=self.replicas {
            let another = replicas[0].another(&format!("kas-{number}"), &setup).await?;
            replicas.push(another);
        }
        let crowd = Crowd {
            kas: replicas.iter().map(Kas::agent_address).collect::<Result<_, _>>()?,
            cacert: None,
            tokens: replicas[0].crowd_tokens()?,
            count: self.count as usize,
            tunnels: self.tunnels(),
            per_second: PER_SECOND,
            answer: 200,
        };
        let empty = redis.commands().await?;
        let fleet = crowd.start()?;
        let arrival = fleet.arrive(Instant::now(), self.timeout, stop).await;
        ensure!(
            arrival.all.is_some(),
            "{} tunnels came up: {}",
            arrival.up,
            fleet.last_failure().as_deref().unwrap_or("no failure was seen")
        );
        let arrivals = redis.commands().await?.since(&empty).total();
        sleep(CALM).await;

        let (before, begin) = (redis.commands().await?, Instant::now());
        sleep(self.duration).await;
        let (asked, seconds) = (redis.commands().await?.since(&before), begin.elapsed().as_secs_f64());
        ensure!(
            fleet.up() == arrival.up,
            "{} of {} tunnels were lost meanwhile",
            arrival.up - fleet.up(),
            arrival.up
        );
        let (pairs, bytes) = (redis.fields("{kas}:routes:*").await?, redis.stored().await?);
        drop(fleet);
        for replica in replicas {
            replica.kill().await?;
        }
        Ok(Cost {
            agents: self.count,
            replicas: self.replicas,
            pairs,
            seconds,
            commands_per_second: asked.total() as f64 / seconds,
            by_command: asked.by_count().into_iter().map(|(name, calls)| (name.to_owned(), calls)).collect(),
            bytes,
            bytes_per_pair: bytes as f64 / pairs.max(1) as f64,
            commands_per_arrival: arrivals as f64 / f64::from(self.count),
        })
    }
}

impl Cost {
    /// What docs/redis.md says.
    fn promised(&self) -> anyhow::Result<()> {
        let Self { commands_per_second, bytes_per_pair, .. } = self;
        ensure!(
            *commands_per_second < MOST_COMMANDS,
            "{commands_per_second:.1} commands a second, of {MOST_COMMANDS}"
        );
        ensure!(
            *bytes_per_pair < MOST_BYTES,
            "{bytes_per_pair:.0} bytes for an agent at a replica, of {MOST_BYTES}"
        );
        Ok(())
    }
}

impl fmt::Display for Cost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut table = Table::new([
            "idle agents",
            "replicas",
            "agents at replicas",
            "commands /s",
            "bytes each",
            "MB in all",
            "commands an arrival",
        ]);
        table.row([
            self.agents.to_string(),
            self.replicas.to_string(),
            self.pairs.to_string(),
            format!("{:.2}", self.commands_per_second),
            number(self.bytes_per_pair),
            number(self.bytes as f64 / 1e6),
            number(self.commands_per_arrival),
        ]);
        write!(f, "{table}")?;
        let by_command = self.by_command.iter().map(|(name, calls)| format!("{name} {calls}"));
        write!(f, "\nin {:.0} s: {}", self.seconds, by_command.collect::<Vec<_>>().join(", "))
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    #[derive(Debug, clap::Parser)]
    struct Line {
        #[command(flatten)]
        directory: Directory,
    }

    #[test]
    fn what_the_bench_measures_is_what_it_does_by_default() {
        let default = Line::try_parse_from(["x"]).unwrap().directory;
        assert_eq!(format!("{default:?}"), format!("{:?}", Directory::usual()));
    }

    #[test]
    fn more_than_was_promised_is_a_failure() {
        let cost = |commands_per_second, bytes_per_pair| Cost {
            agents: 10,
            replicas: 3,
            pairs: 20,
            seconds: 60.0,
            commands_per_second,
            by_command: vec![("evalsha".to_owned(), 60)],
            bytes: 1000,
            bytes_per_pair,
            commands_per_arrival: 4.0,
        };
        assert!(cost(4.9, 199.0).promised().is_ok());
        assert!(cost(5.0, 199.0).promised().unwrap_err().to_string().contains("5.0 commands a second"));
        assert!(cost(4.9, 200.0).promised().unwrap_err().to_string().contains("200 bytes"));
        assert!(cost(4.9, 199.0).to_string().ends_with("in 60 s: evalsha 60"));
    }
}
