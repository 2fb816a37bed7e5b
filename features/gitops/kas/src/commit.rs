//! The manifests of a project at a commit: the files as they are, or what kustomize and helm make of them.

use std::{
    collections::{BTreeSet, HashSet},
    sync::Arc,
};

use git::{CommitId, FileLimits, FileSelection, Reference, RepositoryError, RepositoryFile, SelectedFiles};
use proto::agent_configuration::gitops::{IgnoredFields, InvalidManifestProject, ManifestProject};
use render::{
    FileTree, RenderError, RenderErrorKind, Renderer, Share, TargetCluster,
    kustomization::{self, Checked},
    plan::{self, Job, Tool},
};
use tokio::time::Instant;

use super::{
    looks::FollowedReference,
    metrics::GitopsMetrics,
    refusals::{ReadKey, Refusals},
    versions::ClusterReader,
};

/// The most times that a kustomization may lead to further directories.
const MAX_ROUNDS: usize = 20;

/// Reads and renders manifests.
#[derive(Debug)]
pub(super) struct CommitReader {
    pub(super) limits: FileLimits,
    pub(super) renderer: Renderer,
    pub(super) refusals: Refusals,
    pub(super) metrics: GitopsMetrics,
}

/// A commit whose manifests are read.
#[derive(Clone, Copy, Debug)]
pub(super) struct CommitSource<'a> {
    pub(super) followed: &'a FollowedReference,
    pub(super) id: &'a CommitId,
}

/// The manifests of a commit.
#[derive(Debug)]
pub(super) struct CommitFiles {
    pub(super) files: SelectedFiles,
    /// Fields that are written once, because each rendering gives them other values.
    pub(super) unstable: Vec<IgnoredFields>,
}

/// The reason why kas has no manifests of a commit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ManifestError {
    /// A sentence.
    pub(super) message: String,
    /// Another attempt at the same commit gives the same: its manifests or the settings of the project are wrong.
    pub(super) is_final: bool,
}

impl ManifestError {
    pub(super) fn refused(message: String) -> Self {
        Self { message, is_final: true }
    }

    pub(super) fn unavailable(message: String) -> Self {
        Self { message, is_final: false }
    }
}

impl From<RepositoryError> for ManifestError {
    fn from(error: RepositoryError) -> Self {
        let is_final = match &error {
            // A server of Git may not have a new commit yet.
            RepositoryError::Unavailable(_) | RepositoryError::ReferenceNotFound(Reference::Commit(_)) => {
                false
            }
            RepositoryError::Refused(_)
            | RepositoryError::ReferenceNotFound(_)
            | RepositoryError::TooManyFiles(_)
            | RepositoryError::NotAFile { .. }
            | RepositoryError::TooLarge { .. } => true,
        };
        Self { message: error.to_string(), is_final }
    }
}

impl From<RenderError> for ManifestError {
    fn from(error: RenderError) -> Self {
        Self { message: error.to_string(), is_final: error.kind == RenderErrorKind::Refused }
    }
}

impl From<InvalidManifestProject> for ManifestError {
    fn from(error: InvalidManifestProject) -> Self {
        Self::refused(error.to_string())
    }
}

impl CommitReader {
    /// Reads the manifests of a project, which are rendered for a cluster.
    ///
    /// # Errors
    ///
    /// A limit is exceeded, the repository cannot be reached, or a program fails.
    pub(super) async fn read(
        &self,
        commit: CommitSource<'_>,
        project: &ManifestProject,
        share: &Share,
        cluster: &ClusterReader<'_>,
    ) -> Result<CommitFiles, ManifestError> {
        let markers = plan::markers(project);
        let matchers = project.matchers()?;
        let patterns: Vec<_> =
            project.paths.iter().map(|path| path.glob.clone()).chain(markers.clone()).collect();
        let wanted: HashSet<String> = markers.into_iter().collect();
        let mut files = self
            .select(commit, patterns, move |path| {
                wanted.contains(path) || matchers.iter().any(|matcher| matcher.is_match(path))
            })
            .await?;
        let names: HashSet<&str> = files.files.iter().map(|file| &*file.path).collect();
        let plan = plan::plan(project, |path| names.contains(path))?;
        let plain = ManifestProject { paths: plan.plain, ..ManifestProject::default() }.matchers();
        let plain = plain?;
        files.files.retain(|file| plain.iter().any(|matcher| matcher.is_match(&file.path)));
        let (mut target, unknown, mut unstable) = (None, TargetCluster::unknown(), Vec::new());
        for job in plan.jobs {
            let tree = self.tree(commit, project, &job).await?;
            // Only charts depend on the cluster.
            if job.tool == Tool::Helm && target.is_none() {
                target = Some(cluster.read().await.map_err(ManifestError::unavailable)?);
            }
            let target = target.as_ref().unwrap_or(unknown);
            let rendered =
                self.renderer.render(share.clone(), project, target, &job, &tree, self.limits.bytes).await;
            self.metrics.count_render(match &rendered {
                Ok(_) => "rendered",
                Err(error) => match error.kind {
                    RenderErrorKind::Refused => "refused",
                    RenderErrorKind::Unavailable => "failed",
                    RenderErrorKind::NetworkStays => "network-not-isolated",
                },
            });
            let rendering = rendered?;
            files.files.push(RepositoryFile { path: job.file(), content: rendering.manifests.into() });
            unstable.extend(rendering.unstable);
        }
        Ok(CommitFiles { files, unstable })
    }

