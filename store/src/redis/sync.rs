//! [`SyncTask`]: the task that connects to Redis, writes the routes and heartbeats of this replica, and receives the
//! events of the others.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use futures_util::{Stream, StreamExt as _};
use proto::{AgentId, ReplicaId};
use tokio::time::{Instant, MissedTickBehavior, interval_at, sleep, timeout};

use super::{
    RedisState, RedisStoreError,
    client::{RedisConnection, connect},
    keys::{GONE_TTL, HEARTBEAT_INTERVAL, HEARTBEAT_TTL, HEARTBEATS_PER_AUDIT, ROUTES_TTL},
    members::MAX_REPLICAS,
    routes::RouteField,
    wire::{Heartbeat, MAX_PUSHES, MAX_RECORD, RedisEvent, RedisEventKind, unix_seconds},
};
use crate::routes::StoreHealth;

/// The highest number of agents in one write: about 100 KB, or a millisecond of Redis.
const BATCH: usize = 500;
/// The first wait before another connection; it doubles with each failure.
const MIN_BACKOFF: Duration = Duration::from_millis(100);
/// The longest wait before another connection.
const MAX_BACKOFF: Duration = Duration::from_secs(5);

/// The result of a heartbeat whose audit found another record of the kill switch than this replica has read.
const DISABLED_CHANGED: u8 = 2;

/// Synchronizes a [`RedisStore`](super::RedisStore) with Redis while it runs.
///
/// After an error, the task connects again and writes all records of this replica anew.
#[derive(Debug)]
#[must_use = "the store uses Redis only while its sync task runs"]
pub struct SyncTask {
    shared: Arc<RedisState>,
    /// The number of connections so far. Redis rejects writes of another generation than the last.
    generation: u64,
    /// The number of events in this generation.
    sequence: u64,
    heartbeats: u64,
}

impl SyncTask {
    pub(super) fn new(shared: Arc<RedisState>) -> Self {
        Self { shared, generation: 0, sequence: 0, heartbeats: 0 }
    }

    /// Runs until `stop` completes, and then removes this replica's records from Redis.
    ///
    /// If the future is dropped, the records stay until another replica notices the missing heartbeats.
    pub async fn run(mut self, stop: impl Future<Output = ()>) {
        let shared = Arc::clone(&self.shared);
        tokio::select! {
            () = self.reconnect_forever() => {}
            () = stop => {}
        }
        if let Ok(connection) = shared.connection() {
            _ = timeout(shared.settings.response_timeout, self.leave(&connection)).await;
        }
    }

    async fn reconnect_forever(&mut self) {
        let mut backoff = MIN_BACKOFF;
        loop {
            let error = match self.join().await {
                Ok((connection, events)) => {
                    backoff = MIN_BACKOFF;
                    self.run_connection(&connection, events).await
                }
                Err(error) => error,
            };
            self.shared.set_degraded(&error);
            sleep(backoff.mul_f64(rand::random_range(0.5..1.0))).await;
            backoff = (backoff * 2).min(MAX_BACKOFF);
        }
    }

    /// Connects, reads the members, and writes all records of this replica.
    ///
    /// It subscribes to events before it reads or writes anything, so that no change is missed in between.
    async fn join(
        &mut self,
    ) -> Result<(RedisConnection, impl Stream<Item = Vec<u8>> + Unpin + use<>), RedisStoreError> {
        let shared = Arc::clone(&self.shared);
        shared.metrics.connections.increment();
        (self.generation, self.sequence) = (self.generation + 1, 0);
        let (connection, events) = connect(&shared.settings, &shared.keys.events()).await?;
        let (live, dead) = shared.read_members(&connection).await?;
        if let Some((_, other)) = live.iter().find(|(_, heartbeat)| heartbeat.fleet != shared.settings.fleet)
        {
            return Err(shared.fleet_conflict(other));
        }

        shared.routes.lock().mark_all_dirty();
        let withdrawn = self.stage_routes(&connection).await?;
        let heartbeat = shared.heartbeat();
        let event = self.encode_event(RedisEventKind::Heartbeat(heartbeat.clone()));
        let mut script = shared.scripts.join.key(shared.keys.next_routes(shared.replica));
        script.key(shared.keys.routes(shared.replica)).key(shared.keys.replica(shared.replica));
        script.key(shared.keys.replicas()).key(shared.keys.gone());
        script.arg(shared.replica.to_string()).arg(heartbeat.encode()).arg(millis(HEARTBEAT_TTL));
        script.arg(shared.keys.events()).arg(event);
        let _: () = connection.run(&script, &shared.metrics).await?;
        for batch in withdrawn.chunks(BATCH) {
            self.publish(&connection, batch.iter().map(|agent| (RouteField::Agent(*agent), None)).collect())
                .await?;
        }
        for id in dead {
            shared.cleanup_replica(&connection, id).await?;
        }

        shared.members.lock().resync(live);
        shared.sync_disabled(&connection).await?;
        shared.read_events(&connection).await?;
        *shared.connection.lock() = Some(connection.clone());
        shared.set_healthy();
        shared.invalidate_all();
        Ok((connection, events))
    }

