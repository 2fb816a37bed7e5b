//! The files that agentk reads again when they change.
//!
//! Tokens and certificates are read where they are used. They are followed as well, so that a version that cannot be used is
//! reported before it is needed.

use std::{fmt::Display, path::PathBuf, pin::Pin};

use files::{ReloadHealth, WatchedFile, follow};
use tokio::sync::watch;

type Task = Pin<Box<dyn Future<Output = ()> + Send>>;

/// One task for each file, or for each set of files that are used together.
pub struct FileFollowers {
    health: ReloadHealth,
    requests: watch::Sender<()>,
    tasks: Vec<Task>,
}

impl FileFollowers {
    /// Creates followers that read their files at each new value of `requests`, too.
    pub fn new(health: ReloadHealth, requests: watch::Sender<()>) -> Self {
        Self { health, requests, tasks: Vec::new() }
    }

    /// Adds files that `check` reads whenever one of them changes. It reads their metadata, which blocks.
    pub fn check<E: Display + Send + 'static>(
        &mut self,
        key: &str,
        paths: Vec<PathBuf>,
        check: impl Fn() -> Result<(), E> + Clone + Send + 'static,
    ) {
        if !paths.is_empty() {
            self.add(key, |file, requests| follow(file, paths, requests, check));
        }
    }

    /// Adds a file that is followed by the task that `follow` returns.
    pub fn add<F: Future<Output = ()> + Send + 'static>(
        &mut self,
        key: &str,
        follow: impl FnOnce(WatchedFile, watch::Receiver<()>) -> F,
    ) {
        self.tasks.push(Box::pin(follow(self.health.file(key), self.requests.subscribe())));
    }

    /// Returns the tasks that follow the files. None of them completes.
    pub fn into_tasks(self) -> Vec<Task> {
        self.tasks
    }
}
