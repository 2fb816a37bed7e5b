//! What dead replicas have left in Redis is removed by whoever survives them.

use std::time::SystemTime;

use proto::ReplicaId;

use super::{Shared, keeper::millis, keys::GONE_LIFE, link::Link, wire::seconds};

impl Shared {
    /// Those whose heartbeats outlive them have to wait for another beat.
    pub(super) async fn bury_all(&self, link: &Link) -> Result<(), String> {
        let unburied = std::mem::take(&mut *self.unburied.lock());
        for id in unburied {
            if self.members.lock().get(id).is_some() {
                continue;
            }
            if self.bury(link, id).await? {
                self.everything_is_old();
            } else {
                self.unburied.lock().push(id);
            }
        }
        Ok(())
    }

    /// Removes what a dead replica has left, if nobody has done so. Not while its heartbeat is there.
    pub(super) async fn bury(&self, link: &Link, id: ReplicaId) -> Result<bool, String> {
        let mut script = self.scripts.bury.key(self.keys.replica(id));
        script.key(self.keys.routes(id)).key(self.keys.replicas()).key(self.keys.gone());
        script.arg(id.to_string()).arg(seconds(SystemTime::now())).arg(millis(GONE_LIFE));
        link.run(&script, &self.counts).await
    }
}
