//! [`RedisStore`]: the records of several replicas in Redis.
//!
//! ```text
//!   announce, withdraw ──► LocalRoutes ──► SyncTask ──► {kas}:routes:<id>    the routes of this replica
//!                                             │ └─────► {kas}:replica:<id>   its heartbeat
//!                                             └───────► kas:events ─┐        its changes
//!                                                                   ▼
//!   lookup ──► LookupCache ──(miss)──► {kas}:routes:<others>        Members, LookupCache, Waiters of the others
//! ```
//!
//! * **A replica writes only its own records**, and all of them expire together: no record of an agent is refreshed,
//!   the records of a dead replica end with it, and no replica changes the records of another. Within a replica, one
//!   task writes, and the writes of an earlier connection are rejected by their generation.
//! * **Memory is the source of truth.** Callers do not wait until Redis has their change. After each connection all
//!   records are written to a second key, which then replaces the first.
//! * **Memory serves while Redis does not**: local agents, live replicas, earlier lookups.
//! * **Nothing polls.** Changes of other replicas arrive as events. Events have sequence numbers; after a gap, every
//!   cached lookup is invalid.
//! * **Values in Redis are untrusted.** Their size is limited in Redis, and they are parsed as foreign bytes.
//!
//! | file | job |
//! |---|---|
//! | `routes` | the routes of this replica: announced, withdrawn, not yet in Redis |
//! | `sync` | the task that connects, writes routes and heartbeats, and receives events |
//! | `members` | which other replicas are alive |
//! | `lookup` | reads the routes of other replicas, and keeps them until an event invalidates them |
//! | `instances` | reads the instances of agents at other replicas |
//! | `replica_events` | handles the events of other replicas, and removes the records of dead ones |
//! | `disabled` | the record of the kill switch: reads it, keeps it, writes it back |
//! | `leases` | the leases of tunnels that kas dials |
//! | `looks` | looks at repositories, which replicas share |
//! | `sessions` | the sessions of browsers |
//! | `environments` | the environments that agents name |
//! | `events` | the log of events, and its copy in memory |
//! | `cursors` | how far each webhook has delivered the log |
//! | `pushes` | pushes to Git repositories, which wake all replicas |
//! | `views` | the last values of the views of agents |
//! | `project_events` | the latest events of Git projects |
//! | `projects` | reads the agents of projects at other replicas |
//! | `client`, `settings` | connect to a server, to Sentinels or to a Cluster |
//! | `wire`, `keys` | values, keys and Lua scripts in Redis; [`SCHEMA`] lists the keys and their cost |
//! | `check` | tests a server for `kas check-config --live` |

mod check;
mod client;
mod cursors;
mod disabled;
mod environments;
mod error;
mod events;
mod instances;
mod keys;
mod leases;
mod looks;
mod lookup;
mod members;
mod project_events;
mod projects;
mod pushes;
mod record_mac;
mod replica_events;
mod routes;
mod sessions;
mod settings;
mod sync;
mod views;
pub mod wire;

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, SystemTime},
};

use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use proto::{AgentId, ReplicaId};
use tokio::{
    sync::{Notify, broadcast, watch},
    time::Instant,
};

use self::{
    client::RedisConnection,
    disabled::DisabledState,
    keys::{DEPLOYMENTS_TTL, Keys, Scripts},
    lookup::LookupCache,
    members::Members,
    routes::LocalRoutes,
    wire::{Heartbeat, WireError},
};
use crate::{
    events::EventTable,
    gcra::{AddressLimit, AddressRefusal, Gcra},
    pushes::{GitPush, PushEvents},
    routes::{
        AgentRoutes, Instance, InstanceList, ProjectAgent, ProjectAgentList, Replica, Route, RouteStore,
        StoreError, StoreHealth,
    },
    waiters::{RouteChange, RouteChanges, Waiters},
};

