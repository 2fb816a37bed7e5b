//! Renders manifests with `kustomize build` and `helm template`.
//!
//! ```text
//!   settings of the project ─► plan ─► jobs ─► tree: the files of the commit that a job may read ─► the program, with limits ─► manifests
//! ```
//!
//! Users who can commit to a repository choose the input of the programs, so neither the repository nor the programs are trusted: they
//! see a directory with files of the commit, an empty environment and no credential. [`kustomization`] refuses references that would
//! make kustomize fetch something, and [`limits`] bounds memory, CPU and files, and takes the network away.
#![warn(missing_docs)]

mod cluster;
mod command;
pub mod kustomization;
pub mod limits;
pub mod plan;
mod shares;
mod unstable;

use std::{
    collections::{BTreeMap, VecDeque},
    io,
    os::unix::process::ExitStatusExt as _,
    path::PathBuf,
    time::{Duration, SystemTime},
};

use bytes::Bytes;
use files::WorkDirectory;
use parking_lot::Mutex;
use process::child::{self, RunError};
use proto::agent_configuration::gitops::{IgnoredFields, ManifestProject};
use sha2::{Digest as _, Sha256};
use tokio::time::{Instant, sleep};

pub use self::{cluster::TargetCluster, shares::Share};
use self::{
    limits::{Limits, NETWORK_STAYS},
    plan::{Job, Tool},
    shares::Shares,
};

/// The files of a commit that a job may read, by their paths from the root of the repository.
pub type FileTree = BTreeMap<String, Vec<u8>>;

/// The prefix of the names of the temporary directories of jobs.
pub const WORK_DIRECTORY_PREFIX: &str = "kas-render-";
/// The most bytes of rendered manifests that are kept for further agents.
const MAX_CACHED: usize = 32 << 20;
/// The most results that are kept.
const MAX_RESULTS: usize = 1000;
/// The signal of the kernel for a program that exceeds its time or the memory of the machine.
const SIGKILL: i32 = 9;
/// The time for which a failure is not tried again.
const FAILURE_TIME: Duration = Duration::from_secs(600);

/// The paths of the programs, and their limits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RenderSettings {
    /// The program kustomize: a path, or a name that is looked up in `PATH`.
    pub kustomize: PathBuf,
    /// The program helm: a path, or a name that is looked up in `PATH`.
    pub helm: PathBuf,
    /// The time for one job, and its time of the CPU.
    pub timeout: Duration,
    /// The most bytes of memory for one job.
    pub max_memory: u64,
    /// The programs run also where the kernel lets kas not take their network away.
    pub allow_network: bool,
}

/// Rendered manifests.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rendering {
    /// The manifests, as YAML.
    pub manifests: Bytes,
    /// The fields that each rendering gives other values, if the project allows such. They are written once.
    pub unstable: Vec<IgnoredFields>,
}

/// The reason why there are no rendered manifests, in one sentence.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what}")]
pub struct RenderError {
    what: String,
    /// The kind of the reason.
    pub kind: RenderErrorKind,
}

/// The kind of a [`RenderError`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RenderErrorKind {
    /// The commit or the settings of the project cannot be rendered: another attempt gives the same.
    Refused,
    /// The program is missing, or the machine of kas fails.
    Unavailable,
    /// The kernel lets kas not take the network away from the program.
    NetworkStays,
}

/// Runs the programs. Agents that follow the same commit share the result.
#[derive(Debug)]
pub struct Renderer {
    settings: RenderSettings,
    /// This program, which sets the limits.
    limiter: PathBuf,
    shares: Shares,
    cache: Mutex<Cache>,
}

/// The newest results, by the digests of what they were made from.
#[derive(Debug, Default)]
struct Cache {
    results: VecDeque<CachedResult>,
    bytes: usize,
}

#[derive(Debug)]
struct CachedResult {
    digest: [u8; 32],
    at: Instant,
    result: Result<Rendering, RenderError>,
}

impl Renderer {
    /// Returns a renderer. `limiter` is the path of kas, whose hidden subcommand [`limits::SUBCOMMAND`] sets the limits.
    pub fn new(settings: RenderSettings, limiter: PathBuf) -> Self {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let slots = slots(cores, settings.max_memory, process::memory_limit());
        Self { settings, limiter, shares: Shares::new(slots), cache: Mutex::default() }
    }

