//! The directory: which replicas hold an agent.

use std::{fmt, pin::Pin, time::SystemTime};

use proto::{AgentId, Epoch, ReplicaId};

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

/// The directory did not answer.
#[derive(Debug, thiserror::Error)]
#[error("the route store is unavailable: {0}")]
pub struct StoreError(pub String);

/// The directory that replicas share.
///
/// The contract, which the tests in `tests/contract.rs` hold every store to:
///
/// * **It is a hint.** A record may be stale: a route may name a replica that has lost the agent, or that is dead. A
///   missing route is not an error. Whoever acts on a record is prepared for a refusal.
/// * **Every call may be repeated.** Announcing or withdrawing twice is announcing or withdrawing once.
/// * **Epochs fence.** Of what one replica says of one agent, a lower epoch never replaces or removes a higher one.
///   What one replica says never touches what another said.
/// * **Changes are pushed.** A future from [`RouteStore::change`] that was made before a change completes after it.
pub trait RouteStore: fmt::Debug + Send + Sync + 'static {
    /// This replica holds the agent.
    fn announce(&self, agent: AgentId, route: Route) -> BoxFuture<'_, Result<(), StoreError>>;

    /// This replica holds the agent no more.
    fn withdraw(&self, agent: AgentId, route: Route) -> BoxFuture<'_, Result<(), StoreError>>;

    /// What is known of the agent.
    fn lookup(&self, agent: AgentId) -> BoxFuture<'_, Result<Record, StoreError>>;

    /// The replica of this id, if it lives: from memory, so that a request asks without waiting.
    fn replica(&self, id: ReplicaId) -> Option<Replica>;

    /// Completes when the agent's record changes after this call.
    fn change(&self, agent: AgentId) -> BoxFuture<'static, ()>;
}
