//! The identities now in force.

use std::{path::Path, sync::Arc};

use arc_swap::ArcSwap;
use tokio::sync::watch;

use super::Identity;
use crate::config::ConfigError;

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

    /// Those in force, to be kept for a while.
    pub fn load_full(&self) -> Arc<Identity> {
        self.current.load_full()
    }

    /// Puts others in force: tunnels of agents and streams of callers whose token is gone are cut.
    pub fn replace(&self, mut identity: Identity) {
        identity.succeed(&self.load());
        self.current.store(Arc::new(identity));
        self.changes.send_replace(());
    }

    /// Puts those of a file in force, if it can be used.
    pub fn reload(&self, file: &Path) -> Result<(), ConfigError> {
        self.replace(Identity::read(file)?);
        Ok(())
    }

    /// Sees every replacement after this call.
    pub fn changes(&self) -> watch::Receiver<()> {
        self.changes.subscribe()
    }
}