    /// Renders the manifests of a job, of at most `max_bytes` bytes. The program waits for a slot of the share.
    ///
    /// # Errors
    ///
    /// The program is not installed, fails, or exceeds a limit; or a kustomization refers to something outside of the commit.
    ///
    /// # Cancellation safety
    ///
    /// Dropping the future kills the program.
    pub async fn render(
        &self,
        share: Share,
        project: &ManifestProject,
        cluster: &TargetCluster,
        job: &Job,
        tree: &FileTree,
        max_bytes: usize,
    ) -> Result<Rendering, RenderError> {
        let digest = digest(project, cluster, job, tree);
        if let Some(known) = self.cache.lock().get(&digest, Instant::now()) {
            return known;
        }
        let _permit = self.shares.acquire(share).await;
        // Another agent may have waited for the same.
        if let Some(known) = self.cache.lock().get(&digest, Instant::now()) {
            return known;
        }
        let result = self.render_stably(project, cluster, job, tree, max_bytes).await;
        if !matches!(&result, Err(error) if error.kind != RenderErrorKind::Refused) {
            self.cache.lock().insert(CachedResult { digest, at: Instant::now(), result: result.clone() });
        }
        result
    }

    /// Renders a chart twice, because the results of random functions must not change what is applied. kustomize has none.
    async fn render_stably(
        &self,
        project: &ManifestProject,
        cluster: &TargetCluster,
        job: &Job,
        tree: &FileTree,
        max_bytes: usize,
    ) -> Result<Rendering, RenderError> {
        let manifests = self.run(project, cluster, job, tree, max_bytes).await?;
        if job.tool == Tool::Kustomize {
            return Ok(Rendering { manifests, unstable: Vec::new() });
        }
        let values = project.helm.as_ref().map(|helm| helm.values.clone()).unwrap_or_default();
        sleep(unstable::pause(tree, &values, SystemTime::now())).await;
        let second = self.run(project, cluster, job, tree, max_bytes).await?;
        let refused = |what: String| {
            RenderError::refused(format!("{}: two renderings of the same commit {what}", job.file()))
        };
        let fields = unstable::compare(&manifests, &second)
            .map_err(|error| refused(format!("have to have the same objects, and {error}")))?;
        if let Some(first) = fields.first().filter(|_| !project.allow_unstable_rendering) {
            let more = match fields.len() {
                1 => String::new(),
                2 => " and in another field".to_owned(),
                fields => format!(" and in {} more fields", fields - 1),
            };
            return Err(refused(format!(
                "differ in {}{more}, which would change without a commit: its templates have a random function or the time. Give it a \
                 value (helm.values), or set allow_unstable_rendering: true, which writes such fields once",
                first.describe()
            )));
        }
        let unstable =
            unstable::written_once(&fields).map_err(|field| refused(format!("differ in {field}")))?;
        Ok(Rendering { manifests, unstable })
    }

    async fn run(
        &self,
        project: &ManifestProject,
        cluster: &TargetCluster,
        job: &Job,
        tree: &FileTree,
        max_bytes: usize,
    ) -> Result<Bytes, RenderError> {
        let name = job.tool.name();
        let place = || format!("{} ({})", job.place(), job.tool.command());
        let failed = |what: String| RenderError::refused(format!("{}: {what}", place()));
        let unavailable = |what: String| RenderError { what, kind: RenderErrorKind::Unavailable };
        let lost = |error: io::Error| {
            unavailable(format!("{}: kas cannot write its temporary directory: {error}", place()))
        };
        let program = self.settings.find(job.tool).ok_or_else(|| {
            unavailable(format!(
                "kas has no {name}, which {} needs: install {name} beside kas, or set agent.gitops.render.{name} to its path",
                job.place()
            ))
        })?;
        if let Some(group) = cluster.unavailable_group(job, tree) {
            return Err(unavailable(format!(
                "{}: the API group {group} of the cluster does not respond, and the chart names it, so that objects could be missing",
                place()
            )));
        }
        let directory = WorkDirectory::create(WORK_DIRECTORY_PREFIX).map_err(lost)?;
        let mut command = command::prepare(job, project, cluster, tree, directory.path()).map_err(lost)?;
        let RenderSettings { timeout, max_memory, allow_network, .. } = self.settings;
        let mut limited =
            Limits::new(timeout, max_memory, allow_network).wrap(&self.limiter, &program, &mut command);
        let run = child::run(&mut limited, timeout, max_bytes as u64).await;
        let output = run.map_err(|error| match error {
            RunError::Timeout(_) | RunError::TooLong(_) => failed(format!("{name} {error}")),
            RunError::Start(_) | RunError::Lost(_) => unavailable(format!("{}: {name} {error}", place())),
        })?;
        if output.status.success() {
            return Ok(Bytes::from(output.stdout));
        }
        if output.status.code() == Some(NETWORK_STAYS.into()) {
            let what = format!(
                "{}: kas does not run {name}, because its kernel allows neither a network namespace nor a filter of system calls, so that \
                 {name} would have a network: allow one of them, or set agent.gitops.render.allow_network: true",
                place()
            );
            return Err(RenderError { what, kind: RenderErrorKind::NetworkStays });
        }
        let said = command.error_text(&output.stderr, directory.path());
        if command::is_out_of_memory(&output.stderr) {
            let mib = max_memory >> 20;
            return Err(failed(format!(
                "{name} needs more memory than {mib} MiB (agent.gitops.render.max_memory): {said}"
            )));
        }
        if output.status.signal() == Some(SIGKILL) {
            let seconds = timeout.as_secs();
            return Err(failed(format!(
                "{name} was killed: it used the CPU for more than {seconds} s (agent.gitops.render.timeout), or the memory of the pod or the \
                 machine of kas was exhausted (agent.gitops.render.max_memory): {said}"
            )));
        }
        Err(failed(format!("{name} failed ({}): {said}", output.status)))
    }
}

