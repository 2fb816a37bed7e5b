//! The graph of a cluster whose readers are woken by changes.

use std::{fmt, sync::Arc};

use kube::Client;
use parking_lot::Mutex;
use proto::{
    InstanceId,
    agent_configuration::graph::GraphSection,
    graph::{GraphStatus, Token},
};
use tokio::sync::watch;

use crate::{access::Access, graph::Graph, query::Query};

/// The configuration of a cache.
#[derive(Clone)]
pub struct CacheConfig {
    /// The client with which objects are loaded.
    pub client: Client,
    /// The namespaces to which agentk is limited.
    pub namespaces: Option<Vec<String>>,
    /// Section `graph` of the agent's configuration: limits, Secrets, rules for the health, and views.
    pub section: Arc<GraphSection>,
    /// The process.
    pub instance: InstanceId,
    /// The number of caches before this one in the process.
    pub generation: u64,
}

/// The graph of a cluster, which [`keep_loaded`](crate::keep_loaded) keeps up to date.
#[derive(Debug)]
pub struct Cache {
    config: CacheConfig,
    graph: Mutex<Graph>,
    /// The number of the last change.
    changes: watch::Sender<u64>,
}

impl Cache {
    /// Returns an empty cache.
    pub fn new(config: CacheConfig) -> Self {
        let graph = Mutex::new(Graph::new(config.section.limits.into()));
        Self { config, graph, changes: watch::Sender::new(0) }
    }

    /// Waits until the first resources are loaded: those of workloads. The time limit is that of the caller.
    pub async fn loaded(&self) {
        let mut changes = self.changes.subscribe();
        while !self.read(Graph::is_loaded) {
            if changes.changed().await.is_err() {
                return;
            }
        }
    }

    /// Reads the graph, which is locked meanwhile.
    pub fn read<T>(&self, read: impl FnOnce(&Graph) -> T) -> T {
        read(&self.graph.lock())
    }

    /// Changes the graph, and wakes readers.
    pub(crate) fn write<T>(&self, write: impl FnOnce(&mut Graph) -> T) -> T {
        let mut graph = self.graph.lock();
        let result = write(&mut graph);
        let position = graph.sequence() + graph.state_version();
        drop(graph);
        self.changes.send_if_modified(|known| std::mem::replace(known, position) != position);
        result
    }

    /// Returns what is loaded, and which views are computed.
    pub fn section(&self) -> &Arc<GraphSection> {
        &self.config.section
    }

    /// Returns a receiver that is notified of each change.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// Returns the position of a change.
    pub fn token(&self, sequence: u64) -> Token {
        let CacheConfig { instance, generation, .. } = self.config;
        Token { instance, generation, sequence }
    }

    /// Returns whether a position is one of this cache.
    pub fn is_own(&self, token: &Token) -> bool {
        (token.instance, token.generation) == (self.config.instance, self.config.generation)
    }

    /// Returns the state of the cache as a caller sees it.
    pub fn status(&self, access: &Access) -> GraphStatus {
        self.read(|graph| {
            let resources = graph.resource_statuses(access);
            GraphStatus {
                instance: self.config.instance,
                token: self.token(graph.sequence()),
                loaded: graph.is_loaded(),
                objects: resources.iter().map(|resource| resource.objects).sum(),
                resources,
                partial: graph.partial(&Query::default(), access),
            }
        })
    }

    pub(crate) fn config(&self) -> &CacheConfig {
        &self.config
    }
}

impl fmt::Debug for CacheConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { client: _, namespaces, section, instance, generation } = self;
        f.debug_struct("CacheConfig")
            .field("namespaces", namespaces)
            .field("section", section)
            .field("instance", instance)
            .field("generation", generation)
            .finish_non_exhaustive()
    }
}
