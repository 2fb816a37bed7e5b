//! [`RouteStore`]: the records that name the replicas that hold an agent.

use std::{collections::HashMap, fmt, sync::Arc, time::SystemTime};

use futures_util::future::BoxFuture;
use proto::{AgentId, AgentName, Epoch, Hello, InstanceId, ReplicaId};
use serde::{Deserialize, Serialize};
use tokio::sync::broadcast;

use crate::waiters::RouteChange;

/// An announcement of one replica that it holds an agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    /// The replica that holds the agent.
    pub replica: ReplicaId,
    /// The order of this replica's announcements for this agent; a higher epoch is newer.
    pub epoch: Epoch,
}

/// The address of a replica for its peers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Replica {
    /// The id of the process.
    pub id: ReplicaId,
    /// The URL of its private listener: scheme, host and port.
    pub url: String,
}

/// The routes of one agent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AgentRoutes {
    /// The routes, one for each replica that holds the agent, in no order.
    pub routes: Vec<Route>,
    /// The time when the last route was withdrawn; `None` if the agent has a route, or never had one.
    pub disconnected_since: Option<SystemTime>,
}

/// Facts that an agentk process reports about itself. They are not trusted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReportedInfo {
    /// The version of agentk.
    pub version: String,
    /// The namespace of the pod.
    pub pod_namespace: Option<String>,
    /// The name of the pod.
    pub pod_name: Option<String>,
    /// The version of the cluster.
    pub kubernetes_version: Option<String>,
    /// The UID of the cluster's namespace `kube-system`.
    #[serde(default)]
    pub cluster: Option<String>,
    /// The part of the cluster that the process serves, as a short text.
    #[serde(default)]
    pub scope: Option<String>,
}

/// One agentk process of an agent, as a replica sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Instance {
    /// The id of the process.
    pub id: InstanceId,
    /// Its version, its pod and its cluster.
    pub reported: ReportedInfo,
    /// The time when the oldest of its tunnels to this replica was opened, in whole seconds.
    pub since: SystemTime,
    /// The number of its tunnels to this replica.
    pub tunnels: u16,
}

/// The instances of one agent that have tunnels to one replica.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplicaInstances {
    /// The agent.
    pub agent: AgentId,
    /// The replica.
    pub replica: ReplicaId,
    /// The instances, in no order.
    pub instances: Vec<Instance>,
}

/// An agent of a project, which no configuration of the replicas names.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ProjectAgent {
    /// The agent.
    pub agent: AgentId,
    /// Its name.
    pub name: AgentName,
    /// The id of its project.
    pub project: u64,
    /// The path of its project, if it is known.
    pub project_path: Option<Arc<str>>,
}

impl From<&Hello> for ReportedInfo {
    fn from(hello: &Hello) -> Self {
        Self {
            version: hello.version.clone(),
            pod_namespace: hello.pod_namespace.clone(),
            pod_name: hello.pod_name.clone(),
            kubernetes_version: hello.kubernetes_version.clone(),
            cluster: hello.cluster.clone(),
            scope: hello.scope.as_ref().map(ToString::to_string),
        }
    }
}

/// The result of [`RouteStore::list_project_agents`].
#[derive(Clone, Debug, Default)]
pub struct ProjectAgentList {
    /// The agents that a replica holds, in order of their ids.
    pub agents: Vec<ProjectAgent>,
    /// The reason why agents of other replicas are missing, or `None` if the list is complete.
    pub error: Option<StoreError>,
}

/// The result of [`RouteStore::list_instances`].
#[derive(Clone, Debug, Default)]
pub struct InstanceList {
    /// One entry for each live replica and agent that it holds, in no order.
    pub connected: Vec<ReplicaInstances>,
    /// The times when agents last disconnected from a replica, where known. An entry for an agent that is in
    /// `connected` has no meaning.
    pub disconnected: HashMap<AgentId, SystemTime>,
    /// The reason why the entries of other replicas are missing, or `None` if the list is complete.
    pub error: Option<StoreError>,
}