pub use self::check::{RedisCheck, RedisReport};
pub use self::disabled::{DisabledEditor, DisabledRecord};
pub use self::error::{RedisCheckError, RedisStoreError, ReplaceError};
pub use self::keys::SCHEMA;
pub use self::looks::SharedLook;
pub use self::record_mac::{RecordAuthenticator, RecordPlace, UrlAuthenticator};
pub use self::settings::{
    RedisAddress, RedisAddressError, RedisServers, RedisSettings, RedisSettingsError, RedisTlsFiles,
};
pub use self::sync::SyncTask;
pub use self::wire::MAX_DISABLED;

/// The place of the records of deployments.
const DEPLOYMENTS: RecordPlace<'_> = RecordPlace { kind: "deployment", key: "" };
/// The number of deployments that are kept.
pub const MAX_DEPLOYMENTS: usize = 1000;

/// The records that replicas share through Redis. Cheap to clone.
#[derive(Clone, Debug)]
pub struct RedisStore(Arc<RedisState>);

/// The state that the store shares with its [`SyncTask`].
#[derive(Debug)]
struct RedisState {
    /// The id of this replica.
    replica: ReplicaId,
    /// The heartbeat at the start, without the load.
    heartbeat: Heartbeat,
    load: Mutex<Option<u32>>,
    settings: RedisSettings,
    keys: Keys,
    scripts: Scripts,
    routes: Mutex<LocalRoutes>,
    /// Wakes the sync task when `routes` has dirty entries.
    routes_changed: Notify,
    /// The receivers of pushes in this process.
    pushes: PushEvents,
    /// The pushes that other replicas have to learn of.
    unsent_pushes: Mutex<Vec<GitPush>>,
    /// Wakes the sync task when `unsent_pushes` has entries.
    pushed: Notify,
    /// The copy of the log of events.
    logged: Mutex<EventTable>,
    /// Wakes the sync task when the log has more events.
    log_changed: Notify,
    route_changes: RouteChanges,
    members: Mutex<Members>,
    /// Dead replicas whose records are still in Redis.
    dead: Mutex<Vec<ReplicaId>>,
    cache: LookupCache,
    waiters: Waiters,
    /// The present connection; `None` while there is none.
    connection: Mutex<Option<RedisConnection>>,
    /// The time of the last warning about the heartbeat of a replica that was ignored.
    rejected_replica_logged: Mutex<Option<Instant>>,
    /// The versions of the record of the kill switch.
    disabled: Mutex<DisabledState>,
    /// The record of the kill switch that Redis had last.
    disabled_records: watch::Sender<Option<Arc<[u8]>>>,
    /// Wakes the sync task when the record of the kill switch has changed.
    disabled_changed: Notify,
    health: watch::Sender<StoreHealth>,
    metrics: RedisMetrics,
}

impl RedisStore {
    /// Creates the store of `replica`, which runs version `kas`. It uses Redis only while its [`SyncTask`] runs.
    pub fn new(settings: RedisSettings, replica: Replica, kas: &str) -> (Self, SyncTask) {
        let now = SystemTime::now();
        let heartbeat = Heartbeat {
            url: replica.url,
            fleet: settings.fleet.clone(),
            kas: kas.to_owned(),
            started: wire::unix_seconds(now),
            tunnels: None,
            mac: None,
        };
        let reason = "Redis was not reached yet".into();
        let shared = Arc::new(RedisState {
            replica: replica.id,
            load: Mutex::new(None),
            keys: Keys::new(&settings.prefix),
            scripts: Scripts::new(),
            routes: Mutex::default(),
            routes_changed: Notify::new(),
            pushes: PushEvents::default(),
            unsent_pushes: Mutex::default(),
            pushed: Notify::new(),
            logged: Mutex::default(),
            log_changed: Notify::new(),
            route_changes: RouteChanges::default(),
            members: Mutex::new(Members::new(replica.id, heartbeat.fleet.clone())),
            heartbeat,
            settings,
            dead: Mutex::default(),
            cache: LookupCache::new(),
            waiters: Waiters::default(),
            connection: Mutex::new(None),
            rejected_replica_logged: Mutex::default(),
            disabled: Mutex::default(),
            disabled_records: watch::Sender::new(None),
            disabled_changed: Notify::new(),
            health: watch::Sender::new(StoreHealth::Degraded { since: now, reason }),
            metrics: RedisMetrics::default(),
        });
        (Self(Arc::clone(&shared)), SyncTask::new(shared))
    }

