//! The internal `bench` program: compares kas and agentk with direct requests, nginx and rathole on one machine.
//!
//! ```text
//!   candidates: direct, nginx proxy, rathole, kas plain, kas TLS, kas through a peer    (programs of this machine)
//!        └─► rounds: case × candidate, interleaved ─► summary: medians, ratios within a round ─► report
//!   steps: functions, each timed alone
//!   idle: memory without requests, what Redis is asked  instructions: of one request, counted by valgrind
//!   system calls: for each request, counted by strace
//! ```

mod candidate;
mod delay;
mod gitlab;
mod idle;
mod instructions;
mod nginx;
mod peer;
mod replica_pair;
mod report;
mod rounds;
mod sample;
mod steps;
mod system_calls;

use std::{
    io::Write as _,
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};

use anyhow::{Context as _, ensure};
use clap::Parser;
use loadtest::{
    installation::{
        directory::Directory,
        stack::{StackConfig, Tls, process, redis::RedisProcess},
    },
    load,
};
use tokio_util::sync::CancellationToken;

use self::{
    candidate::Candidate,
    instructions::Instructions,
    nginx::Nginx,
    report::{BenchReport, Section},
    rounds::Rounds,
    sample::Case,
    steps::Step,
};

/// Measure kas and agentk on this machine beside direct requests, nginx and rathole
///
/// Needs nginx, and kas and agentk in the directory of this program. Compare the ratios: absolute figures depend on the
/// machine and its other load.
#[derive(Clone, Debug, Parser)]
#[command(name = "bench", version)]
struct Bench {
    /// Measure only a few cases, in two minutes
    #[arg(long)]
    quick: bool,
    /// Directory with another build of kas and agentk to measure in the same rounds, which is named after the directory; may
    /// be repeated
    #[arg(long, value_name = "DIRECTORY")]
    beside: Vec<PathBuf>,
    /// Measure only cases whose text contains this word ("4 KiB") or that have this number of connections ("64"); with several
    /// words, all must match
    #[arg(long, value_name = "WORD")]
    only: Vec<String>,
    #[command(flatten)]
    single: SingleMeasurement,
    /// With --instructions: the file of a former run (instructions.json); fail if a number is more than 5 % higher
    #[arg(long, value_name = "FILE", requires = "instructions", conflicts_with_all = ["system_calls", "steps"])]
    against: Option<PathBuf>,
    /// Number of rounds; by default 3, or 2 with --quick
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: Option<u32>,
    /// Duration of each case in each round
    #[arg(long, value_name = "DURATION", default_value = "1s", value_parser = settings::duration::parse)]
    duration: Duration,
    /// Directory for configuration, logs and the report
    #[arg(long, value_name = "DIRECTORY", default_value = "target/bench")]
    directory: PathBuf,
}

/// The measurements that can run alone, one at a time.
#[derive(Clone, Debug, clap::Args)]
#[group(multiple = false, conflicts_with_all = ["quick", "beside", "only"])]
struct SingleMeasurement {
    /// Only count the instructions of one request with valgrind
    #[arg(long)]
    instructions: bool,
    /// Only count the system calls for each request with strace
    #[arg(long)]
    system_calls: bool,
    /// Only time the steps of a request, each alone in this process
    #[arg(long)]
    steps: bool,
}

/// The delay in each direction of the tunnel with a long round trip.
const DELAY: Duration = Duration::from_millis(20);
/// The numbers of idle tunnels to measure.
const IDLE: [u32; 2] = [1000, 5000];

#[tokio::main]
async fn main() -> ExitCode {
    loadtest::init_process();
    let bench = Bench::parse();
    match async { bench.run(loadtest::stop_signal()?).await }.await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // If standard error is closed, only the exit code reports the failure.
            let _ = writeln!(std::io::stderr(), "bench: {error:#}");
            ExitCode::FAILURE
        }
    }
}

