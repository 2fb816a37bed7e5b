//! Removes the records of dead replicas from Redis. Every live replica tries; the first one does it.

use std::time::SystemTime;

use proto::ReplicaId;

use super::{Shared, client::Connection, keys::GONE_TTL, sync::millis, wire::unix_seconds};

impl Shared {
    /// Forgets the replicas whose heartbeats are missing, and removes their records from Redis.
    ///
    /// Call it after each own event. A replica whose heartbeat key has not expired yet is tried again at the next call.
    pub(super) async fn cleanup_dead_replicas(&self, connection: &Connection) -> Result<(), String> {
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
        connection: &Connection,
        id: ReplicaId,
    ) -> Result<bool, String> {
        let mut script = self.scripts.cleanup.key(self.keys.replica(id));
        script.key(self.keys.routes(id)).key(self.keys.replicas()).key(self.keys.gone());
        script.arg(id.to_string()).arg(unix_seconds(SystemTime::now())).arg(millis(GONE_TTL));
        connection.run(&script, &self.metrics).await
    }
}
