//! Reads the identity file again when it changes.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, SystemTime},
};

use arc_swap::ArcSwap;
use tokio::{sync::watch, time::interval};
use tokio_util::sync::CancellationToken;

use super::Identity;
use crate::config::ConfigError;

/// How often the file is looked at. Asking for its time is cheap and, unlike inotify, sees through the symbolic
/// links by which Kubernetes replaces mounted files.
const LOOK: Duration = Duration::from_secs(2);

/// The identities now in force. Cheap to clone and to read.
#[derive(Clone, Debug)]
pub struct Identities {
    current: Arc<ArcSwap<Identity>>,
    changes: watch::Sender<()>,
}

impl Identities {
    /// These, until replaced.
    pub fn new(identity: Identity) -> Self {
        Self { current: Arc::new(ArcSwap::from_pointee(identity)), changes: watch::Sender::new(()) }
    }

    /// Those in force.
    pub fn load(&self) -> arc_swap::Guard<Arc<Identity>> {
        self.current.load()
    }

    /// Puts others in force: what is revoked by it is cut.
    pub fn replace(&self, identity: Identity) {
        self.current.store(Arc::new(identity));
        self.changes.send_replace(());
    }

    /// Sees every replacement after this call.
    pub fn changes(&self) -> watch::Receiver<()> {
        self.changes.subscribe()
    }
}

/// Keeps the identities as the file has them, until `stop`. A version that cannot be used is refused and reported, and
/// the last good one stays.
pub async fn watch(identities: Identities, file: PathBuf, stop: CancellationToken) {
    let mut looks = interval(LOOK);
    let mut seen = stamp(&file);
    loop {
        tokio::select! {
            _ = looks.tick() => {}
            () = stop.cancelled() => return,
        }
        let now = stamp(&file);
        if now == seen {
            continue;
        }
        seen = now;
        match read(&file).await {
            Ok(identity) => {
                let (agents, tokens) = identity.counts();
                tracing::info!(agents, caller.tokens = tokens, "identity file reloaded");
                identities.replace(identity);
            }
            Err(error) => {
                tracing::error!(%error, "identity file refused; the last good version stays in force")
            }
        }
    }
}

async fn read(file: &Path) -> Result<Identity, ConfigError> {
    let file = file.to_owned();
    let reading = tokio::task::spawn_blocking(move || Identity::read(&file));
    reading.await.expect("reading a file does not panic")
}

/// What changes when the file does.
fn stamp(file: &Path) -> Option<(SystemTime, u64)> {
    let metadata = std::fs::metadata(file).ok()?;
    Some((metadata.modified().ok()?, metadata.len()))
}