    /// Returns the counters of the store.
    pub fn metrics(&self) -> &RedisMetrics {
        &self.0.metrics
    }

    /// Completes once the store is healthy: Redis has all routes of this replica.
    pub async fn wait_until_healthy(&self) {
        // No error: the sender lives as long as `self`.
        _ = self.0.health.subscribe().wait_for(|health| *health == StoreHealth::Healthy).await;
    }

    /// Returns a receiver of every change of the store's health.
    pub fn health_changes(&self) -> watch::Receiver<StoreHealth> {
        self.0.health.subscribe()
    }

    /// Applies the rate limit of a key over all replicas: admits an event, or returns how long to wait. The error is
    /// that Redis did not answer.
    pub(crate) async fn admit(&self, key: [u8; 16], gcra: Gcra) -> Result<Result<(), Duration>, StoreError> {
        let shared = &self.0;
        let mut script = shared.scripts.admit.key(shared.keys.limit(&hex(key)));
        script.arg(micros(gcra.interval)).arg(micros(gcra.burst));
        let (_, wait): (usize, u64) = shared.query(&script).await?;
        Ok(if wait == 0 { Ok(()) } else { Err(Duration::from_micros(wait)) })
    }

    /// Applies limits of an address over all replicas: counts a connection for each, or returns the first one that is
    /// reached. The error is that Redis did not answer.
    pub(crate) async fn admit_address(
        &self,
        address: [u8; 16],
        limits: impl Iterator<Item = (AddressLimit, Gcra)>,
    ) -> Result<Result<(), AddressRefusal>, StoreError> {
        let (shared, address) = (&self.0, hex(address));
        let mut script = shared.scripts.admit.prepare_invoke();
        let mut order = Vec::with_capacity(2);
        for (limit, gcra) in limits {
            script.key(shared.keys.address_limit(&address, limit.as_str()));
            script.arg(micros(gcra.interval)).arg(micros(gcra.burst));
            order.push(limit);
        }
        let (position, wait): (usize, u64) = shared.query(&script).await?;
        let reached = position.checked_sub(1).and_then(|index| order.get(index));
        let refusal =
            reached.map(|limit| AddressRefusal { limit: *limit, wait: Duration::from_micros(wait) });
        Ok(refusal.map_or(Ok(()), Err))
    }

    /// Adds a record to the list of deployments, which all replicas share. Only the newest [`MAX_DEPLOYMENTS`] are kept.
    ///
    /// # Errors
    ///
    /// Redis did not answer.
    pub async fn push_deployment(&self, record: &str) -> Result<(), StoreError> {
        let record = self.0.seal(DEPLOYMENTS, record);
        self.query_deployments(0, Some(&record), None).await.map(drop)
    }

    /// Replaces a record of the list of deployments, unless another replica has replaced it.
    ///
    /// # Errors
    ///
    /// Redis did not answer.
    pub async fn replace_deployment(&self, old: &str, new: &str) -> Result<(), StoreError> {
        let [old, new] = [old, new].map(|record| self.0.seal(DEPLOYMENTS, record));
        self.query_deployments(0, Some(&new), Some(&old)).await.map(drop)
    }

    /// Returns the records of [`RedisStore::push_deployment`], the last one that was added or replaced first. They are not trusted if the replicas share no secret.
    ///
    /// # Errors
    ///
    /// Redis did not answer.
    pub async fn deployments(&self) -> Result<Vec<Vec<u8>>, StoreError> {
        let records = self.query_deployments(MAX_DEPLOYMENTS, None, None).await?;
        Ok(records.into_iter().filter_map(|record| self.0.open(DEPLOYMENTS, record)).collect())
    }