impl Bench {
    /// Runs to the end, or until `stop` is cancelled.
    async fn run(self, stop: CancellationToken) -> anyhow::Result<()> {
        let before = self.against.as_deref().map(Instructions::read).transpose()?;
        let cannot = || format!("cannot write to {}", self.directory.display());
        std::fs::create_dir_all(&self.directory).with_context(cannot)?;
        let directory = self.directory.canonicalize()?;
        let work = tempfile::Builder::new().prefix("run-").tempdir_in(&directory)?;
        if self.single.steps {
            return Ok(load::print(&steps::table(&time_steps(work.path()).await?))?);
        }
        let upstream = Nginx::upstream(&work.path().join("upstream")).await?;
        if self.single.instructions {
            return instructions::run(work.path(), &upstream, &directory, before, &stop).await;
        }
        if self.single.system_calls {
            return system_calls::run(work.path(), &upstream, &stop).await;
        }
        let repeats = self.rounds.unwrap_or(if self.quick { 2 } else { 3 });
        let rounds = Rounds { repeats, duration: self.duration };
        let mut report = BenchReport::new(self.quick, rounds, process::load_average());
        let result = self.measure(work.path(), &upstream, rounds, &stop, &mut report).await;
        // Report the finished sections even if a later one failed.
        if report.sections.is_empty() && report.peer.is_empty() {
            return result;
        }
        report.finish(process::load_average(), stop.is_cancelled() || result.is_err());
        load::print(&report)?;
        report.write(&directory)?;
        result
    }

