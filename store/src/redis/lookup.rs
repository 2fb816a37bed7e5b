//! The records of other replicas: reads routes and instances of agents from Redis, adds those of this replica, and removes the
//! records of dead replicas. Every live replica tries to remove them; the first one does it.

use std::time::{Duration, SystemTime};

use proto::{AgentId, ReplicaId};
use redis::{FromRedisValue, ScriptInvocation};
use tokio::time::Instant;

use super::{
    RedisState, RedisStoreError,
    client::RedisConnection,
    keys::GONE_TTL,
    sync::millis,
    wire::{self, Heartbeat, MAX_RECORD, RouteRecord, WireError, unix_seconds},
};
use crate::routes::{AgentRoutes, InstanceList, ReplicaInstances, Route, StoreError};

/// The highest number of agents in one script call of [`RedisState::list_instances`].
const PAGE: usize = 500;
/// The shortest time between two warnings about ignored heartbeats.
const REJECTED_LOG_PERIOD: Duration = Duration::from_secs(60);

impl RedisState {
    /// Returns the routes of the agent: those of other replicas from the cache or from Redis, that of this replica from
    /// memory.
    pub(super) async fn lookup(&self, agent: AgentId) -> Result<AgentRoutes, StoreError> {
        let query = |previous| self.query_routes(agent, previous);
        let found = self.cache.get(agent, &self.metrics, query).await;
        self.with_local_route(agent, found)
    }

    /// Returns the instances of these agents, with one script call for each page.
    pub(super) async fn list_instances(&self, agents: &[AgentId]) -> InstanceList {
        let mut list = InstanceList::default();
        for page in agents.chunks(PAGE) {
            if let Err(error) = self.query_instances(page, &mut list).await {
                list.error = Some(error);
                break;
            }
        }
        let routes = self.routes.lock();
        for agent in agents {
            if let Some(record) = routes.get(*agent) {
                let instances = record.instances.clone();
                list.connected.push(ReplicaInstances { agent: *agent, replica: self.replica, instances });
            } else if let Some(disconnected) = routes.disconnected_since(*agent) {
                let since = list.disconnected.entry(*agent).or_insert(disconnected);
                *since = disconnected.max(*since);
            }
        }
        list
    }

    /// Reads the routes of other replicas. `previous` is the last known answer.
    async fn query_routes(
        &self,
        agent: AgentId,
        previous: Option<AgentRoutes>,
    ) -> Result<AgentRoutes, StoreError> {
        let others = self.members.lock().ids();
        let mut script = self.scripts.lookup.key(self.keys.gone());
        for other in &others {
            script.key(self.keys.routes(*other));
        }
        script.arg(agent.0).arg(MAX_RECORD);
        let found: Vec<Vec<u8>> = self.query(&script).await?;

        let (gone, records) = found.split_first().ok_or_else(empty_answer)?;
        let disconnected_since = self.decode_seconds(gone).and_then(wire::from_unix_seconds);
        let mut routes = Vec::new();
        let members = self.members.lock();
        for (replica, record) in others.into_iter().zip(records) {
            // Redis may have lost the records of an unconfirmed replica: its previous route stays valid.
            let previous = || {
                let known = previous.iter().flat_map(|previous| &previous.routes);
                known.copied().find(|route| route.replica == replica && members.is_unconfirmed(replica))
            };
            let route = self.decode_record(record).map(|record| Route { replica, epoch: record.epoch });
            routes.extend(route.or_else(previous));
        }
        Ok(AgentRoutes { routes, disconnected_since })
    }

    /// Reads the instances of one page of agents at other replicas.
    async fn query_instances(&self, agents: &[AgentId], list: &mut InstanceList) -> Result<(), StoreError> {
        let others = self.members.lock().ids();
        let mut script = self.scripts.instances.key(self.keys.gone());
        for other in &others {
            script.key(self.keys.routes(*other));
        }
        script.arg(MAX_RECORD);
        for agent in agents {
            script.arg(agent.0);
        }
        let found: Vec<Vec<u8>> = self.query(&script).await?;

        // One row for each key, and in each row one value for each agent.
        let mut rows = found.chunks_exact(agents.len());
        let gone = agents.iter().zip(rows.next().ok_or_else(empty_answer)?);
        list.disconnected.extend(gone.filter_map(|(agent, seconds)| {
            Some((*agent, wire::from_unix_seconds(self.decode_seconds(seconds)?)?))
        }));
        for (replica, records) in others.into_iter().zip(rows) {
            for (agent, record) in agents.iter().zip(records) {
                let record = self.decode_record(record);
                list.connected.extend(record.map(|record| ReplicaInstances {
                    agent: *agent,
                    replica,
                    instances: record.instances,
                }));
            }
        }
        Ok(())
    }