    async fn query_deployments(
        &self,
        returned: usize,
        record: Option<&str>,
        replaced: Option<&str>,
    ) -> Result<Vec<Vec<u8>>, StoreError> {
        let shared = &self.0;
        let mut script = shared.scripts.deployments.key(shared.keys.deployments());
        script.arg(MAX_DEPLOYMENTS).arg(returned).arg(DEPLOYMENTS_TTL.as_millis() as u64);
        for record in record.into_iter().chain(replaced) {
            script.arg(record);
        }
        shared.query(&script).await
    }

    /// Returns whether a replica has found that GitLab does not know the token with this digest. False without Redis.
    pub async fn is_unknown_token(&self, digest: [u8; 16]) -> bool {
        let shared = &self.0;
        let script = shared.scripts.unknown.key(shared.keys.unknown(&hex(digest)));
        matches!(shared.query::<u8>(&script).await, Ok(1))
    }

    /// Records for `ttl` that GitLab does not know the token with this digest.
    ///
    /// # Errors
    ///
    /// Redis did not answer.
    pub async fn mark_unknown_token(&self, digest: [u8; 16], ttl: Duration) -> Result<(), StoreError> {
        let shared = &self.0;
        let mut script = shared.scripts.unknown.key(shared.keys.unknown(&hex(digest)));
        script.arg(ttl.as_millis().max(1) as u64);
        shared.query::<u8>(&script).await.map(|_| ())
    }
}

impl RedisState {
    /// Returns the heartbeat with the present load, signed with the present key.
    fn heartbeat(&self) -> Heartbeat {
        let Heartbeat { url, fleet, .. } = &self.heartbeat;
        let mac = self.settings.urls.as_ref().map(|urls| urls.sign(self.replica, fleet, url));
        Heartbeat { tunnels: *self.load.lock(), mac, ..self.heartbeat.clone() }
    }

    /// Checks that the heartbeat is of the replica, and not of somebody else who can write to Redis.
    fn authenticate(&self, replica: ReplicaId, heartbeat: &Heartbeat) -> Result<(), WireError> {
        let Some(urls) = &self.settings.urls else { return Ok(()) };
        let Heartbeat { url, fleet, mac, .. } = heartbeat;
        match mac {
            Some(mac) if urls.verify(replica, fleet, url, mac) => Ok(()),
            _ => Err(WireError::InvalidMac),
        }
    }

    fn connection(&self) -> Result<RedisConnection, StoreError> {
        let connection = self.connection.lock().clone();
        let lost = || StoreError("the connection to Redis was lost".to_owned());
        connection.ok_or_else(|| self.degraded().unwrap_or_else(lost))
    }

    /// Returns the reason why the store answers from memory, if it does.
    fn degraded(&self) -> Option<StoreError> {
        match &*self.health.borrow() {
            StoreHealth::Degraded { reason, .. } => Some(StoreError(reason.to_string())),
            StoreHealth::Healthy => None,
        }
    }

    /// Stops using this connection. The sync task then makes another.
    fn discard(&self, connection: &RedisConnection) {
        let mut current = self.connection.lock();
        if current.as_ref().is_some_and(|current| current.is_same(connection)) {
            *current = None;
            connection.failed.notify_one();
        }
    }
}

