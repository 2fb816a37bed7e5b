//! `loadtest agents`: the memory that many agents cost kas.
#![allow(
    rustdoc::broken_intra_doc_links,
    reason = "these comments are help texts, where brackets mean optional"
)]

use std::{
    fmt,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use agentk_core::{EventLog, KasAddress, ProtocolChoice, Services};
use anyhow::{Context as _, ensure};
use http::{Request, Response, StatusCode};
use proto::{InstanceId, ServiceName};
use serde::Serialize;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tunnel::Body;

use crate::{
    installation::{
        agent_fleet::{AgentFleetConfig, ConnectTimes},
        stack::{new_agents, process, write_file},
    },
    load::{self, options::write_json, target::read_token},
};

/// Connect many simulated agents to kas, and measure the memory of their tunnels
///
/// Each agent responds to every request itself, without a cluster. By default kas accepts 100 tunnels per agent
/// (`agent.listen.max_tunnels_per_agent`): define more agents with --write-identity, or raise that limit.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Agents {
    /// Address of kas's agent listener: ws(s)://host[:port][/prefix]
    #[arg(long, value_name = "URL", required_unless_present = "write_identity")]
    kas: Option<KasAddress>,
    /// File with the agents' tokens, one per line; --write-identity writes it
    #[arg(long, value_name = "FILE")]
    token_file: PathBuf,
    /// Number of agents
    #[arg(long, value_name = "NUMBER", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=50_000))]
    count: u32,
    /// Tunnels of each agent; agentk has two
    #[arg(long, value_name = "NUMBER", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=100))]
    tunnels: u16,
    /// Services of each agent
    #[arg(long, value_enum, value_name = "SERVICES", default_value_t)]
    services: ServiceSet,
    /// Agents that start per second
    #[arg(long, value_name = "NUMBER", default_value_t = 2000, value_parser = clap::value_parser!(u32).range(1..))]
    per_second: u32,
    /// Time for which the agents stay connected after the last has connected
    #[arg(long, short = 'd', value_name = "DURATION", default_value = "30s", value_parser = settings::duration::parse)]
    duration: Duration,
    /// Also measure the memory of --process this long after the agents have left
    #[arg(long, value_name = "DURATION", value_parser = settings::duration::parse, requires = "process")]
    after: Option<Duration>,
    /// Time limit for the agents to connect
    #[arg(long, value_name = "DURATION", default_value = "1m", value_parser = settings::duration::parse)]
    timeout: Duration,
    /// Length of the agents' responses
    #[arg(long, value_name = "BYTES", default_value_t = 200, value_parser = clap::value_parser!(u32).range(..=16_777_216))]
    answer: u32,
    /// Protocol with kas: auto, kas-tunnel, or gitlab
    #[arg(long, value_enum, value_name = "PROTOCOL", default_value_t)]
    protocol: ProtocolChoice,
    /// Certificates (PEM) to trust for kas instead of the system's
    #[arg(long, value_name = "FILE")]
    cacert: Option<PathBuf>,
    /// Process id of a kas on this machine whose memory is measured
    #[arg(long, value_name = "PID")]
    process: Option<u32>,
    /// Also write the report as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Only write an identity file for kas with --count agents (load-1, load-2, …), and their tokens
    #[arg(long, value_name = "FILE", conflicts_with = "kas")]
    write_identity: Option<PathBuf>,
}

const EXAMPLES: &str = "\
Examples:
  loadtest agents --write-identity identity.yaml --token-file tokens --count 5000
  loadtest agents --kas wss://kas.example.com:8150 --token-file tokens --count 5000 --process $(pidof kas)
  loadtest agents --kas ws://127.0.0.1:8150 --token-file tokens --count 1000 --tunnels 2 --services all \\
    --process $(pidof kas) --after 10s";

/// The services that a simulated agent lists in its hello. kas sends requests of its own to those that it knows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
enum ServiceSet {
    /// Only kubernetes
    #[default]
    Kubernetes,
    /// The services of an agentk with all features and without a configuration
    All,
}

/// The result; its JSON is this struct.
#[derive(Clone, Debug, Serialize, serde::Deserialize)]
pub struct AgentsReport {
    /// The number of agents.
    pub count: u32,
    /// The number of tunnels of each agent.
    pub tunnels: u16,
    /// The number of tunnels that came up.
    pub up: usize,
    pub up_at_the_end: usize,
    pub seconds_to_half: Option<f64>,
    pub seconds_to_95_percent: Option<f64>,
    pub seconds_to_all: Option<f64>,
    /// The growth of the resident memory of kas per tunnel.
    pub kas_kib_per_tunnel: Option<f64>,
    /// The growth that was left after the agents had left, in KiB.
    pub kas_kib_kept: Option<f64>,
    pub own_kib_per_tunnel: f64,
    pub last_failure: Option<String>,
}