    /// Sends heartbeats and changes and handles events until the connection fails.
    async fn run_connection(
        &mut self,
        connection: &RedisConnection,
        mut events: impl Stream<Item = Vec<u8>> + Unpin,
    ) -> RedisStoreError {
        let mut ticks = interval_at(Instant::now() + HEARTBEAT_INTERVAL, HEARTBEAT_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut received = self.shared.members.lock().own_heartbeats();
        let shared = Arc::clone(&self.shared);
        loop {
            let result = tokio::select! {
                event = events.next() => match event {
                    Some(event) => shared.handle_event(connection, &event).await,
                    None => Err(RedisStoreError::Closed),
                },
                _ = ticks.tick() => {
                    let before = std::mem::replace(&mut received, shared.members.lock().own_heartbeats());
                    if received == before {
                        return RedisStoreError::NoEvents;
                    }
                    self.send_heartbeat(connection).await
                }
                () = shared.routes_changed.notified() => self.publish_dirty(connection).await,
                () = shared.disabled_changed.notified() => shared.sync_disabled(connection).await,
                () = shared.log_changed.notified() => shared.read_events(connection).await,
                () = shared.pushed.notified() => self.send_pushes(connection).await,
                () = connection.failed.notified() => Err(RedisStoreError::LookupFailed),
            };
            if let Err(reason) = result {
                return reason;
            }
        }
    }

    /// Writes the records of all held agents to the next routes key, which no replica reads. Returns the withdrawn
    /// agents.
    async fn stage_routes(&self, connection: &RedisConnection) -> Result<Vec<AgentId>, RedisStoreError> {
        let (shared, mut withdrawn) = (&self.shared, Vec::new());
        for first in std::iter::once(true).chain(std::iter::repeat(false)) {
            let dirty = shared.routes.lock().take_dirty(BATCH);
            if dirty.is_empty() && !first {
                break;
            }
            let mut script = shared.scripts.stage.key(shared.keys.next_routes(shared.replica));
            script.arg(self.generation).arg(millis(ROUTES_TTL)).arg(u8::from(first));
            for (field, record) in dirty {
                match record {
                    Some(record) => drop(script.arg(field.to_string()).arg(record)),
                    None => withdrawn.extend(field.agent()),
                }
            }
            let _: () = connection.run(&script, &shared.metrics).await?;
        }
        Ok(withdrawn)
    }

    /// Publishes all dirty records.
    async fn publish_dirty(&mut self, connection: &RedisConnection) -> Result<(), RedisStoreError> {
        loop {
            let dirty = self.shared.routes.lock().take_dirty(BATCH);
            if dirty.is_empty() {
                return Ok(());
            }
            self.publish(connection, dirty).await?;
        }
    }

    /// Writes some fields to Redis, `None` for those to remove, and sends an event for the agents among them.
    async fn publish(
        &mut self,
        connection: &RedisConnection,
        records: Vec<(RouteField, Option<String>)>,
    ) -> Result<(), RedisStoreError> {
        let shared = Arc::clone(&self.shared);
        let agents = records.iter().filter_map(|(field, _)| field.agent()).collect();
        let event = self.encode_event(RedisEventKind::Changed(agents));
        let mut script = shared.scripts.publish.key(shared.keys.routes(shared.replica));
        script.key(shared.keys.gone());
        script.arg(self.generation).arg(unix_seconds(SystemTime::now())).arg(millis(GONE_TTL));
        script.arg(shared.keys.events()).arg(event);
        for (field, record) in records {
            script.arg(field.to_string()).arg(record.unwrap_or_default());
        }
        check_accepted(connection.run(&script, &shared.metrics).await?)
    }

    /// Sends an event for each batch of pushes that other replicas have to learn of.
    async fn send_pushes(&mut self, connection: &RedisConnection) -> Result<(), RedisStoreError> {
        let shared = Arc::clone(&self.shared);
        let pushes = std::mem::take(&mut *shared.unsent_pushes.lock());
        for batch in pushes.chunks(MAX_PUSHES) {
            let event = self.encode_event(RedisEventKind::Pushed(batch.to_vec()));
            let mut script = shared.scripts.notify.key(shared.keys.routes(shared.replica));
            script.arg(shared.keys.events()).arg(event);
            let _: () = connection.run(&script, &shared.metrics).await?;
        }
        Ok(())
    }

    /// Sends a heartbeat. Every few heartbeats, Redis also compares the number of records and the record of the kill switch.
    async fn send_heartbeat(&mut self, connection: &RedisConnection) -> Result<(), RedisStoreError> {
        let shared = Arc::clone(&self.shared);
        let heartbeat = shared.heartbeat();
        let record = heartbeat.encode();
        let event = self.encode_event(RedisEventKind::Heartbeat(heartbeat));
        self.heartbeats += 1;
        let mut script = shared.scripts.heartbeat.key(shared.keys.replica(shared.replica));
        script.key(shared.keys.routes(shared.replica)).key(shared.keys.disabled());
        script.arg(record).arg(millis(HEARTBEAT_TTL)).arg(shared.keys.events()).arg(event);
        if self.heartbeats.is_multiple_of(HEARTBEATS_PER_AUDIT) {
            // The hash also has the field `generation`.
            script.arg(millis(ROUTES_TTL)).arg(shared.routes.lock().published() + 1);
            script.arg(shared.disabled_version());
        }
        let result = connection.run(&script, &shared.metrics).await?;
        if result == DISABLED_CHANGED {
            shared.sync_disabled(connection).await?;
        }
        check_accepted(result)
    }

    /// Removes this replica's records and sends its last event.
    async fn leave(&mut self, connection: &RedisConnection) -> Result<(), RedisStoreError> {
        let shared = Arc::clone(&self.shared);
        let event = self.encode_event(RedisEventKind::Left);
        let mut script = shared.scripts.leave.key(shared.keys.replica(shared.replica));
        script.key(shared.keys.routes(shared.replica)).key(shared.keys.next_routes(shared.replica));
        script.key(shared.keys.replicas());
        script.arg(shared.replica.to_string()).arg(shared.keys.events()).arg(event);
        connection.run(&script, &shared.metrics).await
    }

    fn encode_event(&mut self, kind: RedisEventKind) -> String {
        self.sequence += 1;
        let (replica, generation, sequence) = (self.shared.replica, self.generation, self.sequence);
        RedisEvent { replica, generation, sequence, kind }.encode()
    }
}

impl Drop for SyncTask {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.shared.set_degraded(&RedisStoreError::Defect);
        }
    }
}