impl RouteStore for RedisStore {
    fn announce(&self, agent: AgentId, route: Route) -> BoxFuture<'_, Result<(), StoreError>> {
        Box::pin(async move {
            let shared = &self.0;
            if route.replica != shared.replica {
                return Err(StoreError("a replica can announce only its own routes".to_owned()));
            }
            if shared.routes.lock().announce(agent, route.epoch) {
                shared.routes_changed.notify_one();
                shared.wake(agent);
            }
            Ok(())
        })
    }

    fn set_instances(&self, agent: AgentId, replica: ReplicaId, instances: Vec<Instance>) {
        if replica == self.0.replica {
            self.0.routes.lock().set_instances(agent, instances);
            self.0.routes_changed.notify_one();
        }
    }

    fn set_project(&self, agent: ProjectAgent, replica: ReplicaId) {
        if replica == self.0.replica {
            self.0.routes.lock().set_project(agent);
            self.0.routes_changed.notify_one();
        }
    }

    fn withdraw(&self, agent: AgentId, route: Route) -> BoxFuture<'_, Result<(), StoreError>> {
        Box::pin(async move {
            let shared = &self.0;
            let local = route.replica == shared.replica;
            if local && shared.routes.lock().withdraw(agent, route.epoch, SystemTime::now()) {
                shared.routes_changed.notify_one();
                shared.wake(agent);
            }
            Ok(())
        })
    }

    fn lookup(&self, agent: AgentId) -> BoxFuture<'_, Result<AgentRoutes, StoreError>> {
        Box::pin(self.0.lookup(agent))
    }

    fn replica(&self, id: ReplicaId) -> Option<Replica> {
        if id == self.0.replica {
            return Some(Replica { id, url: self.0.heartbeat.url.clone() });
        }
        self.0.members.lock().get(id).cloned()
    }

    fn replicas(&self) -> Vec<Replica> {
        self.0.members.lock().replicas()
    }

    fn set_load(&self, replica: ReplicaId, tunnels: Option<u32>) {
        if replica == self.0.replica {
            *self.0.load.lock() = tunnels;
        }
    }

    fn loads(&self) -> Vec<(ReplicaId, u32)> {
        if self.health() != StoreHealth::Healthy {
            return Vec::new();
        }
        let own = *self.0.load.lock();
        let mut loads = self.0.members.lock().loads();
        loads.extend(own.map(|own| (self.0.replica, own)));
        loads
    }

    fn changed(&self, agent: AgentId) -> BoxFuture<'static, ()> {
        Box::pin(self.0.waiters.wait(agent))
    }

    fn list_instances<'a>(&'a self, agents: &'a [AgentId]) -> BoxFuture<'a, InstanceList> {
        Box::pin(self.0.list_instances(agents))
    }

    fn list_project_agents(&self, project: Option<u64>) -> BoxFuture<'_, ProjectAgentList> {
        Box::pin(self.0.list_project_agents(project))
    }

    fn route_changes(&self) -> broadcast::Receiver<RouteChange> {
        self.0.route_changes.subscribe()
    }

    fn health(&self) -> StoreHealth {
        self.0.health.borrow().clone()
    }
}

fn hex(digest: [u8; 16]) -> String {
    format!("{:032x}", u128::from_be_bytes(digest))
}

/// Converts a duration for the rate limit script, which counts whole microseconds and cannot use 0.
fn micros(duration: Duration) -> u64 {
    (duration.as_micros() as u64).max(1)
}

/// The counters of a [`RedisStore`], for the metrics of kas.
#[derive(Debug, Default)]
pub struct RedisMetrics {
    /// Commands sent to Redis; a script counts as one.
    pub commands: RedisCounter,
    /// Commands that failed.
    pub errors: RedisCounter,
    /// Attempts to connect to Redis.
    pub connections: RedisCounter,
    /// Values read from Redis that kas cannot use: malformed, of another version, out of bounds, of another fleet.
    pub rejected: RedisCounter,
    /// Lookups that the cache answered.
    pub hits: RedisCounter,
    /// Lookups that were sent to Redis.
    pub misses: RedisCounter,
    /// Misses that Redis did not answer and an old cache entry did.
    pub stale: RedisCounter,
    /// Misses that Redis did not answer and the cache could not answer.
    pub unavailable: RedisCounter,
}

/// One counter, which only increases.
#[derive(Debug, Default)]
pub struct RedisCounter(AtomicU64);

impl RedisCounter {
    /// Returns the present value.
    pub fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }

    pub(crate) fn increment(&self) {
        self.0.fetch_add(1, Relaxed);
    }
}
