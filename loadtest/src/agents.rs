//! `loadtest agents`: many agents, and what they cost.
#![allow(
    rustdoc::broken_intra_doc_links,
    reason = "these comments are help texts, where brackets mean optional"
)]

use std::{
    fmt,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use agent::Address;
use anyhow::{Context as _, ensure};
use serde::Serialize;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use crate::{
    fleet::{Arrival, Crowd},
    load::{options::write_json, target::read_token},
    stack::{many_agents, put, usage},
};

/// Open tunnels of fake agents to a kas, and keep them
///
/// Each has one tunnel, and answers every request for its cluster by itself. A kas takes 100 tunnels of one agent
/// (`agent.listen.max_tunnels_per_agent`): give it more agents with --write-identity, or raise that limit.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Agents {
    /// Address of kas's agent listener: ws(s)://host[:port][/prefix]
    #[arg(long, value_name = "URL", required_unless_present = "write_identity")]
    kas: Option<Address>,
    /// File with the agents' tokens, one a line; with --write-identity it is written
    #[arg(long, value_name = "FILE")]
    token_file: PathBuf,
    /// How many agents
    #[arg(long, value_name = "NUMBER", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=50_000))]
    count: u32,
    /// How many of them begin in a second
    #[arg(long, value_name = "NUMBER", default_value_t = 2000, value_parser = clap::value_parser!(u32).range(1..))]
    per_second: u32,
    /// How long they stay once they are all there
    #[arg(long, short = 'd', value_name = "DURATION", default_value = "30s", value_parser = proto::duration::parse)]
    duration: Duration,
    /// How long they may take to be there
    #[arg(long, value_name = "DURATION", default_value = "1m", value_parser = proto::duration::parse)]
    timeout: Duration,
    /// Length of their answers
    #[arg(long, value_name = "BYTES", default_value_t = 200, value_parser = clap::value_parser!(u32).range(..=16_777_216))]
    answer: u32,
    /// Certificates (PEM) to trust for kas instead of the system's
    #[arg(long, value_name = "FILE")]
    cacert: Option<PathBuf>,
    /// Process number of a kas on this machine, for its memory
    #[arg(long, value_name = "PID")]
    process: Option<u32>,
    /// Write the report as JSON, too
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write an identity file for kas with this many agents (load-1, load-2, …) and their tokens, and do no more
    #[arg(long, value_name = "FILE", conflicts_with = "kas")]
    write_identity: Option<PathBuf>,
}

const EXAMPLES: &str = "\
Examples:
  loadtest agents --write-identity identity.yaml --token-file tokens --count 5000
  loadtest agents --kas wss://kas.example.com:8150 --token-file tokens --count 5000 --process $(pidof kas)";

/// What it came to.
#[derive(Clone, Debug, Serialize, serde::Deserialize)]
pub(crate) struct Report {
    pub(crate) count: u32,
    pub(crate) up: usize,
    pub(crate) up_at_the_end: usize,
    pub(crate) seconds_to_half: Option<f64>,
    pub(crate) seconds_to_95_percent: Option<f64>,
    pub(crate) seconds_to_all: Option<f64>,
    /// Growth of resident memory for each tunnel.
    pub(crate) kas_kib_per_tunnel: Option<f64>,
    pub(crate) own_kib_per_tunnel: f64,
    pub(crate) last_failure: Option<String>,
}

impl Agents {
    /// Runs for its time, or until `stop`.
    pub async fn run(self, stop: CancellationToken) -> anyhow::Result<()> {
        if let Some(identity) = &self.write_identity {
            return write_identity(identity, &self.token_file, self.count);
        }
        let memory = || {
            let kas = self.process.map(usage::resident).transpose()?;
            anyhow::Ok((kas, usage::resident(std::process::id())?))
        };
        let crowd = Crowd {
            kas: vec![self.kas.clone().context("--kas is missing")?],
            cacert: self.cacert.clone(),
            tokens: read_token(&self.token_file)?.lines().map(|line| line.trim().to_owned()).collect(),
            count: self.count as usize,
            tunnels: 1,
            per_second: f64::from(self.per_second),
            answer: self.answer as usize,
        };
        let before = memory()?;
        let begin = Instant::now();
        let fleet = crowd.start()?;
        let arrival = fleet.arrive(begin, self.timeout, &stop).await;
        stop.run_until_cancelled(sleep(self.duration)).await;
        let after = memory()?;
        let each = |before: u64, after: u64| (after as f64 - before as f64) / arrival.up.max(1) as f64;
        let Arrival { up, half, most, all } = arrival;
        let report = Report {
            count: self.count,
            up,
            up_at_the_end: fleet.up(),
            seconds_to_half: half,
            seconds_to_95_percent: most,
            seconds_to_all: all,
            kas_kib_per_tunnel: before.0.zip(after.0).map(|(before, after)| each(before, after)),
            own_kib_per_tunnel: each(before.1, after.1),
            last_failure: fleet.last_failure(),
        };
        fleet.stop().await;
        crate::say(&report)?;
        if let Some(file) = &self.json {
            write_json(file, &report)?;
        }
        let failure = report.last_failure.as_deref().unwrap_or("no failure was seen");
        let up = report.up_at_the_end;
        ensure!(
            up as u64 == u64::from(self.count),
            "{up} of {} tunnels were up at the end: {failure}",
            self.count
        );
        Ok(())
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let time =
            |seconds: Option<f64>| seconds.map_or_else(|| "never".to_owned(), |s| format!("after {s:.2} s"));
        writeln!(
            f,
            "{} of {} tunnels up: half {}, 95 % {}, all {}; {} at the end",
            self.up,
            self.count,
            time(self.seconds_to_half),
            time(self.seconds_to_95_percent),
            time(self.seconds_to_all),
            self.up_at_the_end
        )?;
        if let Some(kas) = self.kas_kib_per_tunnel {
            write!(
                f,
                "memory for each tunnel: kas {kas:.1} KiB, this program {:.1} KiB",
                self.own_kib_per_tunnel
            )
        } else {
            write!(f, "memory for each tunnel: this program {:.1} KiB", self.own_kib_per_tunnel)
        }
    }
}

fn write_identity(identity: &Path, tokens: &Path, count: u32) -> anyhow::Result<()> {
    for path in [identity, tokens] {
        ensure!(!path.exists(), "{} exists already, and is not overwritten", path.display());
    }
    let (agents, all) = many_agents(1..=count);
    put(Path::new(""), identity, &format!("agents:\n{agents}"))?;
    put(Path::new(""), tokens, &all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stack::hash;

    #[test]
    fn identities_and_tokens_belong_together_and_nothing_is_overwritten() {
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
