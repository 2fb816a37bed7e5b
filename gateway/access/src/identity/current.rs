//! The current version of the identity file.

use std::{
    future::{pending, ready},
    net::IpAddr,
    path::Path,
    sync::Arc,
};

use arc_swap::ArcSwap;
use futures_util::future::BoxFuture;
use proto::AgentId;
use secrecy::SecretString;
use settings::ConfigError;
use tokio::sync::watch;

use super::{AgentAuthenticator, AgentIdentity, Identity, SourceUnavailable};
use crate::token::TokenHash;

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

    /// Returns a receiver of every later version.
    pub fn changes(&self) -> watch::Receiver<()> {
        self.changes.subscribe()
    }

    /// Replaces the version. Tunnels of agents whose token was removed are cut, and streams of callers whose token was removed or whose
    /// rights differ.
    pub fn replace(&self, mut identity: Identity) {
        identity.inherit(&self.load());
        self.current.store(Arc::new(identity));
        self.changes.send_replace(());
    }

    /// Reads a new version. If the file is invalid, the current version stays.
    pub fn reload(&self, file: &Path) -> Result<(), ConfigError> {
        let identity = Identity::read(file)?;
        identity.check_issuers(file, &self.issuers)?;
        self.replace(identity);
        Ok(())
    }
}

impl Identities {
    /// Completes when the agent may no longer connect from the address.
    pub async fn forbidden_from(&self, agent: AgentId, address: IpAddr) {
        self.until(|identity| !identity.agent_may_connect_from(agent, address)).await;
    }

    /// Completes when the agent is pinned to another cluster than this one.
    pub async fn pinned_elsewhere(&self, agent: AgentId, cluster: Option<&str>) {
        self.until(|identity| identity.cluster(agent).is_some_and(|pinned| Some(pinned) != cluster)).await;
    }

    /// Completes when the file has an agent with this id.
    pub async fn listed(&self, agent: AgentId) {
        self.until(|identity| identity.name(agent).is_some()).await;
    }

    /// Completes when a version fulfils the condition.
    async fn until(&self, condition: impl Fn(&Identity) -> bool) {
        let mut changes = self.changes.subscribe();
        while !condition(&self.load()) {
            if changes.changed().await.is_err() {
                pending::<()>().await;
            }
        }
    }
}

impl AgentAuthenticator for Identities {
    fn authenticate<'a>(
        &'a self,
        token: &'a SecretString,
    ) -> BoxFuture<'a, Result<Option<AgentIdentity>, SourceUnavailable>> {
        Box::pin(ready(Ok(self.load().agent(token))))
    }

    fn lookup<'a>(&'a self, token: &'a SecretString) -> BoxFuture<'a, Option<bool>> {
        Box::pin(ready(Some(self.load().agent(token).is_some())))
    }

    fn revoked<'a>(&'a self, agent: AgentId, token: &'a SecretString) -> BoxFuture<'a, ()> {
        let hash = TokenHash::of(token);
        Box::pin(self.until(move |identity| !identity.is_token_of(agent, &hash)))
    }
}
