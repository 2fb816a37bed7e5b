//! `loadtest bench`: what the tunnel costs, measured beside other ways to the same server in the same minutes.
//!
//! ```text
//!   contestants: direct, nginx proxy, rathole, kas plain, kas TLS, kas through a peer    (programs of this machine)
//!        └─► rounds: case × contestant, interleaved ─► summary: medians, ratios within a round ─► report
//!   steps: functions, each timed alone
//!   idle: memory without requests, what Redis is asked  instructions: of one request, counted by valgrind
//! ```

mod contestant;
mod idle;
mod instructions;
mod nginx;
mod peer;
mod rathole;
mod report;
mod rounds;
mod steps;
mod summary;

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context as _, ensure};
use tokio_util::sync::CancellationToken;

pub(crate) use self::summary::median;
use self::{
    contestant::Contestant,
    instructions::Instructions,
    nginx::Nginx,
    report::{Report, Section},
    rounds::{Case, Rounds},
    steps::Step,
};
use crate::{
    directory::Directory,
    stack::{Setup, Tls, redis::Redis, usage},
};

/// Measure kas and agentk on this machine beside direct requests, nginx and rathole
///
/// Needs nginx, and kas and agentk beside this program. Absolute figures are of this machine and this minute; the ratios
/// are what to compare.
#[derive(Clone, Debug, clap::Args)]
pub struct Bench {
    /// A few cases in two minutes
    #[arg(long)]
    quick: bool,
    /// Another build to compare with in the same rounds: a directory with a kas and an agentk, after which it is
    /// named; may be repeated
    #[arg(long, value_name = "DIRECTORY")]
    beside: Vec<PathBuf>,
    /// Only cases of which this is a part of the text ("4 KiB"), or the number of connections ("64"); of several, all
    /// must fit
    #[arg(long, value_name = "WORD")]
    only: Vec<String>,
    /// Instead, count the instructions of one request with valgrind
    #[arg(long, conflicts_with_all = ["quick", "beside", "only"])]
    instructions: bool,
    /// With --instructions: what a former run wrote (instructions.json); fail if either number is more than 5 % higher
    #[arg(long, value_name = "FILE", requires = "instructions")]
    against: Option<PathBuf>,
    /// Only what the steps of a request cost, each timed alone in this process
    #[arg(long, conflicts_with_all = ["quick", "beside", "only", "instructions"])]
    steps: bool,
    /// How often everything is repeated; 3, or 2 with --quick
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: Option<u32>,
    /// How long each case is measured in each round
    #[arg(long, value_name = "DURATION", default_value = "1s", value_parser = proto::duration::parse)]
    duration: Duration,
    /// Where configuration, logs and the report are written
    #[arg(long, value_name = "DIRECTORY", default_value = "target/bench")]
    directory: PathBuf,
}

/// Each way of the round trip that is added to the tunnel.
const DELAY: Duration = Duration::from_millis(20);
/// Numbers of idle tunnels.
const IDLE: [u32; 2] = [1000, 5000];

impl Bench {
    /// Runs to the end, or until `stop`.
    pub async fn run(self, stop: CancellationToken) -> anyhow::Result<()> {
        let before = self.against.as_deref().map(Instructions::read).transpose()?;
        let cannot = || format!("cannot write to {}", self.directory.display());
        std::fs::create_dir_all(&self.directory).with_context(cannot)?;
        let directory = self.directory.canonicalize()?;
        let work = tempfile::Builder::new().prefix("run-").tempdir_in(&directory)?;
        if self.steps {
            return Ok(crate::say(&steps::table(&time_steps(work.path()).await?))?);
        }
        let upstream = Nginx::upstream(&work.path().join("upstream")).await?;
        if self.instructions {
            return instructions::run(work.path(), &upstream, &directory, before, &stop).await;
        }
        let repeats = self.rounds.unwrap_or(if self.quick { 2 } else { 3 });
        let rounds = Rounds { repeats, duration: self.duration };
        let mut report = Report::new(self.quick, rounds, usage::load_average());
        let result = self.measure(work.path(), &upstream, rounds, &stop, &mut report).await;
        // What was measured before something failed is worth its minutes.
        if report.sections.is_empty() && report.peer.is_empty() {
            return result;
        }
        report.finish(usage::load_average(), stop.is_cancelled() || result.is_err());
        crate::say(&report)?;
        report.write(&directory)?;
        result
    }