/// The health of a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreHealth {
    /// The store has the routes of all replicas.
    Healthy,
    /// The store answers from memory.
    Degraded {
        /// The time when the store was healthy last, or when it was created.
        since: SystemTime,
        /// The cause, in one line.
        reason: Arc<str>,
    },
}

/// The error of a store that cannot answer.
#[derive(Clone, Debug, thiserror::Error)]
#[error("the route store is unavailable: {0}")]
pub struct StoreError(pub String);

/// The routes that replicas share.
///
/// The contract, which `tests/stores/contract.rs` checks for every store:
///
/// * **It is a hint.** Records may be stale: a route may name a replica that has lost the agent or that is dead. A
///   missing route is no error. A replica refuses a request for an agent that it does not hold, and the sender handles
///   the refusal.
/// * **Every call is idempotent.** Announcing or withdrawing twice has the effect of once.
/// * **Epochs fence.** Among the announcements of one replica for one agent, a lower epoch never replaces or removes a
///   higher one. A replica never changes the routes of another replica.
/// * **Changes are pushed.** A future from [`RouteStore::changed`] that was created before a change completes after it,
///   and a lookup then returns the change.
///
/// Its futures are boxed: the store is chosen at run time, and its round trip costs far more than the box.
pub trait RouteStore: fmt::Debug + Send + Sync + 'static {
    /// Publishes that this replica holds the agent. Other replicas may see it later than the future completes.
    fn announce(&self, agent: AgentId, route: Route) -> BoxFuture<'_, Result<(), StoreError>>;

    /// Publishes the instances of the agent that have tunnels to the replica, for [`RouteStore::list_instances`].
    ///
    /// Call it before [`RouteStore::announce`] and after each change. [`RouteStore::withdraw`] removes them.
    fn set_instances(&self, agent: AgentId, replica: ReplicaId, instances: Vec<Instance>);

    /// Sets the name and the project of an agent that this replica holds, for [`RouteStore::list_project_agents`].
    ///
    /// Call it before [`RouteStore::announce`]. [`RouteStore::withdraw`] removes them.
    fn set_project(&self, agent: ProjectAgent, replica: ReplicaId);

    /// Publishes that this replica no longer holds the agent.
    fn withdraw(&self, agent: AgentId, route: Route) -> BoxFuture<'_, Result<(), StoreError>>;

    /// Returns the routes of the agent, or an error if neither the store nor memory has an answer.
    fn lookup(&self, agent: AgentId) -> BoxFuture<'_, Result<AgentRoutes, StoreError>>;

    /// Returns the replica with this id from memory, or `None` if it is not alive.
    fn replica(&self, id: ReplicaId) -> Option<Replica>;

    /// Returns every other live replica from memory.
    fn replicas(&self) -> Vec<Replica>;

    /// Publishes the number of tunnels to the replica that do not drain, for [`RouteStore::loads`] of all replicas.
    /// `None`, which is the initial value, means that the replica takes no more tunnels.
    fn set_load(&self, replica: ReplicaId, tunnels: Option<u32>);

    /// Returns the number of tunnels of each live replica that takes more, a few seconds old. The list is empty while
    /// the store is degraded.
    fn loads(&self) -> Vec<(ReplicaId, u32)>;

    /// Completes when the routes of the agent change after this call.
    fn changed(&self, agent: AgentId) -> BoxFuture<'static, ()>;

    /// Returns the instances of these agents at every live replica.
    ///
    /// The list is not read from memory. Its cost does not depend on the number of other agents.
    fn list_instances<'a>(&'a self, agents: &'a [AgentId]) -> BoxFuture<'a, InstanceList>;

    /// Returns the agents of a project, or of all projects, that a live replica holds.
    ///
    /// The list is not read from memory. For one project, its cost does not depend on the number of agents.
    fn list_project_agents(&self, project: Option<u64>) -> BoxFuture<'_, ProjectAgentList>;

    /// Returns a receiver of every later change of routes. It reports an error if it misses some: any agent may have changed then.
    fn route_changes(&self) -> broadcast::Receiver<RouteChange>;

    /// Returns whether the store answers from memory only, and why.
    fn health(&self) -> StoreHealth;
}
