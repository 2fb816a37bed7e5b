//! The leases of tunnels that kas dials: the rule by which replicas share the tunnels of an agent, and its table in memory.

use std::{collections::HashMap, fmt, time::Duration};

use futures_util::future::BoxFuture;
use proto::{AgentId, Epoch, ReplicaId};
use tokio::time::Instant;

use crate::routes::StoreError;

/// The time after which the leases of a replica that does not renew them are free.
pub const LEASE_TTL: Duration = Duration::from_secs(12);

/// The request of one replica for leases of the tunnels of an agent that kas dials.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseRequest {
    /// The agent.
    pub agent: AgentId,
    /// The tunnels of the agent over all replicas. With 0 the replica gives up its leases.
    pub tunnels: u16,
    /// The tunnels of the agent that are open at the replica.
    pub open: u16,
    /// False while the replica waits before it dials again: it keeps the leases of open tunnels only.
    pub may_dial: bool,
    /// False if the last dial of the replica failed. Other replicas keep their tunnels then, although this one has fewer.
    pub reliable: bool,
    /// The order of the requests of this replica: one with a lower epoch than an earlier one has no effect.
    pub epoch: Epoch,
}

/// The leases of tunnels that replicas share.
pub trait LeaseStore: fmt::Debug + Send + Sync + 'static {
    /// Renews the leases of this replica for tunnels to agents that kas dials. Returns the number of tunnels that the replica
    /// may have, for each request.
    ///
    /// Replicas with leases of an agent share its tunnels evenly. A lease that is not renewed for [`LEASE_TTL`] is free.
    fn renew_leases<'a>(
        &'a self,
        replica: ReplicaId,
        requests: &'a [LeaseRequest],
    ) -> BoxFuture<'a, Result<Vec<u16>, StoreError>>;
}

/// The leases of one replica.
#[derive(Clone, Copy, Debug)]
struct Lease {
    tunnels: u16,
    reliable: bool,
    epoch: Epoch,
    expires: Instant,
}

/// The leases of all agents in memory. The script `lease.lua` has the same rule.
#[derive(Debug, Default)]
pub(crate) struct LeaseTable(HashMap<AgentId, HashMap<ReplicaId, Lease>>);

impl LeaseTable {
    /// Renews the leases of a replica, and returns the number of tunnels that it may have.
    ///
    /// A replica takes free leases while no reliable replica has fewer. It gives up those that are too many, and one if a
    /// reliable replica has two less, so that the tunnels are spread evenly.
    pub(crate) fn renew(&mut self, replica: ReplicaId, request: &LeaseRequest, now: Instant) -> u16 {
        let leases = self.0.entry(request.agent).or_default();
        leases.retain(|_, lease| lease.expires > now);
        let held = match leases.get(&replica) {
            Some(own) if own.epoch > request.epoch => return own.tunnels,
            Some(own) => own.tunnels,
            None => 0,
        };
        let others = leases.iter().filter(|(id, _)| **id != replica).map(|(_, lease)| *lease);
        let taken: u16 = others.clone().map(|lease| lease.tunnels).sum();
        let least = others.filter(|lease| lease.reliable).map(|lease| lease.tunnels).min();
        let least = least.unwrap_or(u16::MAX);
        let mut tunnels = if request.may_dial { held } else { held.min(request.open) };
        while request.may_dial && tunnels + taken < request.tunnels && tunnels <= least {
            tunnels += 1;
        }
        while tunnels > 0 && (tunnels + taken > request.tunnels || tunnels > least.saturating_add(1)) {
            tunnels -= 1;
        }
        if request.tunnels == 0 || (tunnels == 0 && !request.reliable) {
            leases.remove(&replica);
        } else {
            let (reliable, epoch) = (request.reliable, request.epoch);
            leases.insert(replica, Lease { tunnels, reliable, epoch, expires: now + LEASE_TTL });
        }
        if leases.is_empty() {
            self.0.remove(&request.agent);
        }
        tunnels
    }
}
