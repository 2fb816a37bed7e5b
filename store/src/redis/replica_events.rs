//! The events of other replicas, and the end of dead ones: every live replica tries to remove their records, and the first one does it.

use std::time::{Duration, SystemTime};

use proto::ReplicaId;
use tokio::time::Instant;

use super::{
    RedisState, RedisStoreError,
    client::RedisConnection,
    keys::GONE_TTL,
    members::Effect,
    sync::millis,
    wire::{Heartbeat, RedisEvent, RedisEventKind, WireError, unix_seconds},
};

/// The shortest time between two warnings about ignored heartbeats.
const REJECTED_LOG_PERIOD: Duration = Duration::from_secs(60);

impl RedisState {
    /// Handles the payload of one event. An event that cannot be decoded is counted and ignored.
    pub(super) async fn handle_event(
        &self,
        connection: &RedisConnection,
        payload: &[u8],
    ) -> Result<(), RedisStoreError> {
        let event = match RedisEvent::decode(payload) {
            Ok(event) => event,
            Err(error) => {
                self.reject("event", &error);
                return Ok(());
            }
        };
        let replica = event.replica;
        if let RedisEventKind::Heartbeat(heartbeat) = &event.kind
            && let Err(error) = self.authenticate(replica, heartbeat)
        {
            self.reject_replica(replica, heartbeat, &error);
            return Ok(());
        }
        if let RedisEventKind::Pushed(pushes) = &event.kind
            && replica != self.replica
        {
            pushes.iter().for_each(|push| self.pushes.send(push.clone()));
        }
        if matches!(event.kind, RedisEventKind::Disabled) {
            self.disabled_changed.notify_one();
        }
        if matches!(event.kind, RedisEventKind::Logged) {
            self.log_changed.notify_one();
        }
        let effect = self.members.lock().handle_event(event);
        match effect {
            Effect::None => {}
            Effect::InvalidateAgents(agents) => {
                for agent in agents {
                    self.cache.invalidate(agent);
                    self.wake(agent);
                }
            }
            Effect::InvalidateAll => self.invalidate_all(),
            Effect::OtherFleet(fleet) => {
                self.reject("replica", &format!("{replica} belongs to fleet {fleet:?}"));
            }
            Effect::OwnEvent => self.cleanup_dead_replicas(connection).await?,
        }
        Ok(())
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
