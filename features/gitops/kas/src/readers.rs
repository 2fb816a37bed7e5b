//! The agents with tunnels to this replica, as readers of repositories.

use std::{
    collections::HashMap,
    ops::Deref,
    sync::{Arc, Weak},
};

use access::AgentIdentity;
use kas_core::{attachments::OpeningTunnel, configuration::ConfigurationState};
use parking_lot::Mutex;
use proto::{AgentId, ServiceName};
use secrecy::SecretString;
use tokio::sync::watch;

/// An agent as the reader of repositories, in one of its tunnels.
#[derive(Debug)]
pub(super) struct AgentReader {
    pub(super) agent: AgentIdentity,
    /// The token of the agent, with which GitLab is asked what the agent may read.
    pub(super) token: SecretString,
    pub(super) configuration: watch::Receiver<ConfigurationState>,
    /// False if the process of agentk at the other end of the tunnel runs without GitOps, and has no manifests.
    pub(super) serves_gitops: bool,
}

/// The readers of this replica, by agent. Clones are cheap, and share the list.
#[derive(Clone, Debug, Default)]
pub(super) struct AgentReaders(Arc<Mutex<HashMap<AgentId, Vec<Weak<AgentReader>>>>>);

/// Keeps a reader in the list while its tunnel is open.
#[derive(Debug)]
pub(super) struct ReaderGuard {
    reader: Arc<AgentReader>,
    readers: AgentReaders,
}

impl AgentReaders {
    /// Adds the reader of a tunnel.
    pub(super) fn add(&self, opening: &OpeningTunnel<'_>) -> ReaderGuard {
        let reader = Arc::new(AgentReader {
            agent: opening.agent.clone(),
            token: opening.token.clone(),
            configuration: opening.configuration.clone(),
            serves_gitops: opening.hello.serves(ServiceName::MANIFESTS),
        });
        self.0.lock().entry(reader.agent.id).or_default().push(Arc::downgrade(&reader));
        ReaderGuard { reader, readers: self.clone() }
    }

    /// Returns the reader of the last tunnel that an agent has opened, if it has one. One that serves GitOps is before all others.
    pub(super) fn last(&self, agent: AgentId) -> Option<Arc<AgentReader>> {
        let all = self.0.lock();
        let mut readers = all.get(&agent)?.iter().rev().filter_map(Weak::upgrade);
        let last = readers.next()?;
        if last.serves_gitops {
            return Some(last);
        }
        Some(readers.find(|reader| reader.serves_gitops).unwrap_or(last))
    }
}

impl Deref for ReaderGuard {
    type Target = AgentReader;

    fn deref(&self) -> &AgentReader {
        &self.reader
    }
}

impl Drop for ReaderGuard {
    fn drop(&mut self) {
        let (id, own) = (self.reader.agent.id, Arc::as_ptr(&self.reader));
        let mut all = self.readers.0.lock();
        if let Some(readers) = all.get_mut(&id) {
            readers.retain(|reader| reader.as_ptr() != own);
            if readers.is_empty() {
                all.remove(&id);
            }
        }
    }
}