/// Returns the number of jobs at the same time: one for each core, as long as half of the memory of the pod is enough for them.
fn slots(cores: usize, job_memory: u64, memory: Option<u64>) -> usize {
    let of_memory = memory.map(|memory| memory / 2 / job_memory.max(1));
    let of_memory = of_memory.and_then(|slots| usize::try_from(slots).ok()).unwrap_or(usize::MAX);
    cores.min(of_memory).max(1)
}

impl RenderSettings {
    /// Returns whether one of the programs is installed.
    pub fn has_program(&self) -> bool {
        [Tool::Kustomize, Tool::Helm].into_iter().any(|tool| self.find(tool).is_some())
    }

    /// Returns the absolute path of a program: its working directory has files of the commit.
    fn find(&self, tool: Tool) -> Option<PathBuf> {
        let program = match tool {
            Tool::Kustomize => &self.kustomize,
            Tool::Helm => &self.helm,
        };
        let found = if program.components().count() > 1 {
            program.is_file().then(|| program.clone())?
        } else {
            let paths = std::env::var_os("PATH")?;
            std::env::split_paths(&paths)
                .map(|directory| directory.join(program))
                .find(|path| path.is_file())?
        };
        std::path::absolute(found).ok()
    }
}

impl RenderError {
    pub(crate) fn refused(what: String) -> Self {
        Self { what, kind: RenderErrorKind::Refused }
    }
}

impl Cache {
    fn get(&self, digest: &[u8; 32], now: Instant) -> Option<Result<Rendering, RenderError>> {
        let known = self.results.iter().find(|known| known.digest == *digest);
        let is_fresh = |known: &&CachedResult| known.result.is_ok() || now < known.at + FAILURE_TIME;
        known.filter(is_fresh).map(|known| known.result.clone())
    }

    fn insert(&mut self, new: CachedResult) {
        self.remove(|known| known.digest == new.digest);
        self.bytes += new.bytes();
        self.results.push_back(new);
        while self.bytes > MAX_CACHED || self.results.len() > MAX_RESULTS {
            let Some(oldest) = self.results.pop_front() else { return };
            self.bytes -= oldest.bytes();
        }
    }

    fn remove(&mut self, is_wrong: impl Fn(&CachedResult) -> bool) {
        self.results.retain(|known| !is_wrong(known));
        self.bytes = self.results.iter().map(CachedResult::bytes).sum();
    }
}

impl CachedResult {
    fn bytes(&self) -> usize {
        self.result.as_ref().map_or(0, |rendering| rendering.manifests.len())
    }
}