    async fn measure(
        &self,
        work: &Path,
        upstream: &Nginx,
        rounds: Rounds,
        stop: &CancellationToken,
        report: &mut BenchReport,
    ) -> anyhow::Result<()> {
        let sections = &mut report.sections;
        sections.extend(self.measure_candidates(work, upstream, rounds, stop).await?);
        if let Some(cases) = self.matching_cases(peer::cases(self.quick)) {
            report.peer = peer::rows(work, upstream, rounds, cases, stop).await?;
        }
        if !self.quick {
            sections.extend(self.measure_delay(work, upstream, rounds, stop).await?);
            sections.extend(self.measure_features(work, upstream, rounds, stop).await?);
        }
        if !self.only.is_empty() {
            let words = self.only.join("\" and \"");
            let nothing = sections.is_empty() && report.peer.is_empty();
            ensure!(!nothing, "no case matches --only \"{words}\"");
            return Ok(());
        }
        report.steps = time_steps(work).await?;
        if self.quick {
            return Ok(());
        }
        let counted = system_calls::measure(work, upstream);
        report.system_calls = stop.run_until_cancelled(counted).await.transpose()?.unwrap_or_default();
        for tls in [false, true] {
            let measured = idle::processes(work, upstream, tls);
            report.processes.extend(stop.run_until_cancelled(measured).await.transpose()?);
        }
        if RedisProcess::is_installed().await {
            let (directory, files) = (Directory::with_defaults(), work.join("directory"));
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

    /// Measures all candidates without delay.
    async fn measure_candidates(
        &self,
        work: &Path,
        upstream: &Nginx,
        rounds: Rounds,
        stop: &CancellationToken,
    ) -> anyhow::Result<Option<Section>> {
        let Some(cases) = self.matching_cases(cases(self.quick)) else { return Ok(None) };
        let mut candidates = vec![Candidate::direct(upstream), Candidate::nginx(work, upstream).await?];
        candidates.extend(Candidate::rathole(work, upstream).await?);
        candidates.push(Candidate::kas_and_agentk("kas", work, &StackConfig::default(), upstream).await?);
        let gitlab = StackConfig { gitlab_protocol: true, ..StackConfig::default() };
        candidates.push(Candidate::kas_and_agentk("kas, GitLab's protocol", work, &gitlab, upstream).await?);
        for directory in &self.beside {
            candidates.push(other_build(directory, &candidates, work, upstream).await?);
        }
        if !self.quick {
            let tls = StackConfig { tls: Tls::Both, ..StackConfig::default() };
            candidates.push(Candidate::kas_and_agentk("kas TLS", work, &tls, upstream).await?);
        }
        let rows = rounds.run(&candidates, &cases, stop).await?;
        Ok(Some(Section { title: "Connections to the same server", rows }))
    }

    /// Measures a tunnel with a round trip of 40 ms, which shows the limits of flow-control windows. Direct requests have the
    /// same delay, for comparison.
    async fn measure_delay(
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
        let Some(cases) = self.matching_cases(cases.to_vec()) else { return Ok(None) };
        let setup = StackConfig::default();
        let direct = Candidate::direct_delayed("direct, 40 ms", upstream, DELAY).await?;
        let tunnel =
            Candidate::kas_and_agentk_delayed("kas, 40 ms", work, &setup, upstream, Some(DELAY)).await?;
        let candidates = [direct, tunnel];
        // A stream needs some round trips to reach its full speed.
        let rounds = Rounds { duration: rounds.duration * 3, ..rounds };
        let (bulk, short): (Vec<Case>, Vec<Case>) = cases.into_iter().partition(Case::is_bulk);
        let mut rows = rounds.run(&candidates, &short, stop).await?;
        // The forwarder has no flow control, so direct bulk requests would measure nothing.
        rows.extend(rounds.run(&candidates[1..], &bulk, stop).await?);
        Ok(Some(Section { title: "A tunnel with a round trip of 40 ms", rows }))
    }

    /// Measures optional features, each beside kas with default settings.
    async fn measure_features(
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
        let Some(cases) = self.matching_cases(cases.to_vec()) else { return Ok(None) };
        let mut candidates = Vec::new();
        for (name, setup) in [
            ("kas by default", StackConfig::default()),
            ("with TLS in the tunnel", StackConfig { tls: Tls::Tunnel, ..StackConfig::default() }),
            ("with TLS on both legs", StackConfig { tls: Tls::Both, ..StackConfig::default() }),
            ("with a policy of 3 rules", StackConfig { policy: true, ..StackConfig::default() }),
            ("with a log line for each request", StackConfig { debug: true, ..StackConfig::default() }),
        ] {
            candidates.push(Candidate::kas_and_agentk(name, work, &setup, upstream).await?);
        }
        let rows = rounds.run(&candidates, &cases, stop).await?;
        Ok(Some(Section { title: "Cost of features", rows }))
    }

    /// Returns the cases that match `--only`, if there are any.
    fn matching_cases(&self, mut cases: Vec<Case>) -> Option<Vec<Case>> {
        cases.retain(|case| self.only.iter().all(|word| case.is_about(word)));
        (!cases.is_empty()).then_some(cases)
    }
}

/// Starts another build as a candidate that is named after its directory.
async fn other_build(
    directory: &Path,
    candidates: &[Candidate],
    work: &Path,
    upstream: &Nginx,
) -> anyhow::Result<Candidate> {
    let cannot = || format!("--beside {}", directory.display());
    let directory = directory.canonicalize().with_context(cannot)?;
    let name = directory.file_name().unwrap_or_default().to_string_lossy().into_owned();
    ensure!(
        candidates.iter().all(|other| other.name != name),
        "{}: another candidate is named {name:?}; rename the directory",
        cannot()
    );
    let setup = StackConfig { programs: Some(directory), ..StackConfig::default() };
    Candidate::kas_and_agentk(&name, work, &setup, upstream).await
}

async fn time_steps(work: &Path) -> anyhow::Result<Vec<Step>> {
    let directory = work.join("steps");
    tokio::task::spawn_blocking(move || steps::measure(&directory)).await?
}

/// Returns the cases: short bodies in one segment and in two writes, and a long one.
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
    with_connections(chosen)
}

/// Returns a case for each number of connections.
fn with_connections(cases: &[(&'static str, &'static str, &[usize])]) -> Vec<Case> {
    let cases = cases.iter().flat_map(|(what, path, levels)| {
        levels.iter().map(|connections| Case { what, path, connections: *connections })
    });
    cases.collect()
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn command_line_definition_is_valid() {
        Bench::command().debug_assert();
    }

    #[test]
    fn single_measurement_excludes_other_options() {
        let parse = |options: &str| Bench::try_parse_from(format!("bench {options}").split(' '));
        for options in ["--steps --system-calls", "--instructions --quick", "--system-calls --only 64"] {
            assert!(parse(options).is_err(), "{options}");
        }
        assert!(parse("--system-calls --directory x").is_ok_and(|bench| bench.single.system_calls));
        assert!(parse("--instructions --against x").is_ok());
        assert!(parse("--system-calls --against x").is_err());
    }
}
