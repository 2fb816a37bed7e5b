//! `loadtest directory`: the load of many idle agents on Redis.

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
    installation::{
        agent_fleet::AgentFleetConfig,
        stack::{
            StackConfig,
            redis::{RedisProcess, StoredBytes, list},
            start_replicas,
        },
    },
    load::{
        self,
        options::write_json,
        report::{Table, number},
    },
};

/// Measure the load of many idle agents on Redis
///
/// Starts redis-server and replicas of kas on this machine. The figures are those of Redis itself (INFO commandstats, MEMORY
/// USAGE, INFO clients): a script and each command in it count as commands, and the script alone as a request. The command fails
/// above the limits of docs/redis.md, which has others for 2 replicas with 10 agents and for 10 replicas with 100 agents.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "Example:\n  loadtest directory --count 10000 --replicas 3 --duration 1m")]
pub struct Directory {
    /// Number of agents
    #[arg(long, value_name = "NUMBER", default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..=20_000))]
    count: u32,
    /// Number of replicas of kas
    #[arg(long, value_name = "NUMBER", default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=10))]
    replicas: u16,
    /// Tunnels per agent; by default 2, or 1 if the limit of open files is too low for 2
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u16).range(1..=16))]
    tunnels: Option<u16>,
    /// Duration of the measurement
    #[arg(long, short = 'd', value_name = "DURATION", default_value = "1m", value_parser = settings::duration::parse)]
    duration: Duration,
    /// Time limit for the agents to connect
    #[arg(long, value_name = "DURATION", default_value = "2m", value_parser = settings::duration::parse)]
    timeout: Duration,
    /// Also write the report as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// The limit of commands per second from all replicas (docs/redis.md).
const MOST_COMMANDS: f64 = 5.0;
/// The limit of bytes per agent and replica (docs/redis.md).
const MOST_BYTES: f64 = 200.0;

/// The limits of one size of a fleet with two tunnels per agent (docs/redis.md).
struct SizeLimits {
    replicas: u16,
    agents: u32,
    requests_per_second: f64,
    bytes: u64,
    connections: u64,
}

const SIZES: [SizeLimits; 2] = [
    SizeLimits { replicas: 2, agents: 10, requests_per_second: 0.47, bytes: 4_700, connections: 4 },
    SizeLimits { replicas: 10, agents: 100, requests_per_second: 4.7, bytes: 44_000, connections: 20 },
];

/// The most agents that start per second. Fewer agents start within a second, so that each has tunnels to all replicas.
const PER_SECOND: f64 = 1000.0;
/// The number of open files of this program besides tunnels.
const OTHER_FILES: u64 = 200;
/// The time until the commands that arriving agents cause, such as rate limits, have ended.
const CALM: Duration = Duration::from_secs(15);

/// The result; its JSON is this struct.
#[derive(Clone, Debug, Serialize)]
pub struct DirectoryReport {
    pub agents: u32,
    pub replicas: u16,
    /// The number of pairs of an agent and a replica that holds tunnels of it.
    pub pairs: u64,
    pub seconds: f64,
    /// The requests per second from all replicas.
    pub requests_per_second: f64,
    /// The commands per second from all replicas.
    pub commands_per_second: f64,
    pub by_command: Vec<(String, u64)>,
    /// The memory of all keys without the log of events, including the overhead of Redis.
    pub bytes: u64,
    /// The memory of the log of events, which grows with the events of a week and not with the agents.
    pub event_log_bytes: u64,
    pub bytes_per_pair: f64,
    /// The connections of all replicas.
    pub connections: u64,
    /// The commands per arriving agent, for all of its tunnels.
    pub commands_per_arrival: f64,
}

impl Directory {
    /// Runs for `--duration`, or until `stop` is cancelled.
    pub async fn run(self, stop: CancellationToken) -> anyhow::Result<()> {
        let directory = tempfile::tempdir()?;
        let measuring = self.measure(directory.path(), &stop);
        let Some(cost) = stop.run_until_cancelled(measuring).await.transpose()? else { return Ok(()) };
        load::print(&cost)?;
        if let Some(file) = &self.json {
            write_json(file, &cost)?;
        }
        cost.check_limits()
    }

    /// Returns the default flags.
    pub fn with_defaults() -> Self {
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
        let files = process::descriptors::limit();
        let two = u64::from(self.count) * 2 + OTHER_FILES <= files;
        self.tunnels.unwrap_or(if two { 2 } else { 1 })
    }

    /// Starts Redis, replicas and agents with files in `directory`, measures, and stops them.
    pub async fn measure(
        &self,
        directory: &Path,
        stop: &CancellationToken,
    ) -> anyhow::Result<DirectoryReport> {
        let redis = RedisProcess::start(directory).await?;
        let setup =
            StackConfig { redis: Some(redis.address), extra_agents: self.count, ..StackConfig::default() };
        let replicas = start_replicas(directory, &setup, self.replicas).await?;
        let empty = redis.commands().await?;
        let per_second = f64::from(self.count).min(PER_SECOND);
        let fleet = AgentFleetConfig::new(&replicas, self.count, self.tunnels(), per_second)?.start()?;
        let arrival = fleet.wait_until_all_connected(self.timeout, stop).await?;
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
        let pairs = redis.fields("{kas}:routes:*").await?;
        let StoredBytes { events: event_log_bytes, other: bytes } = redis.stored().await?;
        let connections = redis.connections().await?;
        drop(fleet);
        for replica in replicas {
            replica.kill().await?;
        }
        Ok(DirectoryReport {
            agents: self.count,
            replicas: self.replicas,
            pairs,
            seconds,
            requests_per_second: asked.requests() as f64 / seconds,
            commands_per_second: asked.total() as f64 / seconds,
            by_command: asked.by_count(),
            bytes,
            event_log_bytes,
            bytes_per_pair: bytes as f64 / pairs.max(1) as f64,
            connections,
            commands_per_arrival: arrivals as f64 / f64::from(self.count),
        })
    }
}