    async fn measure(
        &self,
        work: &Path,
        upstream: &Nginx,
        rounds: Rounds,
        stop: &CancellationToken,
        report: &mut Report,
    ) -> anyhow::Result<()> {
        let sections = &mut report.sections;
        sections.extend(self.ways(work, upstream, rounds, stop).await?);
        if let Some(cases) = self.chosen(peer::cases(self.quick)) {
            report.peer = peer::rows(work, upstream, rounds, cases, stop).await?;
        }
        if !self.quick {
            sections.extend(self.far(work, upstream, rounds, stop).await?);
            sections.extend(self.features(work, upstream, rounds, stop).await?);
        }
        if !self.only.is_empty() {
            let words = self.only.join("\" and \"");
            let nothing = sections.is_empty() && report.peer.is_empty();
            ensure!(!nothing, "there is no case of --only \"{words}\"");
            return Ok(());
        }
        report.steps = time_steps(work).await?;
        if self.quick {
            return Ok(());
        }
        for tls in [false, true] {
            let measured = idle::processes(work, upstream, tls);
            report.processes.extend(stop.run_until_cancelled(measured).await.transpose()?);
        }
        if Redis::is_installed().await {
            let (directory, files) = (Directory::usual(), work.join("directory"));
            let measured = directory.measure(&files, stop);
            report.directory = stop.run_until_cancelled(measured).await.transpose()?;
        }
        for tls in [false, true] {
            for tunnels in IDLE {
                let measured = idle::measure(work, tunnels, tls);
                report.idle.extend(stop.run_until_cancelled(measured).await.transpose()?);
            }
        }
        Ok(())
    }

    /// The same server, reached in different ways.
    async fn ways(
        &self,
        work: &Path,
        upstream: &Nginx,
        rounds: Rounds,
        stop: &CancellationToken,
    ) -> anyhow::Result<Option<Section>> {
        let Some(cases) = self.chosen(cases(self.quick)) else { return Ok(None) };
        let mut contestants = vec![Contestant::direct(upstream), Contestant::nginx(work, upstream).await?];
        contestants.extend(Contestant::rathole(work, upstream).await?);
        contestants.push(Contestant::ours("kas", work, &Setup::default(), upstream).await?);
        for directory in &self.beside {
            contestants.push(other_build(directory, &contestants, work, upstream).await?);
        }
        if !self.quick {
            let tls = Setup { tls: Tls::Both, ..Setup::default() };
            contestants.push(Contestant::ours("kas TLS", work, &tls, upstream).await?);
        }
        let rows = rounds.run(&contestants, &cases, stop).await?;
        Ok(Some(Section { title: "Ways to the same server", rows }))
    }

    /// A tunnel with a round trip of 40 ms: what windows and round trips allow. Requests are sent the same way without a
    /// tunnel, too: the way takes a little longer than it should.
    async fn far(
        &self,
        work: &Path,
        upstream: &Nginx,
        rounds: Rounds,
        stop: &CancellationToken,
    ) -> anyhow::Result<Option<Section>> {
        let cases = [
            Case { what: "200 B, one segment", path: "/one/200", connections: 1 },
            Case { what: "200 B, one segment", path: "/one/200", connections: 64 },
            Case { what: "100 MB", path: "/bulk", connections: 1 },
        ];
        let Some(cases) = self.chosen(cases.to_vec()) else { return Ok(None) };
        let setup = Setup { delay: DELAY, ..Setup::default() };
        let direct = Contestant::far("direct, 40 ms", upstream, DELAY).await?;
        let contestants = [direct, Contestant::ours("kas, 40 ms", work, &setup, upstream).await?];
        // A stream needs round trips to come to its speed.
        let rounds = Rounds { duration: rounds.duration * 3, ..rounds };
        let (bulk, short): (Vec<Case>, Vec<Case>) = cases.into_iter().partition(Case::is_bulk);
        let mut rows = rounds.run(&contestants, &short, stop).await?;
        // The way has no windows of its own: alone it would take whatever it is given.
        rows.extend(rounds.run(&contestants[1..], &bulk, stop).await?);
        Ok(Some(Section { title: "A tunnel with a round trip of 40 ms", rows }))
    }

