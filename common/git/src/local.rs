//! A repository of this machine.

use std::{path::PathBuf, sync::Arc, time::Duration};

use futures_util::future::BoxFuture;
use gix_ref::{Target, file::Store};
use proto::AgentName;
use tokio::{task::spawn_blocking, time::timeout};

use super::{
    HEADS,
    objects::{Objects, invalid},
};
use crate::{Commit, CommitId, FileSelection, Reference, Repository, RepositoryError, SelectedFiles};

/// The time for one access. A hung file system does not block others.
const TIMEOUT: Duration = Duration::from_secs(30);
/// The most symbolic references in a chain, as in Git.
const MAX_DEPTH: usize = 5;

/// A repository of this machine, bare or with a work tree.
#[derive(Clone, Debug)]
pub(super) struct LocalRepository {
    path: PathBuf,
    reference: Reference,
    directory: String,
}

impl LocalRepository {
    pub(super) fn new(path: PathBuf, reference: Reference, directory: String) -> Self {
        Self { path, reference, directory }
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
        let mut name = match (&self.reference, self.reference.full_name()) {
            (Reference::Commit(id), _) => return Ok(Some(Commit { id: id.clone(), branch: String::new() })),
            (_, name) => name.unwrap_or_default(),
        };
        for _ in 0..MAX_DEPTH {
            let found = references.try_find(&*name).map_err(|what| error(&name, what.to_string()))?;
            let branch = name.strip_prefix(HEADS).unwrap_or(&name).to_owned();
            match found.map(|reference| reference.target) {
                Some(Target::Symbolic(next)) => name = next.as_bstr().to_string(),
                Some(Target::Object(id)) => {
                    // A tag with a message is an object of its own.
                    let id = self.objects()?.peel(id)?.to_hex().to_string().parse();
                    let id: CommitId = id.map_err(|_| error(&name, "it is not a commit".to_owned()))?;
                    return Ok(Some(Commit { id, branch }));
                }
                None => {
                    let all = references.iter().map_err(|what| error(&name, what.to_string()))?;
                    let mut all = all.all().map_err(|what| error(&name, what.to_string()))?;
                    let is_empty = !all.any(|reference| reference.is_ok());
                    let missing = match &self.reference {
                        Reference::Default => Reference::Branch(branch),
                        configured => configured.clone(),
                    };
                    return if is_empty {
                        Ok(None)
                    } else {
                        Err(RepositoryError::ReferenceNotFound(missing))
                    };
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

    fn read_files<'a>(
        &'a self,
        commit: &'a CommitId,
        selection: &'a Arc<FileSelection>,
    ) -> BoxFuture<'a, Result<SelectedFiles, RepositoryError>> {
        let (commit, selection) = (commit.clone(), Arc::clone(selection));
        Box::pin(self.run(move |repository| {
            let objects = repository.objects()?;
            let listed = objects.list(&commit, &selection)?;
            let (files, missing) = objects.files(&commit, listed, &selection)?;
            match missing.first() {
                Some(id) => Err(invalid(format!("the object {id} is missing"))),
                None => Ok(files),
            }
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
