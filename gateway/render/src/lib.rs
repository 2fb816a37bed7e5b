//! Renders manifests with `kustomize build` and `helm template`.
//!
//! ```text
//!   settings of the project ─► plan ─► jobs ─► tree: the files of the commit that a job may read ─► the program, with limits ─► manifests
//! ```
//!
//! Users who can commit to a repository choose the input of the programs, so neither the repository nor the programs are trusted: they
//! see a directory with files of the commit, an empty environment and no credential. [`kustomization`] refuses references that would
//! make kustomize fetch something, and [`limits`] bounds memory, CPU and files, and takes the network away where the kernel allows it.
#![warn(missing_docs)]

mod command;
pub mod kustomization;
pub mod limits;
pub mod plan;

use std::{
    collections::{BTreeMap, VecDeque},
    io,
    path::PathBuf,
    time::Duration,
};

use bytes::Bytes;
use parking_lot::Mutex;
use process::child;
use proto::agent_configuration::gitops::ManifestProject;
use sha2::{Digest as _, Sha256};
use tokio::sync::Semaphore;

use self::{limits::Limits, plan::Job};

/// The files of a commit that a job may read, by their paths from the root of the repository.
pub type Tree = BTreeMap<String, Vec<u8>>;

/// The most bytes of rendered manifests that are kept for further agents.
const MAX_CACHED: usize = 32 << 20;

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
}

/// The reason why there are no rendered manifests, in one sentence.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct RenderError(pub(crate) String);

/// Runs the programs. Agents that follow the same commit share the result.
#[derive(Debug)]
pub struct Renderer {
    settings: RenderSettings,
    /// This program, which sets the limits.
    limiter: PathBuf,
    running: Semaphore,
    cache: Mutex<Cache>,
}

/// The newest results, by the digests of what they were made from.
#[derive(Debug, Default)]
struct Cache {
    results: VecDeque<([u8; 32], Bytes)>,
    bytes: usize,
}

impl Renderer {
    /// Returns a renderer. `limiter` is the path of kas, whose hidden subcommand [`limits::SUBCOMMAND`] sets the limits.
    pub fn new(settings: RenderSettings, limiter: PathBuf) -> Self {
        let at_once = std::thread::available_parallelism().map_or(1, usize::from);
        Self { settings, limiter, running: Semaphore::new(at_once), cache: Mutex::default() }
    }

    /// Renders the manifests of a job, of at most `max_bytes` bytes.
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
        project: &ManifestProject,
        job: &Job,
        tree: &Tree,
        max_bytes: usize,
    ) -> Result<Bytes, RenderError> {
        let digest = digest(project, job, tree);
        if let Some(known) = self.cache.lock().get(&digest) {
            return Ok(known);
        }
        let _permit = self.running.acquire().await.expect("it is never closed");
        // Another agent may have waited for the same.
        if let Some(known) = self.cache.lock().get(&digest) {
            return Ok(known);
        }
        let name = job.tool.name();
        let failed = |what: String| RenderError(format!("{} ({}): {what}", job.place(), job.tool.command()));
        let lost = |error: io::Error| failed(format!("kas cannot write its temporary directory: {error}"));
        let program = self.find(job).ok_or_else(|| {
            RenderError(format!(
                "kas has no {name}, which {} needs: install {name} beside kas, or set agent.gitops.render.{name} to its path",
                job.place()
            ))
        })?;
        let directory = tempfile::Builder::new().prefix("kas-render-").tempdir().map_err(lost)?;
        let mut command = command::prepare(job, project, tree, directory.path()).map_err(lost)?;
        let limits = Limits::new(self.settings.timeout, self.settings.max_memory);
        let mut limited = limits.wrap(&self.limiter, &program, &mut command);
        let run = child::run(&mut limited, self.settings.timeout, max_bytes as u64).await;
        let output = run.map_err(|error| failed(format!("{name} {error}")))?;
        if !output.status.success() {
            let said = command.error_text(&output.stderr, directory.path());
            if command::is_out_of_memory(&output.stderr) {
                let mib = self.settings.max_memory >> 20;
                return Err(failed(format!(
                    "{name} needs more memory than {mib} MiB (agent.gitops.render.max_memory): {said}"
                )));
            }
            return Err(failed(format!("{name} failed ({}): {said}", output.status)));
        }
        let rendered = Bytes::from(output.stdout);
        self.cache.lock().insert(digest, rendered.clone());
        Ok(rendered)
    }

    /// Returns the absolute path of the program: its working directory has files of the commit.
    fn find(&self, job: &Job) -> Option<PathBuf> {
        let program = match job.tool {
            plan::Tool::Kustomize => &self.settings.kustomize,
            plan::Tool::Helm => &self.settings.helm,
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

impl Cache {
    fn get(&self, digest: &[u8; 32]) -> Option<Bytes> {
        self.results.iter().find(|(known, _)| known == digest).map(|(_, result)| result.clone())
    }

    fn insert(&mut self, digest: [u8; 32], result: Bytes) {
        self.bytes += result.len();
        self.results.push_back((digest, result));
        while self.bytes > MAX_CACHED
            && let Some((_, oldest)) = self.results.pop_front()
        {
            self.bytes -= oldest.len();
        }
    }
}

/// Returns a digest of everything that the result depends on.
fn digest(project: &ManifestProject, job: &Job, tree: &Tree) -> [u8; 32] {
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
    fn result_depends_on_everything_that_is_read() {
        let project = ManifestProject::default();
        let job = Job { tool: plan::Tool::Helm, directory: "shop".to_owned() };
        let tree = |content: &str| Tree::from([("shop/Chart.yaml".to_owned(), content.into())]);
        let one = digest(&project, &job, &tree("a"));
        assert_eq!(one, digest(&project, &job, &tree("a")));
        assert_ne!(one, digest(&project, &job, &tree("b")));
        let other = ManifestProject { default_namespace: "x".to_owned(), ..ManifestProject::default() };
        assert_ne!(one, digest(&other, &job, &tree("a")));
        let other = Job { tool: plan::Tool::Kustomize, ..job };
        assert_ne!(one, digest(&project, &other, &tree("a")));
    }

    #[test]
    fn oldest_results_leave_the_cache() {
        let mut cache = Cache::default();
        let result = Bytes::from(vec![0; MAX_CACHED / 2]);
        (0..3).for_each(|n| cache.insert([n; 32], result.clone()));
        assert_eq!([0, 1, 2].map(|n| cache.get(&[n; 32]).is_some()), [false, true, true]);
        cache.insert([9; 32], Bytes::from(vec![0; MAX_CACHED + 1]));
        assert_eq!((cache.results.len(), cache.bytes), (0, 0), "a result that is too large is not kept");
    }
}
