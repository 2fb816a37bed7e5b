//! A repository of a server. Its current trees are in a temporary directory, and files are fetched when they are read.
#![expect(
    clippy::disallowed_types,
    reason = "agents that read at the same time wait for one exchange with the server, which has a time limit"
)]

use std::{
    collections::HashMap,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use files::WorkDirectory;
use futures_util::future::BoxFuture;
use gix_hash::ObjectId;
use proto::AgentName;
use tokio::{
    sync::Mutex,
    task::spawn_blocking,
    time::{Instant, sleep_until, timeout},
};

use super::{
    https,
    objects::{Objects, invalid, object_id},
    protocol::{GitConnection, Session, TIMEOUT, Want},
    ssh,
};
use crate::{
    Commit, CommitId, FileSelection, Location, Repository, RepositoryError, RepositorySettings,
    SelectedFiles, WORK_DIRECTORY_PREFIX,
};

/// The shortest time between two lookups of the branch. Agents that read at the same time share one.
const MIN_INTERVAL: Duration = Duration::from_secs(1);
/// The largest pack of trees, in bytes.
const MAX_TREES: u64 = 64 << 20;
/// The largest pack of one file, in bytes, beyond the file itself.
const PACK_OVERHEAD: u64 = 64 << 10;
/// The files that are kept when the commit changes, in bytes.
const MAX_KEPT: usize = 16 << 20;

/// A repository of a server.
#[derive(Debug)]
pub(super) struct RemoteRepository {
    settings: RepositorySettings,
    /// The program for ssh.
    ssh: PathBuf,
    resolved: Mutex<Option<BranchLookup>>,
    cache: Mutex<Cache>,
}

/// The last lookup of the branch.
#[derive(Debug)]
struct BranchLookup {
    started: Instant,
    result: Result<Option<Commit>, RepositoryError>,
}

#[derive(Debug, Default)]
struct Cache {
    snapshot: Option<Snapshot>,
    files: HashMap<ObjectId, Vec<u8>>,
}

/// The trees of a commit.
#[derive(Clone, Debug)]
struct Snapshot {
    commit: CommitId,
    directory: Arc<WorkDirectory>,
}

/// Interrupts the work of a thread when it is dropped.
struct InterruptGuard(Arc<AtomicBool>);

impl RemoteRepository {
    pub(super) fn new(settings: RepositorySettings) -> Self {
        Self { settings, ssh: "ssh".into(), resolved: Mutex::default(), cache: Mutex::default() }
    }

    /// Replaces the version that is followed.
    #[cfg(test)]
    pub(super) fn following(mut self, reference: crate::Reference) -> Self {
        self.settings.reference = reference;
        self
    }

    /// Replaces the program for ssh.
    #[cfg(test)]
    pub(super) fn with_ssh(self, program: PathBuf) -> Self {
        Self { ssh: program, ..self }
    }

    /// Runs an exchange with the server on a thread of its own. `max_bytes` limits the response.
    ///
    /// The flag is set when the result is not needed any more.
    async fn exchange<T: Send + 'static>(
        &self,
        max_bytes: u64,
        run: impl FnOnce(&mut Session, &AtomicBool) -> Result<T, RepositoryError> + Send + 'static,
    ) -> Result<T, GitExchangeError> {
        let interrupted = Arc::new(AtomicBool::new(false));
        let _interrupt = InterruptGuard(Arc::clone(&interrupted));
        let error = |what: String| GitExchangeError {
            exceeded: false,
            error: invalid(format!("{}: {what}", self.settings.name())),
        };
        let exchange = async {
            let connection = match &self.settings.location {
                Location::Https { url, credentials, ca_certificate_file } => {
                    https::connect(url, credentials.as_ref(), ca_certificate_file.as_deref(), max_bytes).await
                }
                location => ssh::connect(&self.ssh, location, max_bytes),
            };
            let GitConnection { transport, exceeded, guard } = connection?;
            let work = spawn_blocking(move || run(&mut Session::open(transport)?, &interrupted)).await;
            drop(guard);
            let result = work.map_err(|_| invalid("the exchange has panicked".to_owned()))?;
            result.map_err(|error| {
                if exceeded.load(Relaxed) {
                    RepositoryError::TooLarge {
                        path: String::new(),
                        max_bytes: usize::try_from(max_bytes).unwrap_or(usize::MAX),
                    }
                } else {
                    error
                }
            })
        };
        match timeout(TIMEOUT, exchange).await {
            Ok(Ok(value)) => Ok(value),
            Ok(Err(RepositoryError::TooLarge { .. })) => Err(GitExchangeError {
                exceeded: true,
                ..error(format!("the response has over {max_bytes} bytes"))
            }),
            Ok(Err(RepositoryError::Unavailable(what))) => Err(error(what)),
            Ok(Err(RepositoryError::Refused(what))) => {
                let error = RepositoryError::Refused(format!("{}: {what}", self.settings.name()));
                Err(GitExchangeError { exceeded: false, error })
            }
            Ok(Err(other)) => Err(GitExchangeError { exceeded: false, error: other }),
            Err(_) => Err(error(format!("no response within {} s", TIMEOUT.as_secs()))),
        }
    }

    async fn current_commit(&self) -> Result<Option<Commit>, RepositoryError> {
        let asked = Instant::now();
        let mut resolved = self.resolved.lock().await;
        if let Some(last) = &*resolved {
            if last.started >= asked {
                return last.result.clone();
            }
            sleep_until(last.started + MIN_INTERVAL).await;
        }
        let (started, reference) = (Instant::now(), self.settings.reference.clone());
        let result = self.exchange(MAX_TREES, move |session, _| session.commit(&reference)).await;
        let result = result.map_err(|error| error.error);
        *resolved = Some(BranchLookup { started, result: result.clone() });
        result
    }

    /// Returns the trees of a commit, which it fetches unless they are those of the last commit.
    async fn snapshot(&self, cache: &mut Cache, commit: &CommitId) -> Result<Snapshot, RepositoryError> {
        if let Some(snapshot) = cache.snapshot.as_ref().filter(|snapshot| snapshot.commit == *commit) {
            return Ok(snapshot.clone());
        }
        let directory = WorkDirectory::create(WORK_DIRECTORY_PREFIX).and_then(|directory| {
            std::fs::create_dir_all(directory.path().join(PACKS))?;
            Ok(directory)
        });
        let directory = directory.map_err(|error| {
            invalid(format!("no temporary directory (TMPDIR) for {}: {error}", self.settings.name()))
        })?;
        let (packs, id) = (directory.path().join(PACKS), object_id(commit)?);
        let fetch = move |session: &mut Session, interrupted: &AtomicBool| {
            session.fetch(Want::Trees(id), &packs, interrupted)
        };
        self.exchange(MAX_TREES, fetch).await.map_err(|error| error.error)?;
        let snapshot = Snapshot { commit: commit.clone(), directory: Arc::new(directory) };
        cache.snapshot = Some(snapshot.clone());
        Ok(snapshot)
    }

    async fn file(
        &self,
        commit: &CommitId,
        path: &str,
        max_bytes: usize,
    ) -> Result<Option<Vec<u8>>, RepositoryError> {
        let mut cache = self.cache.lock().await;
        let snapshot = self.snapshot(&mut cache, commit).await?;
        let found = {
            let (commit, path) = (commit.clone(), path.to_owned());
            snapshot.read(move |objects| {
                let Some(id) = objects.file(&commit, &path)? else { return Ok(None) };
                Ok(Some((id, objects.blob(&id, &path, max_bytes)?)))
            })
        };
        let (id, content) = match found.await? {
            None => return Ok(None),
            Some((_, Some(content))) => return Ok(Some(content)),
            Some((id, None)) => (id, cache.files.get(&id).cloned()),
        };
        let too_large = || RepositoryError::TooLarge { path: path.to_owned(), max_bytes };
        if let Some(content) = content {
            return if content.len() > max_bytes { Err(too_large()) } else { Ok(Some(content)) };
        }
        let packs = snapshot.directory.path().join(PACKS);
        let fetch = move |session: &mut Session, interrupted: &AtomicBool| {
            session.fetch(Want::Files(vec![id]), &packs, interrupted)
        };
        let limit = u64::try_from(max_bytes).unwrap_or(u64::MAX).saturating_add(PACK_OVERHEAD);
        self.exchange(limit, fetch)
            .await
            .map_err(|error| if error.exceeded { too_large() } else { error.error })?;
        let named = path.to_owned();
        let content = snapshot.read(move |objects| objects.blob(&id, &named, max_bytes)).await?;
        let content = content.ok_or_else(|| invalid(format!("the server did not send the object {id}")))?;
        if cache.files.values().map(Vec::len).sum::<usize>() + content.len() > MAX_KEPT {
            cache.files.clear();
        }
        cache.files.insert(id, content.clone());
        Ok(Some(content))
    }
}

