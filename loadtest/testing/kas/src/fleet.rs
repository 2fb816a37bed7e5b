//! Several replicas in this process, connected by in-memory pipes.

use std::{collections::HashMap, sync::Arc, time::Duration};

use access::token::{self, Holder};
use agentk_core::Services;
use base64::{Engine as _, prelude::BASE64_STANDARD};
use gateway::config::Config;
use kas_core::peers::{ConnectFuture, PeerConnector, PeerError, ReplicaContext, handshake};
use kas_gitlab::GitLabClient;
use parking_lot::Mutex;
use proto::{AgentId, Epoch, ReplicaId};
use settings::Secret;
use store::{MemoryStore, Replica, Route, RouteStore as _};
use tokio::io::DuplexStream;
use tokio_util::sync::CancellationToken;
use tunnel::TunnelConfig;

use crate::{
    issuer::TestIssuer,
    world::{RunningAgent, World, configuration},
};

/// The only agent.
pub const AGENT: AgentId = AgentId(1);

/// Replicas that share a route store and a simulated network.
pub struct TestFleet {
    pub store: Arc<MemoryStore>,
    pub pipes: Arc<PipeNetwork>,
    pub replicas: Vec<World>,
}

/// The simulated network between replicas, by address.
#[derive(Debug)]
pub struct PipeNetwork {
    ends: Mutex<HashMap<String, PeerBehaviour>>,
    settings: TunnelConfig,
}

/// The behaviour of an address.
#[derive(Clone, Debug)]
pub enum PeerBehaviour {
    /// A replica serves connections.
    Replica(ReplicaConnector),
    /// Connections are refused.
    Refuse,
    /// Connections are accepted and never served.
    Silent,
    /// A function serves connections.
    Custom(ServeConnection),
}

/// Serves the other end of a connection.
pub type ServeConnection = fn(DuplexStream);

/// The connections to a replica, and the faults that can be injected into them.
#[derive(Clone)]
pub struct ReplicaConnector {
    serve: Arc<dyn Fn(DuplexStream) + Send + Sync>,
    /// Closes the connections, as the death of a process does.
    cut: CancellationToken,
    /// Stops the connections without closing them, as SIGSTOP or a black hole does.
    freeze: CancellationToken,
}

impl std::fmt::Debug for ReplicaConnector {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ReplicaConnector")
    }
}

/// Returns a shared secret of 32 equal bytes. By default every replica has `secret(1)`.
pub fn secret(byte: u8) -> Secret {
    Secret::parse(&BASE64_STANDARD.encode([byte; 32])).unwrap()
}

impl TestFleet {
    /// Creates replicas with the default configuration.
    pub fn new(count: usize) -> Self {
        Self::with(count, |_| {})
    }

    /// Creates replicas with an edited configuration.
    pub fn with(count: usize, edit: impl Fn(&mut Config)) -> Self {
        Self::with_secrets(&vec![Some(secret(1)); count], edit)
    }

    /// Creates replicas whose agents come from GitLab.
    pub fn with_gitlab(count: usize, gitlab: impl Fn() -> GitLabClient, agent_token: &str) -> Self {
        Self::with_gitlab_and(count, gitlab, agent_token, |_| {})
    }

    /// Creates replicas with an edited configuration whose agents come from GitLab.
    pub fn with_gitlab_and(
        count: usize,
        gitlab: impl Fn() -> GitLabClient,
        agent_token: &str,
        edit: impl Fn(&mut Config),
    ) -> Self {
        let mut config = configuration();
        edit(&mut config);
        let replica = |fleet, config| World::gitlab_replica(fleet, config, gitlab(), agent_token.to_owned());
        Self::of_replicas(&vec![Some(secret(1)); count], config, replica)
    }

    /// Creates replicas whose callers may have tokens of an OIDC issuer.
    pub fn with_issuer(count: usize, issuer: &TestIssuer) -> Self {
        let tokens = (token::new(Holder::Agent), token::new(Holder::Caller));
        let replica = |fleet, _| World::issuer_replica(fleet, issuer, tokens.clone());
        Self::of_replicas(&vec![Some(secret(1)); count], configuration(), replica)
    }

    /// Creates a replica for each secret.
    pub fn with_secrets(secrets: &[Option<Secret>], edit: impl Fn(&mut Config)) -> Self {
        let mut config = configuration();
        edit(&mut config);
        let tokens = (token::new(Holder::Agent), token::new(Holder::Caller));
        Self::of_replicas(secrets, config, |fleet, config| {
            World::replica(fleet, config, tokens.clone(), None, None)
        })
    }