impl Agents {
    /// Runs for `--duration` after the last agent has connected, or until `stop` is cancelled.
    pub async fn run(self, stop: CancellationToken) -> anyhow::Result<()> {
        if let Some(identity) = &self.write_identity {
            return write_identity(identity, &self.token_file, self.count);
        }
        let memory = || {
            let kas = self.process.map(process::resident).transpose()?;
            anyhow::Ok((kas, process::resident(std::process::id())?))
        };
        let config = AgentFleetConfig {
            kas: vec![self.kas.clone().context("--kas is missing")?],
            cacert: self.cacert.clone(),
            tokens: read_token(&self.token_file)?.lines().map(|line| line.trim().to_owned()).collect(),
            count: self.count as usize,
            tunnels: self.tunnels,
            protocol: self.protocol,
            per_second: f64::from(self.per_second),
            answer: self.answer as usize,
            services: Arc::new(self.services.function()),
        };
        let before = memory()?;
        let begin = Instant::now();
        let fleet = config.start()?;
        let arrival = fleet.wait_until_connected(begin, self.timeout, &stop).await;
        stop.run_until_cancelled(sleep(self.duration)).await;
        let after = memory()?;
        let each = |before: u64, after: u64| (after as f64 - before as f64) / arrival.up.max(1) as f64;
        let ConnectTimes { up, half, most, all } = arrival;
        let mut report = AgentsReport {
            count: self.count,
            tunnels: self.tunnels,
            up,
            up_at_the_end: fleet.up(),
            seconds_to_half: half,
            seconds_to_95_percent: most,
            seconds_to_all: all,
            kas_kib_per_tunnel: before.0.zip(after.0).map(|(before, after)| each(before, after)),
            kas_kib_kept: None,
            own_kib_per_tunnel: each(before.1, after.1),
            last_failure: fleet.last_failure(),
        };
        fleet.stop().await;
        if let Some((process, wait)) = self.process.zip(self.after) {
            sleep(wait).await;
            let grown = process::resident(process)? as f64 - before.0.unwrap_or_default() as f64;
            report.kas_kib_kept = Some(grown);
        }
        load::print(&report)?;
        if let Some(file) = &self.json {
            write_json(file, &report)?;
        }
        let failure = report.last_failure.as_deref().unwrap_or("no failure was seen");
        let (up, expected) = (report.up_at_the_end, report.expected());
        ensure!(up == expected, "{up} of {expected} tunnels were up at the end: {failure}");
        Ok(())
    }
}

impl ServiceSet {
    /// Returns the function that adds the services to that of each agent.
    fn function(self) -> fn(Services) -> Services {
        match self {
            Self::Kubernetes => |services| services,
            Self::All => with_all,
        }
    }
}

/// Adds the services of an agentk with all features. Those that kas asks by itself answer as agentk does without a configuration: events
/// are followed, and nothing else is.
fn with_all(services: Services) -> Services {
    let names = [
        ServiceName::ALERTS,
        ServiceName::AUDIT,
        ServiceName::CONFIGURATION,
        ServiceName::ENVIRONMENTS,
        ServiceName::GITOPS,
        ServiceName::GRAPH,
        ServiceName::MANIFESTS,
        ServiceName::NOTIFY,
        ServiceName::PROMETHEUS,
        ServiceName::PROVISION,
    ];
    let services = names.iter().fold(services, |services, name| services.with_fn(name, no_content));
    services.with_events(&EventLog::new(InstanceId::random()))
}

async fn no_content(_: Request<Body>) -> Response<Body> {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::NO_CONTENT;
    response
}

impl AgentsReport {
    /// Returns the number of tunnels that should be up.
    fn expected(&self) -> usize {
        self.count as usize * usize::from(self.tunnels)
    }
}

impl fmt::Display for AgentsReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let time =
            |seconds: Option<f64>| seconds.map_or_else(|| "never".to_owned(), |s| format!("after {s:.2} s"));
        writeln!(
            f,
            "{} of {} tunnels up: half {}, 95 % {}, all {}; {} at the end",
            self.up,
            self.expected(),
            time(self.seconds_to_half),
            time(self.seconds_to_95_percent),
            time(self.seconds_to_all),
            self.up_at_the_end
        )?;
        write!(f, "memory for each tunnel: ")?;
        if let Some(kas) = self.kas_kib_per_tunnel {
            write!(f, "kas {kas:.1} KiB, ")?;
        }
        write!(f, "this program {:.1} KiB", self.own_kib_per_tunnel)?;
        match self.kas_kib_kept {
            Some(kept) => write!(f, "\nkas kept {:.1} MiB after the agents had left", kept / 1024.0),
            None => Ok(()),
        }
    }
}

fn write_identity(identity: &Path, tokens: &Path, count: u32) -> anyhow::Result<()> {
    for path in [identity, tokens] {
        ensure!(!path.exists(), "{} exists already, and is not overwritten", path.display());
    }
    let (agents, all) = new_agents(1..=count);
    write_file(Path::new(""), identity, &format!("agents:\n{agents}"))?;
    write_file(Path::new(""), tokens, &all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::installation::stack::hash;

    #[test]
    fn identity_file_matches_tokens_and_is_not_overwritten() {
        let directory = tempfile::tempdir().unwrap();
        let (identity, tokens) = (directory.path().join("identity.yaml"), directory.path().join("tokens"));
        write_identity(&identity, &tokens, 3).unwrap();
        let text = std::fs::read_to_string(&identity).unwrap();
        let file = std::fs::read_to_string(&tokens).unwrap();
        assert_eq!(file.lines().count(), 3);
        for token in file.lines() {
            assert!(text.contains(&hash(token)) && !text.contains(token));
        }
        let error = write_identity(&identity, &tokens, 3).unwrap_err().to_string();
        assert!(error.ends_with("is not overwritten"), "{error}");
    }
}
