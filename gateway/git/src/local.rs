//! A repository of this machine.

use std::{path::PathBuf, time::Duration};

use gix_ref::{Target, file::Store};
use proto::AgentName;
use router::BoxFuture;
use tokio::{task::spawn_blocking, time::timeout};

use super::{
    HEADS,
    objects::{Objects, invalid},
};
use crate::{Commit, CommitId, Repository, RepositoryError};

/// The time for one access. A hung file system does not block others.
const TIMEOUT: Duration = Duration::from_secs(30);
/// The most symbolic references in a chain, as in Git.
const MAX_DEPTH: usize = 5;

/// A repository of this machine, bare or with a work tree.
#[derive(Clone, Debug)]
pub(super) struct LocalRepository {
    path: PathBuf,
    branch: Option<String>,
    directory: String,
}

impl LocalRepository {
    pub(super) fn new(path: PathBuf, branch: Option<String>, directory: String) -> Self {
        Self { path, branch, directory }
    }

    /// Returns the directory that contains `HEAD`.
    fn git_directory(&self) -> Result<PathBuf, RepositoryError> {
        let found = [self.path.clone(), self.path.join(".git")];
        let found =
            found.into_iter().find(|path| path.join("HEAD").is_file() && path.join("objects").is_dir());
        found.ok_or_else(|| invalid(format!("{} is not a Git repository", self.path.display())))
    }

    fn objects(&self) -> Result<Objects, RepositoryError> {
        Objects::open(self.git_directory()?.join("objects"))
    }

    fn current_commit(&self) -> Result<Option<Commit>, RepositoryError> {
        let references = Store::at(self.git_directory()?, gix_hash::Kind::Sha1);
        let error = |name: &str, error: String| invalid(format!("the reference {name} is invalid: {error}"));
        let mut name = match &self.branch {
            Some(branch) => format!("{HEADS}{branch}"),
            None => "HEAD".to_owned(),
        };
        for _ in 0..MAX_DEPTH {
            let found = references.try_find(&*name).map_err(|what| error(&name, what.to_string()))?;
            let branch = name.strip_prefix(HEADS).unwrap_or(&name).to_owned();
            match found.map(|reference| reference.target) {
                Some(Target::Symbolic(next)) => name = next.as_bstr().to_string(),
                Some(Target::Object(id)) => {
                    let id = id.to_hex().to_string().parse();
                    let id: CommitId = id.map_err(|_| error(&name, "it is not a commit".to_owned()))?;
                    return Ok(Some(Commit { id, branch }));
                }
                None => {
                    let all = references.iter().map_err(|what| error(&name, what.to_string()))?;
                    let mut all = all.all().map_err(|what| error(&name, what.to_string()))?;
                    let is_empty = !all.any(|reference| reference.is_ok());
                    return if is_empty { Ok(None) } else { Err(RepositoryError::BranchNotFound(branch)) };
                }
            }
        }
        Err(error(&name, "too many symbolic references".to_owned()))
    }

    async fn run<T: Send + 'static>(
        &self,
        access: impl FnOnce(&Self) -> Result<T, RepositoryError> + Send + 'static,
    ) -> Result<T, RepositoryError> {
        let repository = self.clone();
        match timeout(TIMEOUT, spawn_blocking(move || access(&repository))).await {
            Ok(Ok(result)) => result,
            Ok(Err(_)) => Err(invalid(format!("the access to {} has panicked", self.path.display()))),
            Err(_) => Err(invalid(format!("{} did not respond in time", self.path.display()))),
        }
    }
}

impl Repository for LocalRepository {
    fn resolve(&self) -> BoxFuture<'_, Result<Option<Commit>, RepositoryError>> {
        Box::pin(self.run(Self::current_commit))
    }

    fn read_file<'a>(
        &'a self,
        commit: &'a CommitId,
        path: &'a str,
        max_bytes: usize,
    ) -> BoxFuture<'a, Result<Option<Vec<u8>>, RepositoryError>> {
        let (commit, path) = (commit.clone(), path.to_owned());
        Box::pin(self.run(move |repository| {
            let objects = repository.objects()?;
            let Some(id) = objects.file(&commit, &path)? else { return Ok(None) };
            let content = objects.blob(&id, &path, max_bytes)?;
            content.map(Some).ok_or_else(|| invalid(format!("the object {id} is missing")))
        }))
    }

    fn list_agents<'a>(
        &'a self,
        commit: &'a CommitId,
    ) -> BoxFuture<'a, Result<Vec<AgentName>, RepositoryError>> {
        let commit = commit.clone();
        Box::pin(self.run(move |repository| repository.objects()?.agents(&commit, &repository.directory)))
    }
}