/// Returns a digest of everything that the result depends on.
fn digest(project: &ManifestProject, cluster: &TargetCluster, job: &Job, tree: &FileTree) -> [u8; 32] {
    let mut hasher = Sha256::new();
    let mut add = |bytes: &[u8]| {
        hasher.update((bytes.len() as u64).to_be_bytes());
        hasher.update(bytes);
    };
    let helm = serde_json::to_vec(&project.helm).expect("it has keys that are text");
    for part in
        [job.tool.name(), &job.directory, &project.default_namespace, project.release_name(job.name())]
    {
        add(part.as_bytes());
    }
    add(&helm);
    if job.tool == Tool::Helm {
        add(&[project.allow_unstable_rendering.into(), cluster.hooks.into()]);
        add(cluster.version.as_deref().unwrap_or_default().as_bytes());
        add(cluster.api_versions.join("\n").as_bytes());
    }
    for (path, content) in tree {
        add(path.as_bytes());
        add(content);
    }
    hasher.finalize().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jobs_at_the_same_time_fit_into_the_memory_of_the_pod() {
        const GIB: u64 = 1 << 30;
        assert_eq!(slots(8, GIB / 2, None), 8);
        assert_eq!(slots(8, GIB / 2, Some(64 * GIB)), 8);
        assert_eq!(slots(8, GIB / 2, Some(2 * GIB)), 2);
        assert_eq!(slots(8, GIB / 2, Some(GIB / 2)), 1, "one at least");
    }

    #[test]
    fn result_depends_on_everything_that_is_read() {
        let project = ManifestProject::default();
        let job = Job { tool: Tool::Helm, directory: "shop".to_owned() };
        let tree = |content: &str| FileTree::from([("shop/Chart.yaml".to_owned(), content.into())]);
        let cluster = TargetCluster::default();
        let one = digest(&project, &cluster, &job, &tree("a"));
        assert_eq!(one, digest(&project, &cluster, &job, &tree("a")));
        assert_ne!(one, digest(&project, &cluster, &job, &tree("b")));
        let other = ManifestProject { default_namespace: "x".to_owned(), ..ManifestProject::default() };
        assert_ne!(one, digest(&other, &cluster, &job, &tree("a")));
        let newer = TargetCluster::new(Some("v1.37.0".to_owned()), Vec::new(), Vec::new());
        assert_ne!(one, digest(&project, &newer, &job, &tree("a")));
        let larger = TargetCluster::new(None, vec!["monitoring.coreos.com/v1".to_owned()], Vec::new());
        assert_ne!(one, digest(&project, &larger, &job, &tree("a")));
        let other = Job { tool: Tool::Kustomize, ..job };
        let plain = digest(&project, &cluster, &other, &tree("a"));
        assert_ne!(one, plain);
        assert_eq!(plain, digest(&project, &newer, &other, &tree("a")), "kustomize knows no cluster");
    }

    fn cached(digest: u8, result: Result<&[u8], RenderError>) -> CachedResult {
        let result =
            result.map(|text| Rendering { manifests: Bytes::copy_from_slice(text), ..Rendering::default() });
        CachedResult { digest: [digest; 32], at: Instant::now(), result }
    }

    #[test]
    fn oldest_results_leave_the_cache() {
        let mut cache = Cache::default();
        let now = Instant::now();
        let result = vec![0; MAX_CACHED / 2];
        (0..3).for_each(|n| cache.insert(cached(n, Ok(&result))));
        assert_eq!([0, 1, 2].map(|n| cache.get(&[n; 32], now).is_some()), [false, true, true]);
        cache.insert(cached(9, Ok(&vec![0; MAX_CACHED + 1])));
        assert_eq!((cache.results.len(), cache.bytes), (0, 0), "a result that is too large is not kept");
        for n in 0..2 * MAX_RESULTS {
            let mut digest = [0; 32];
            digest[..8].copy_from_slice(&n.to_be_bytes());
            cache.insert(CachedResult { digest, ..cached(0, Err(RenderError::refused(String::new()))) });
        }
        assert_eq!(cache.results.len(), MAX_RESULTS);
    }

    #[test]
    fn failure_is_remembered_for_a_time() {
        let mut cache = Cache::default();
        let failure = RenderError::refused("helm failed".to_owned());
        cache.insert(cached(1, Err(failure.clone())));
        let at = cache.results[0].at;
        assert_eq!(cache.get(&[1; 32], at), Some(Err(failure)));
        assert_eq!(cache.get(&[1; 32], at + FAILURE_TIME), None);
        cache.insert(cached(1, Ok(b"a: b")));
        assert_eq!((cache.results.len(), cache.bytes), (1, 4));
        assert!(cache.get(&[1; 32], at + FAILURE_TIME).is_some_and(|result| result.is_ok()));
    }
}