impl RemoteRepository {
    /// Reads the selected files of a commit. Those that the snapshot does not have are fetched together.
    async fn selected(
        &self,
        commit: &CommitId,
        selection: &Arc<FileSelection>,
    ) -> Result<SelectedFiles, RepositoryError> {
        // The lock is held, so that projects of one repository do not fetch the same files.
        let mut cache = self.cache.lock().await;
        let snapshot = self.snapshot(&mut cache, commit).await?;
        let read = |snapshot: &Snapshot| {
            let (commit, selection) = (commit.clone(), Arc::clone(selection));
            snapshot.clone().read_owned(move |objects| {
                let listed = objects.list(&commit, &selection)?;
                objects.files(&commit, listed, &selection)
            })
        };
        let (files, missing) = read(&snapshot).await?;
        if missing.is_empty() {
            return Ok(files);
        }
        let packs = snapshot.directory.path().join(PACKS);
        let limits = selection.limits;
        let overhead = PACK_OVERHEAD.saturating_mul(missing.len() as u64);
        let max_bytes = (limits.bytes as u64).saturating_add(overhead);
        let fetch = move |session: &mut Session, interrupted: &AtomicBool| {
            session.fetch(Want::Files(missing), &packs, interrupted)
        };
        self.exchange(max_bytes, fetch)
            .await
            .map_err(|error| if error.exceeded { selection.too_many_bytes() } else { error.error })?;
        let (files, missing) = read(&snapshot).await?;
        match missing.first() {
            Some(id) => Err(invalid(format!("the server did not send the object {id}"))),
            None => Ok(files),
        }
    }
}