    /// What can be switched off or on, each beside kas as it is.
    async fn features(
        &self,
        work: &Path,
        upstream: &Nginx,
        rounds: Rounds,
        stop: &CancellationToken,
    ) -> anyhow::Result<Option<Section>> {
        let cases = [
            Case { what: "200 B, one segment", path: "/one/200", connections: 64 },
            Case { what: "100 MB", path: "/bulk", connections: 1 },
        ];
        let Some(cases) = self.chosen(cases.to_vec()) else { return Ok(None) };
        let mut contestants = Vec::new();
        for (name, setup) in [
            ("kas as it is", Setup::default()),
            ("with TLS in the tunnel", Setup { tls: Tls::Tunnel, ..Setup::default() }),
            ("with TLS on both legs", Setup { tls: Tls::Both, ..Setup::default() }),
            ("with a policy of 3 rules", Setup { policy: true, ..Setup::default() }),
            ("with a log line for each request", Setup { debug: true, ..Setup::default() }),
        ] {
            contestants.push(Contestant::ours(name, work, &setup, upstream).await?);
        }
        let rows = rounds.run(&contestants, &cases, stop).await?;
        Ok(Some(Section { title: "What a feature costs", rows }))
    }

    /// Those that were asked for, if there are any.
    fn chosen(&self, mut cases: Vec<Case>) -> Option<Vec<Case>> {
        cases.retain(|case| self.only.iter().all(|word| case.is_about(word)));
        (!cases.is_empty()).then_some(cases)
    }
}

/// A contestant named after the directory of its programs.
async fn other_build(
    directory: &Path,
    contestants: &[Contestant],
    work: &Path,
    upstream: &Nginx,
) -> anyhow::Result<Contestant> {
    let cannot = || format!("--beside {}", directory.display());
    let directory = directory.canonicalize().with_context(cannot)?;
    let name = directory.file_name().unwrap_or_default().to_string_lossy().into_owned();
    ensure!(
        contestants.iter().all(|other| other.name != name),
        "{}: another way is named {name:?} already; call the directory otherwise",
        cannot()
    );
    let setup = Setup { programs: Some(directory), ..Setup::default() };
    Contestant::ours(&name, work, &setup, upstream).await
}

async fn time_steps(work: &Path) -> anyhow::Result<Vec<Step>> {
    let directory = work.join("steps");
    tokio::task::spawn_blocking(move || steps::measure(&directory)).await?
}

/// Short bodies in one segment and in two writes, and a long one.
fn cases(quick: bool) -> Vec<Case> {
    let all = [
        ("200 B, one segment", "/one/200", &[1, 16, 64, 256][..]),
        ("200 B, two writes", "/two/200", &[1, 16, 64, 256]),
        ("4 KiB, one segment", "/one/4096", &[1, 16, 64, 256]),
        ("4 KiB, two writes", "/two/4096", &[1, 16, 64, 256]),
        ("100 MB", "/bulk", &[1, 4]),
    ];
    let few = [("200 B, one segment", "/one/200", &[1, 64, 256][..]), ("100 MB", "/bulk", &[1])];
    let chosen = if quick { &few[..] } else { &all[..] };
    each_level(chosen)
}

/// A case for each number of connections.
fn each_level(cases: &[(&'static str, &'static str, &[usize])]) -> Vec<Case> {
    let cases = cases.iter().flat_map(|(what, path, levels)| {
        levels.iter().map(|connections| Case { what, path, connections: *connections })
    });
    cases.collect()
}