    /// Reads the files that a job may need.
    async fn tree(
        &self,
        commit: CommitSource<'_>,
        project: &ManifestProject,
        job: &Job,
    ) -> Result<FileTree, ManifestError> {
        let mut known = BTreeSet::from([job.directory.clone()]);
        if let (Tool::Helm, Some(helm)) = (job.tool, &project.helm) {
            known.extend(helm.values_files.iter().cloned());
        }
        for _ in 0..MAX_ROUNDS {
            let tree = self.read_tree(commit, &known).await?;
            if job.tool == Tool::Helm {
                return check_values(project, tree);
            }
            match kustomization::check(job, &tree, &known)? {
                Checked::Complete(tree) => return Ok(tree),
                Checked::Missing(paths) => known.extend(paths),
            }
        }
        let place = job.place();
        Err(ManifestError::refused(format!("{place}: its bases are nested more than {MAX_ROUNDS} times")))
    }

    /// Reads files, and all files below directories.
    async fn read_tree(
        &self,
        commit: CommitSource<'_>,
        known: &BTreeSet<String>,
    ) -> Result<FileTree, ManifestError> {
        let prefixes: Vec<String> = known.iter().cloned().collect();
        // The directories that have one of them are read, and so are those below it.
        let below = |path: &String| {
            let slash = if path.is_empty() { "" } else { "/" };
            format!("{path}{slash}**")
        };
        let patterns = known.iter().map(below).collect();
        let selects = move |path: &str| prefixes.iter().any(|prefix| plan::is_below(path, prefix));
        let files = self.select(commit, patterns, selects).await?;
        Ok(files.files.into_iter().map(|file| (file.path, file.content)).collect())
    }

    /// Reads files. A commit that was refused is not read again for some time.
    async fn select(
        &self,
        CommitSource { followed, id }: CommitSource<'_>,
        patterns: Vec<String>,
        selects: impl Fn(&str) -> bool + Send + Sync + 'static,
    ) -> Result<SelectedFiles, ManifestError> {
        let key = ReadKey::new(&followed.source, id, &patterns);
        if let Some(error) = self.refusals.get(&key, Instant::now()) {
            return Err(error.into());
        }
        let selection = Arc::new(FileSelection::new(patterns, selects, self.limits));
        followed.repository.read_files(id, &selection).await.map_err(|error| {
            self.refusals.record(key, &error, Instant::now());
            error.into()
        })
    }
}

/// Checks that all files with values exist.
fn check_values(project: &ManifestProject, tree: FileTree) -> Result<FileTree, ManifestError> {
    let files = project.helm.iter().flat_map(|helm| &helm.values_files);
    match files.into_iter().find(|path| !tree.contains_key(*path)) {
        Some(path) => {
            Err(ManifestError::refused(format!("helm.values_files: the commit has no file {path}")))
        }
        None => Ok(tree),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_errors_of_the_manifests_are_final() {
        let commit = || "a".repeat(40).parse().unwrap();
        for (error, is_final) in [
            (RepositoryError::Unavailable("connection refused".to_owned()), false),
            (RepositoryError::ReferenceNotFound(Reference::Commit(commit())), false),
            (RepositoryError::ReferenceNotFound(Reference::Branch("gone".to_owned())), true),
            (RepositoryError::TooManyFiles(1000), true),
        ] {
            let message = error.to_string();
            assert_eq!(ManifestError::from(error), ManifestError { message, is_final });
        }
    }
}
