//! The directory: which replicas hold an agent.

use std::{collections::HashMap, fmt, pin::Pin, sync::Arc, time::SystemTime};

use proto::{AgentId, Epoch, InstanceId, ReplicaId};

/// A boxed future: a store is chosen at run time, and its round trip dwarfs the box.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// One replica that says it holds an agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    /// The replica.
    pub replica: ReplicaId,
    /// Orders what this replica says of this agent.
    pub epoch: Epoch,
}

/// A replica, as the others reach it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Replica {
    /// Names the process.
    pub id: ReplicaId,
    /// Of its listener for peers: scheme, host and port.
    pub url: String,
}

/// What the directory knows of an agent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Record {
    /// Who says that they hold it; in no order.
    pub routes: Vec<Route>,
    /// When its last route was withdrawn; `None` if it has one, or never had.
    pub gone_since: Option<SystemTime>,
}

/// One agentk process of an agent, as a replica sees it. What it says of itself is its word.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Instance {
    /// Names the process.
    pub id: InstanceId,
    /// agentk's version.
    pub version: String,
    /// The pod's namespace.
    pub pod_namespace: Option<String>,
    /// The pod's name.
    pub pod_name: Option<String>,
    /// The version of its cluster.
    pub kubernetes_version: Option<String>,
    /// When the oldest of its tunnels to this replica was opened, to the second.
    pub since: SystemTime,
    /// How many tunnels it has to this replica.
    pub tunnels: u16,
}

/// What one replica holds of one agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holding {
    /// Whose.
    pub agent: AgentId,
    /// Where.
    pub replica: ReplicaId,
    /// The agent's processes that have tunnels there; in no order.
    pub instances: Vec<Instance>,
}

/// What the directory knows of some agents, for whoever lists them.
#[derive(Clone, Debug, Default)]
pub struct Holdings {
    /// What each live replica holds of them; in no order.
    pub held: Vec<Holding>,
    /// When they left some replica last, as far as it is known; of those that are held it means nothing.
    pub gone: HashMap<AgentId, SystemTime>,
    /// Why what other replicas hold is missing, if it is.
    pub missing: Option<StoreError>,
}

/// How the directory fares.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Health {
    /// It knows what the other replicas know.
    Healthy,
    /// It answers from memory.
    Degraded {
        /// Until then it was healthy, or had not started.
        since: SystemTime,
        /// What is wrong, in a line.
        why: Arc<str>,
    },
}

/// The directory did not answer.
#[derive(Clone, Debug, thiserror::Error)]
#[error("the route store is unavailable: {0}")]
pub struct StoreError(pub String);

/// The directory that replicas share.
///
/// The contract, which the tests in `tests/stores/contract.rs` hold every store to:
///
/// * **It is a hint.** A record may be stale: a route may name a replica that has lost the agent, or that is dead. A
///   missing route is not an error. Whoever acts on a record is prepared for a refusal.
/// * **Every call may be repeated.** Announcing or withdrawing twice is announcing or withdrawing once.
/// * **Epochs fence.** Of what one replica says of one agent, a lower epoch never replaces or removes a higher one.
///   What one replica says never touches what another said.
/// * **Changes are pushed.** A future from [`RouteStore::change`] that was made before a change completes after it, and
///   a lookup then knows of it.
pub trait RouteStore: fmt::Debug + Send + Sync + 'static {
    /// This replica holds the agent.
    fn announce(&self, agent: AgentId, route: Route) -> BoxFuture<'_, Result<(), StoreError>>;

    /// Which of the agent's processes the replica sees, for whoever lists agents. Told before [`RouteStore::announce`],
    /// and again when it changes; forgotten with the route.
    fn describe(&self, agent: AgentId, replica: ReplicaId, instances: Vec<Instance>);

    /// This replica holds the agent no more.
    fn withdraw(&self, agent: AgentId, route: Route) -> BoxFuture<'_, Result<(), StoreError>>;

    /// What is known of the agent.
    fn lookup(&self, agent: AgentId) -> BoxFuture<'_, Result<Record, StoreError>>;

    /// The replica of this id, if it lives: from memory, so that a request asks without waiting.
    fn replica(&self, id: ReplicaId) -> Option<Replica>;

    /// Every other replica that lives: from memory.
    fn replicas(&self) -> Vec<Replica>;

    /// How many tunnels a replica has that are not about to leave, for [`RouteStore::loads`] of all; `None` if it takes
    /// no more, as before the first word.
    fn tell_load(&self, replica: ReplicaId, tunnels: Option<u32>);

    /// What live replicas said of themselves last, seconds ago; nothing where it is not known who lives.
    fn loads(&self) -> Vec<(ReplicaId, u32)>;

    /// Completes when the agent's record changes after this call.
    fn change(&self, agent: AgentId) -> BoxFuture<'static, ()>;

    /// What every live replica holds of these agents: not from memory, and at a cost that does not grow with the agents
    /// that were not asked for.
    fn holdings<'a>(&'a self, agents: &'a [AgentId]) -> BoxFuture<'a, Holdings>;

    /// Whether it answers from memory only.
    fn health(&self) -> Health;
}
