//! The leases of tunnels that kas dials, which all replicas share.

use futures_util::future::BoxFuture;
use proto::ReplicaId;

use super::{RedisStore, keys::LEASES_TTL};
use crate::{
    leases::{LEASE_TTL, LeaseRequest, LeaseStore},
    routes::StoreError,
};

impl LeaseStore for RedisStore {
    // One script for all agents.
    fn renew_leases<'a>(
        &'a self,
        replica: ReplicaId,
        requests: &'a [LeaseRequest],
    ) -> BoxFuture<'a, Result<Vec<u16>, StoreError>> {
        Box::pin(async move {
            if requests.is_empty() {
                return Ok(Vec::new());
            }
            let shared = &self.0;
            let mut script = shared.scripts.lease.key(shared.keys.leases());
            script
                .arg(replica.to_string())
                .arg(LEASE_TTL.as_millis() as u64)
                .arg(LEASES_TTL.as_millis() as u64);
            for LeaseRequest { agent, tunnels, open, may_dial, reliable, epoch } in requests {
                script.arg(agent.to_string()).arg(*tunnels).arg(*open);
                script.arg(u8::from(*may_dial)).arg(u8::from(*reliable)).arg(epoch.0);
            }
            let granted: Vec<u16> = shared.query(&script).await?;
            if granted.len() == requests.len() {
                Ok(granted)
            } else {
                Err(StoreError("Redis returned leases for other agents".to_owned()))
            }
        })
    }
}
