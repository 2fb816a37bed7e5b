//! Several replicas, and the pipes between them.
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

use std::{collections::HashMap, sync::Arc, time::Duration};

use agent::Services;
use base64::{Engine as _, prelude::BASE64_STANDARD};
use gateway::{
    config::Config,
    peers::{
        Fleet,
        dial::open,
        link::{Dial, Driving},
        seal::Secret,
        trouble::Trouble,
    },
    token::{self, Holder},
};
use parking_lot::Mutex;
use proto::{AgentId, Epoch, ReplicaId};
use router::{BoxFuture, MemoryStore, Replica, Route, RouteStore as _};
use tokio::io::DuplexStream;
use tokio_util::sync::CancellationToken;
use tunnel::{Settings, Tunnel};

use crate::world::{RunningAgent, World, configuration};

/// The only agent that there is.
pub(crate) const AGENT: AgentId = AgentId(1);

/// Replicas that share a directory.
pub(crate) struct Several {
    pub(crate) store: Arc<MemoryStore>,
    pub(crate) pipes: Arc<Pipes>,
    pub(crate) replicas: Vec<World>,
}

/// The way between replicas, by their address.
#[derive(Debug)]
pub(crate) struct Pipes {
    ends: Mutex<HashMap<String, End>>,
    settings: Settings,
}

/// What is found at an address.
#[derive(Clone, Debug)]
pub(crate) enum End {
    /// A replica.
    Replica(Wire),
    /// Nothing accepts.
    Nobody,
    /// Somebody accepts and never says a word.
    Silence,
    /// Whoever gets the other end of a connection.
    Stranger(Stranger),
}

/// Speaks at the other end of a connection.
pub(crate) type Stranger = fn(DuplexStream);

/// How to reach a replica, and how it is lost.
#[derive(Clone)]
pub(crate) struct Wire {
    serve: Arc<dyn Fn(DuplexStream) + Send + Sync>,
    /// As the death of a process does.
    cut: CancellationToken,
    /// As SIGSTOP, or a network that drops everything, does.
    freeze: CancellationToken,
}

impl std::fmt::Debug for Wire {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Wire")
    }
}

/// What every replica knows unless a test says otherwise.
pub(crate) fn secret(byte: u8) -> Secret {
    Secret::parse(&BASE64_STANDARD.encode([byte; 32])).unwrap()
}

impl Several {
    pub(crate) fn new(count: usize) -> Self {
        Self::with(count, |_| {})
    }

    pub(crate) fn with(count: usize, edit: impl Fn(&mut Config)) -> Self {
        Self::knowing(&vec![Some(secret(1)); count], edit)
    }

    /// One replica for each secret.
    pub(crate) fn knowing(secrets: &[Option<Secret>], edit: impl Fn(&mut Config)) -> Self {
        let mut config = configuration();
        edit(&mut config);
        let store = Arc::new(MemoryStore::default());
        let pipes = Arc::new(Pipes { ends: Mutex::default(), settings: config.peer_settings() });
        let tokens = (token::new(Holder::Agent), token::new(Holder::Caller));
        let replica = |(index, secret): (usize, &Option<Secret>)| {
            let id = ReplicaId::random();
            let fleet = Fleet {
                replica: id,
                store: Arc::clone(&store) as _,
                dial: Arc::clone(&pipes) as _,
                secret: secret.clone(),
            };
            let world = World::replica(fleet, config.clone(), tokens.clone(), None, None);
            store.join(Replica { id, url: address(index) });
            let host = Arc::clone(&world.kas.host);
            let serve = move |io| {
                let host = Arc::clone(&host);
                tokio::spawn(async move { host.serve(io, "pipe").await });
            };
            let (cut, freeze) = (CancellationToken::new(), CancellationToken::new());
            pipes.put(index, End::Replica(Wire { serve: Arc::new(serve), cut, freeze }));
            world
        };
        let replicas = secrets.iter().enumerate().map(replica).collect();
        Self { store, pipes, replicas }
    }

    /// Starts an agent whose tunnels end on one replica.
    pub(crate) async fn agent(&self, index: usize, services: Services) -> RunningAgent {
        let agent = self.replicas[index].agent(services).await;
        self.announced(index).await;
        agent
    }

    /// Waits until the directory knows that a replica holds the agent.
    pub(crate) async fn announced(&self, index: usize) {
        while !self.owners().await.contains(&self.id(index)) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    pub(crate) async fn owners(&self) -> Vec<ReplicaId> {
        self.store.lookup(AGENT).await.unwrap().routes.iter().map(|route| route.replica).collect()
    }

    pub(crate) fn id(&self, index: usize) -> ReplicaId {
        self.replicas[index].kas.agents.replica
    }

    /// The directory says that a replica holds the agent, and goes on saying so.
    pub(crate) async fn claim(&self, replica: ReplicaId) {
        self.store.announce(AGENT, Route { replica, epoch: Epoch(u64::MAX) }).await.unwrap();
    }

    /// The directory knows of a replica that is none of ours, and says that it holds the agent.
    pub(crate) async fn invent(&self, index: usize, end: End) -> ReplicaId {
        let id = ReplicaId::random();
        self.pipes.put(index, end);
        self.store.join(Replica { id, url: address(index) });
        self.claim(id).await;
        id
    }

    /// As SIGKILL does: connections end, nobody accepts. The directory still names it.
    pub(crate) async fn kill(&self, index: usize) {
        self.claim(self.id(index)).await;
        let end = self.pipes.put(index, End::Nobody);
        if let Some(End::Replica(wire)) = end {
            wire.cut.cancel();
        }
        self.replicas[index].cut_tunnels();
    }

    /// As SIGSTOP does: connections stay, and nothing moves.
    pub(crate) fn freeze(&self, index: usize) {
        let end = self.pipes.put(index, End::Silence);
        if let Some(End::Replica(wire)) = end {
            wire.freeze.cancel();
        }
    }
}

fn address(index: usize) -> String {
    format!("http://replica-{index}:8155")
}

impl Pipes {
    pub(crate) fn put(&self, index: usize, end: End) -> Option<End> {
        self.ends.lock().insert(address(index), end)
    }

    /// A connection to a replica's private listener.
    pub(crate) fn connect(&self, index: usize) -> DuplexStream {
        self.reach(&address(index)).unwrap()
    }

    fn reach(&self, url: &str) -> Option<DuplexStream> {
        let (near, mut left) = tokio::io::duplex(64 << 10);
        match self.ends.lock().get(url).cloned()? {
            End::Nobody => return None,
            End::Stranger(serve) => serve(left),
            End::Silence => {
                tokio::spawn(async move {
                    std::future::pending::<()>().await;
                    drop(left);
                });
            }
            End::Replica(Wire { serve, cut, freeze }) => {
                let (mut right, far) = tokio::io::duplex(64 << 10);
                serve(far);
                tokio::spawn(async move {
                    tokio::select! {
                        _ = tokio::io::copy_bidirectional(&mut left, &mut right) => {}
                        () = cut.cancelled() => {}
                        () = freeze.cancelled() => std::future::pending().await,
                    }
                });
            }
        }
        Some(near)
    }
}

impl Dial for Pipes {
    fn dial(&self, replica: &Replica) -> BoxFuture<'static, Result<(Tunnel, Driving), Trouble>> {
        let io = self.reach(&replica.url);
        let settings = self.settings.clone();
        Box::pin(async move {
            let io = io.ok_or_else(|| Trouble::Unreachable("connection refused".to_owned()))?;
            open(io, &settings).await
        })
    }
}
