//! Plain Git repositories: of this machine, or of a server by https or ssh.
//!
//! There is no work tree, and no configuration of a repository is read: objects and references are data. Nothing of a repository
//! is executed.

use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::Mutex;

use crate::{Location, Repository, RepositorySettings, local::LocalRepository, remote::RemoteRepository};

/// The time after which the cache of an unused repository may be removed.
const IDLE: Duration = Duration::from_secs(3600);

/// Repositories by their settings, so that all agents of a repository share its cache.
#[derive(Debug, Default)]
pub struct GitRepositories(Mutex<HashMap<Arc<RepositorySettings>, Entry>>);

#[derive(Debug)]
struct Entry {
    repository: Arc<dyn Repository>,
    used: Instant,
}

impl GitRepositories {
    /// Returns the repository with these settings.
    pub fn get(&self, settings: &Arc<RepositorySettings>) -> Arc<dyn Repository> {
        let (mut all, now) = (self.0.lock(), Instant::now());
        if let Some(entry) = all.get_mut(settings) {
            entry.used = now;
            return Arc::clone(&entry.repository);
        }
        all.retain(|_, entry| now.duration_since(entry.used) < IDLE);
        let repository = open(settings);
        all.insert(Arc::clone(settings), Entry { repository: Arc::clone(&repository), used: now });
        repository
    }
}

/// Returns a repository that shares its cache with no other one.
pub fn open(settings: &RepositorySettings) -> Arc<dyn Repository> {
    match &settings.location {
        Location::Local(path) => {
            let (reference, directory) = (settings.reference.clone(), settings.directory.clone());
            Arc::new(LocalRepository::new(path.clone(), reference, directory))
        }
        Location::Https { .. } | Location::Ssh { .. } => Arc::new(RemoteRepository::new(settings.clone())),
    }
}