impl DirectoryReport {
    /// Returns an error if a figure exceeds the limit that docs/redis.md promises.
    fn check_limits(&self) -> anyhow::Result<()> {
        let size = SIZES.iter().find(|size| (size.replicas, size.agents) == (self.replicas, self.agents));
        if let Some(limits) = size {
            return self.check_size(limits);
        }
        let Self { commands_per_second, bytes_per_pair, .. } = self;
        ensure!(
            *commands_per_second < MOST_COMMANDS,
            "{commands_per_second:.1} commands per second reach the limit of {MOST_COMMANDS}"
        );
        ensure!(
            *bytes_per_pair < MOST_BYTES,
            "{bytes_per_pair:.0} bytes per agent and replica reach the limit of {MOST_BYTES}"
        );
        Ok(())
    }

    /// Returns an error if a figure exceeds the limit of this size.
    fn check_size(&self, limits: &SizeLimits) -> anyhow::Result<()> {
        let SizeLimits { replicas, agents, requests_per_second, bytes, connections } = *limits;
        for (figure, value, most) in [
            ("requests per second", self.requests_per_second, requests_per_second),
            ("bytes", self.bytes as f64, bytes as f64),
            ("connections", self.connections as f64, connections as f64),
        ] {
            ensure!(
                value <= most,
                "{} {figure} of {replicas} replicas with {agents} agents exceed the limit of {most}",
                number(value)
            );
        }
        Ok(())
    }
}

impl fmt::Display for DirectoryReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut table = Table::new([
            "idle agents",
            "replicas",
            "agents at replicas",
            "requests /s",
            "commands /s",
            "bytes each",
            "kB in total",
            "kB of events",
            "connections",
            "commands per arrival",
        ]);
        table.row([
            self.agents.to_string(),
            self.replicas.to_string(),
            self.pairs.to_string(),
            format!("{:.2}", self.requests_per_second),
            format!("{:.2}", self.commands_per_second),
            number(self.bytes_per_pair),
            number(self.bytes as f64 / 1e3),
            number(self.event_log_bytes as f64 / 1e3),
            self.connections.to_string(),
            number(self.commands_per_arrival),
        ]);
        write!(f, "{table}")?;
        write!(f, "\nin {:.0} s: {}", self.seconds, list(&self.by_command))
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
    fn bench_configuration_equals_defaults() {
        let default = Line::try_parse_from(["x"]).unwrap().directory;
        assert_eq!(format!("{default:?}"), format!("{:?}", Directory::with_defaults()));
    }

    #[test]
    fn exceeded_limit_is_an_error() {
        let cost = |commands_per_second, bytes_per_pair| DirectoryReport {
            agents: 10,
            replicas: 3,
            pairs: 20,
            seconds: 60.0,
            requests_per_second: 1.0,
            commands_per_second,
            by_command: vec![("evalsha".to_owned(), 60)],
            bytes: 1000,
            event_log_bytes: 1000,
            bytes_per_pair,
            connections: 6,
            commands_per_arrival: 4.0,
        };
        assert!(cost(4.9, 199.0).check_limits().is_ok());
        assert!(cost(5.0, 199.0).check_limits().unwrap_err().to_string().contains("5.0 commands per second"));
        assert!(cost(4.9, 200.0).check_limits().unwrap_err().to_string().contains("200 bytes"));
        assert!(cost(4.9, 199.0).to_string().ends_with("in 60 s: evalsha 60"));
    }

    #[test]
    fn sizes_have_limits_of_their_own() {
        let within = DirectoryReport {
            agents: 10,
            replicas: 2,
            pairs: 20,
            seconds: 30.0,
            requests_per_second: 0.467,
            commands_per_second: 99.0,
            by_command: Vec::new(),
            bytes: 4_700,
            event_log_bytes: 50_000,
            bytes_per_pair: 220.0,
            connections: 4,
            commands_per_arrival: 4.0,
        };
        assert!(within.check_limits().is_ok());
        let error = |report: DirectoryReport| report.check_limits().unwrap_err().to_string();
        let requests = error(DirectoryReport { requests_per_second: 0.48, ..within.clone() });
        assert!(
            requests.contains("requests per second of 2 replicas with 10 agents exceed the limit of 0.47"),
            "{requests}"
        );
        assert!(error(DirectoryReport { bytes: 4_701, ..within.clone() }).contains("bytes of 2"));
        assert!(error(DirectoryReport { connections: 5, ..within.clone() }).contains("connections of 2"));
        let large = DirectoryReport { agents: 100, replicas: 10, connections: 20, ..within };
        assert!(large.check_limits().is_ok());
        assert!(error(DirectoryReport { bytes: 44_001, ..large }).contains("44000"));
    }
}