impl RedisState {
    /// Returns the reason why this replica must not share Redis with a replica of another fleet.
    pub(super) fn fleet_conflict(&self, other: &Heartbeat) -> RedisStoreError {
        RedisStoreError::FleetConflict {
            other: other.fleet.clone(),
            url: other.url.clone(),
            prefix: self.settings.prefix.clone(),
            own: self.settings.fleet.clone(),
        }
    }

    /// Reads the other replicas: the live ones, and the dead ones whose records are still there.
    pub(super) async fn read_members(
        &self,
        connection: &RedisConnection,
    ) -> Result<(Vec<(ReplicaId, Heartbeat)>, Vec<ReplicaId>), RedisStoreError> {
        let mut script = self.scripts.members.key(self.keys.replicas());
        script.arg(self.keys.heartbeats()).arg(MAX_REPLICAS).arg(MAX_RECORD);
        let found: Vec<Vec<u8>> = connection.run(&script, &self.metrics).await?;
        let (mut live, mut dead) = (Vec::new(), Vec::new());
        for pair in found.chunks_exact(2) {
            let id: Option<ReplicaId> = str::from_utf8(&pair[0]).ok().and_then(|id| id.parse().ok());
            let Some(id) = id.filter(|id| *id != self.replica) else {
                continue;
            };
            if pair[1].is_empty() {
                dead.push(id);
                continue;
            }
            match Heartbeat::decode(&pair[1]) {
                Ok(heartbeat) => match self.authenticate(id, &heartbeat) {
                    Ok(()) => live.push((id, heartbeat)),
                    Err(error) => self.reject_replica(id, &heartbeat, &error),
                },
                Err(error) => self.reject("heartbeat", &error),
            }
        }
        Ok((live, dead))
    }

    fn set_healthy(&self) {
        if self.health.send_replace(StoreHealth::Healthy) != StoreHealth::Healthy {
            tracing::info!("connected to Redis, and wrote all routes of this replica");
        }
    }

    fn set_degraded(&self, error: &RedisStoreError) {
        let reason = error.to_string();
        *self.connection.lock() = None;
        // No event announces the changes from now on.
        self.cache.invalidate_all();
        self.health.send_modify(|health| {
            let since = match health {
                StoreHealth::Healthy => {
                    tracing::warn!(reason, "lost Redis: routes are served from memory");
                    SystemTime::now()
                }
                StoreHealth::Degraded { since, reason: before } => {
                    if **before != *reason {
                        tracing::warn!(reason, "cannot connect to Redis: routes are served from memory");
                    }
                    *since
                }
            };
            *health = StoreHealth::Degraded { since, reason: reason.into() };
        });
    }
}

/// Checks the result of a script that rejects a write, with 0, if Redis no longer has the records of this connection.
fn check_accepted(result: u8) -> Result<(), RedisStoreError> {
    if result == 0 { Err(RedisStoreError::LostRecords) } else { Ok(()) }
}

pub(super) fn millis(duration: Duration) -> u64 {
    duration.as_millis() as u64
}
