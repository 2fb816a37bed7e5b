//! The current version of the identity file.

use std::{
    future::{pending, ready},
    path::Path,
    sync::Arc,
};

use arc_swap::ArcSwap;
use proto::AgentId;
use router::BoxFuture;
use secrecy::SecretString;
use tokio::sync::watch;

use super::{AgentAuthenticator, AgentIdentity, Identity, SourceUnavailable};
use crate::{config::ConfigError, token::TokenHash};

/// The current version of the identity file. Clones are cheap, and share the version.
#[derive(Clone, Debug)]
pub struct Identities {
    current: Arc<ArcSwap<Identity>>,
    changes: watch::Sender<()>,
    /// The names of the OIDC issuers in the configuration.
    issuers: Arc<[String]>,
}

impl Identities {
    /// Starts with this version.
    pub fn new(identity: Identity) -> Self {
        let current = Arc::new(ArcSwap::from_pointee(identity));
        Self { current, changes: watch::Sender::new(()), issuers: Arc::default() }
    }

    /// Refuses versions that refer to other OIDC issuers than these.
    #[must_use]
    pub fn with_issuers(self, names: Vec<String>) -> Self {
        Self { issuers: names.into(), ..self }
    }

    /// Returns the current version for a short use.
    pub fn load(&self) -> arc_swap::Guard<Arc<Identity>> {
        self.current.load()
    }

    /// Returns the current version for a longer use.
    pub fn load_full(&self) -> Arc<Identity> {
        self.current.load_full()
    }

    /// Replaces the version. Tunnels of agents and streams of callers whose token was removed are cut.
    pub fn replace(&self, mut identity: Identity) {
        identity.inherit(&self.load());
        self.current.store(Arc::new(identity));
        self.changes.send_replace(());
    }

    /// Completes when the agent is pinned to another cluster than this one.
    pub(crate) async fn pinned_elsewhere(&self, agent: AgentId, cluster: Option<&str>) {
        let mut changes = self.changes.subscribe();
        while self.load().cluster(agent).is_none_or(|pinned| Some(pinned) == cluster) {
            if changes.changed().await.is_err() {
                pending::<()>().await;
            }
        }
    }

    /// Reads a new version. If the file is invalid, the current version stays.
    pub fn reload(&self, file: &Path) -> Result<(), ConfigError> {
        let identity = Identity::read(file)?;
        identity.check_issuers(file, &self.issuers)?;
        self.replace(identity);
        Ok(())
    }
}

impl AgentAuthenticator for Identities {
    fn authenticate<'a>(
        &'a self,
        token: &'a SecretString,
    ) -> BoxFuture<'a, Result<Option<AgentIdentity>, SourceUnavailable>> {
        Box::pin(ready(Ok(self.load().agent(token))))
    }

    fn revoked<'a>(&'a self, agent: AgentId, token: &'a SecretString) -> BoxFuture<'a, ()> {
        let mut changes = self.changes.subscribe();
        let hash = TokenHash::of(token);
        Box::pin(async move {
            while self.load().is_token_of(agent, &hash) {
                if changes.changed().await.is_err() {
                    pending::<()>().await;
                }
            }
        })
    }
}