/// The directory of packs in the directory of a snapshot.
const PACKS: &str = "objects/pack";

struct GitExchangeError {
    exceeded: bool,
    error: RepositoryError,
}

impl Snapshot {
    /// Reads objects on a thread of its own.
    async fn read_owned<T: Send + 'static>(
        self,
        read: impl FnOnce(&Objects) -> Result<T, RepositoryError> + Send + 'static,
    ) -> Result<T, RepositoryError> {
        self.read(read).await
    }

    /// Reads objects on a thread of its own.
    async fn read<T: Send + 'static>(
        &self,
        read: impl FnOnce(&Objects) -> Result<T, RepositoryError> + Send + 'static,
    ) -> Result<T, RepositoryError> {
        let directory: PathBuf = self.directory.path().join("objects");
        // Keeps the directory while the thread reads.
        let snapshot = self.clone();
        let work = spawn_blocking(move || {
            let _snapshot = snapshot;
            read(&Objects::open(directory)?)
        });
        work.await.map_err(|_| invalid("the access to a snapshot has panicked".to_owned()))?
    }
}

impl Drop for InterruptGuard {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

impl Repository for RemoteRepository {
    fn resolve(&self) -> BoxFuture<'_, Result<Option<Commit>, RepositoryError>> {
        Box::pin(self.current_commit())
    }

    fn read_file<'a>(
        &'a self,
        commit: &'a CommitId,
        path: &'a str,
        max_bytes: usize,
    ) -> BoxFuture<'a, Result<Option<Vec<u8>>, RepositoryError>> {
        Box::pin(self.file(commit, path, max_bytes))
    }

    fn read_files<'a>(
        &'a self,
        commit: &'a CommitId,
        selection: &'a Arc<FileSelection>,
    ) -> BoxFuture<'a, Result<SelectedFiles, RepositoryError>> {
        Box::pin(self.selected(commit, selection))
    }

    fn list_agents<'a>(
        &'a self,
        commit: &'a CommitId,
    ) -> BoxFuture<'a, Result<Vec<AgentName>, RepositoryError>> {
        Box::pin(async move {
            let snapshot = self.snapshot(&mut *self.cache.lock().await, commit).await?;
            let (commit, directory) = (commit.clone(), self.settings.directory.clone());
            snapshot.read(move |objects| objects.agents(&commit, &directory)).await
        })
    }
}