    /// Runs a script for a request. After an error, the sync task replaces the connection.
    pub(super) async fn query<T: FromRedisValue>(
        &self,
        script: &ScriptInvocation<'_>,
    ) -> Result<T, StoreError> {
        let connection = self.connection()?;
        connection.run(script, &self.metrics).await.map_err(|error| {
            self.discard(&connection);
            StoreError(error.to_string())
        })
    }

    /// Removes the routes of dead replicas and adds the route of this one. A local route is an answer without Redis.
    fn with_local_route(
        &self,
        agent: AgentId,
        found: Result<AgentRoutes, StoreError>,
    ) -> Result<AgentRoutes, StoreError> {
        let routes = self.routes.lock();
        let local = routes.get(agent).map(|record| Route { replica: self.replica, epoch: record.epoch });
        let found = match (found, local) {
            (Ok(found), _) => found,
            (Err(_), Some(_)) => AgentRoutes::default(),
            (Err(error), None) => return Err(error),
        };

        let members = self.members.lock();
        let live = found.routes.into_iter().filter(|route| members.get(route.replica).is_some());
        let all: Vec<Route> = live.chain(local).collect();
        let disconnected = found.disconnected_since.max(routes.disconnected_since(agent));
        Ok(AgentRoutes { disconnected_since: disconnected.filter(|_| all.is_empty()), routes: all })
    }

    /// Decodes a record; `None` if there is none or it cannot be used.
    fn decode_record(&self, text: &[u8]) -> Option<RouteRecord> {
        if text.is_empty() {
            return None;
        }
        RouteRecord::decode(text).inspect_err(|error| self.reject("route record", error)).ok()
    }

    /// Decodes a time in seconds; `None` if there is none or it is no number.
    fn decode_seconds(&self, text: &[u8]) -> Option<u64> {
        if text.is_empty() {
            return None;
        }
        let seconds = str::from_utf8(text).ok().and_then(|text| text.parse().ok());
        if seconds.is_none() {
            self.reject("time", &"it is not a number of seconds");
        }
        seconds
    }

    /// Counts and logs a value from Redis that cannot be used.
    pub(super) fn reject(&self, value: &'static str, reason: &dyn std::fmt::Display) {
        self.metrics.rejected.increment();
        tracing::debug!(value, %reason, "ignored an unusable value from Redis");
    }

    /// Records that a heartbeat was ignored, which is the error of an operator or an attack.
    pub(super) fn reject_replica(&self, replica: ReplicaId, heartbeat: &Heartbeat, reason: &WireError) {
        self.metrics.rejected.increment();
        let now = Instant::now();
        let mut warned = self.rejected_replica_logged.lock();
        if warned.is_none_or(|at| now >= at + REJECTED_LOG_PERIOD) {
            *warned = Some(now);
            let Heartbeat { url, kas, .. } = heartbeat;
            tracing::warn!(
                %replica, url, kas, %reason,
                "ignored the heartbeat of a replica: it has another secret of private_api, or kas 0.1.0, or somebody else has written \
                 it into Redis"
            );
        }
    }
}

fn empty_answer() -> StoreError {
    StoreError("Redis returned an empty answer".to_owned())
}

impl RedisState {
    /// Forgets the replicas whose heartbeats are missing, and removes their records from Redis.
    ///
    /// Call it after each own event. A replica whose heartbeat key has not expired yet is tried again at the next call.
    pub(super) async fn cleanup_dead_replicas(
        &self,
        connection: &RedisConnection,
    ) -> Result<(), RedisStoreError> {
        let expired = self.members.lock().remove_expired();
        for id in expired {
            tracing::warn!(replica = %id, "a replica stopped sending heartbeats");
            self.dead.lock().push(id);
            self.invalidate_all();
        }

        let dead = std::mem::take(&mut *self.dead.lock());
        for id in dead {
            if self.members.lock().get(id).is_some() {
                continue;
            }
            if self.cleanup_replica(connection, id).await? {
                self.invalidate_all();
            } else {
                self.dead.lock().push(id);
            }
        }
        Ok(())
    }

    /// Removes the records of one dead replica, and marks its agents as disconnected.
    ///
    /// Returns false if the replica's heartbeat key still exists, and true also if another replica did it first.
    pub(super) async fn cleanup_replica(
        &self,
        connection: &RedisConnection,
        id: ReplicaId,
    ) -> Result<bool, RedisStoreError> {
        let mut script = self.scripts.cleanup.key(self.keys.replica(id));
        script.key(self.keys.routes(id)).key(self.keys.replicas()).key(self.keys.gone());
        script.arg(id.to_string()).arg(unix_seconds(SystemTime::now())).arg(millis(GONE_TTL));
        connection.run(&script, &self.metrics).await
    }
}