    fn of_replicas(
        secrets: &[Option<Secret>],
        config: Config,
        create: impl Fn(ReplicaContext, Config) -> World,
    ) -> Self {
        let store = Arc::new(MemoryStore::default());
        let pipes = Arc::new(PipeNetwork { ends: Mutex::default(), settings: config.peer_settings() });
        let replica = |(index, secret): (usize, &Option<Secret>)| {
            let id = ReplicaId::random();
            let fleet = ReplicaContext {
                replica: Replica { id, url: address(index) },
                store: Arc::clone(&store) as _,
                connector: Arc::clone(&pipes) as _,
                secret: secret.clone(),
            };
            let world = create(fleet, config.clone());
            store.join(Replica { id, url: address(index) });
            let server = Arc::clone(&world.kas.peer_server);
            let serve = move |io| {
                let server = Arc::clone(&server);
                tokio::spawn(async move { server.serve(io, "pipe", Arc::default()).await });
            };
            let (cut, freeze) = (CancellationToken::new(), CancellationToken::new());
            pipes
                .put(index, PeerBehaviour::Replica(ReplicaConnector { serve: Arc::new(serve), cut, freeze }));
            world
        };
        let replicas = secrets.iter().enumerate().map(replica).collect();
        Self { store, pipes, replicas }
    }

    /// Starts an agent whose tunnels end at one replica.
    pub async fn agent(&self, index: usize, services: Services) -> RunningAgent {
        let agent = self.replicas[index].agent(services).await;
        self.wait_until_announced(index).await;
        agent
    }

    /// Waits until the route store names a replica as owner of the agent.
    pub async fn wait_until_announced(&self, index: usize) {
        while !self.owners().await.contains(&self.id(index)) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    /// Returns the owners of the agent in the route store.
    pub async fn owners(&self) -> Vec<ReplicaId> {
        self.store.lookup(AGENT).await.unwrap().routes.iter().map(|route| route.replica).collect()
    }

    /// Returns the id of a replica.
    pub fn id(&self, index: usize) -> ReplicaId {
        self.replicas[index].kas.agents.replica
    }

    /// Announces a replica as owner of the agent, with the highest epoch, so that it stays.
    pub async fn announce_owner(&self, replica: ReplicaId) {
        self.store.announce(AGENT, Route { replica, epoch: Epoch(u64::MAX) }).await.unwrap();
    }

    /// Announces an additional replica, with this behaviour, as owner of the agent.
    pub async fn announce_peer(&self, index: usize, end: PeerBehaviour) -> ReplicaId {
        let id = ReplicaId::random();
        self.pipes.put(index, end);
        self.store.join(Replica { id, url: address(index) });
        self.announce_owner(id).await;
        id
    }

    /// Closes the connections of a replica and refuses new ones, as SIGKILL does. The route store still names it.
    pub async fn kill(&self, index: usize) {
        self.announce_owner(self.id(index)).await;
        let end = self.pipes.put(index, PeerBehaviour::Refuse);
        if let Some(PeerBehaviour::Replica(connector)) = end {
            connector.cut.cancel();
        }
        self.replicas[index].cut_tunnels();
    }

    /// Stops the connections of a replica without closing them, as SIGSTOP does.
    pub fn freeze(&self, index: usize) {
        let end = self.pipes.put(index, PeerBehaviour::Silent);
        if let Some(PeerBehaviour::Replica(connector)) = end {
            connector.freeze.cancel();
        }
    }
}

/// Returns the URL of a replica.
pub fn address(index: usize) -> String {
    format!("http://replica-{index}:8155")
}

impl PipeNetwork {
    /// Sets the behaviour of the address of a replica, and returns the previous one.
    pub fn put(&self, index: usize, end: PeerBehaviour) -> Option<PeerBehaviour> {
        self.ends.lock().insert(address(index), end)
    }

    /// Connects to the private listener of a replica.
    pub fn connect(&self, index: usize) -> DuplexStream {
        self.reach(&address(index)).unwrap()
    }

    fn reach(&self, url: &str) -> Option<DuplexStream> {
        let (near, mut left) = tokio::io::duplex(64 << 10);
        match self.ends.lock().get(url).cloned()? {
            PeerBehaviour::Refuse => return None,
            PeerBehaviour::Custom(serve) => serve(left),
            PeerBehaviour::Silent => {
                tokio::spawn(async move {
                    std::future::pending::<()>().await;
                    drop(left);
                });
            }
            PeerBehaviour::Replica(ReplicaConnector { serve, cut, freeze }) => {
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

impl PeerConnector for PipeNetwork {
    fn connect(&self, replica: &Replica) -> ConnectFuture {
        let io = self.reach(&replica.url);
        let settings = self.settings.clone();
        Box::pin(async move {
            let io = io.ok_or_else(|| PeerError::Unreachable("connection refused".to_owned()))?;
            handshake(io, &settings).await
        })
    }
}
