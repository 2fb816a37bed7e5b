//! Limits the tunnels of one agent.

use std::{collections::HashMap, sync::Arc};

use parking_lot::Mutex;
use proto::AgentId;

/// Counts the tunnels of each agent, including those that are being opened. Clones share the counts.
#[derive(Clone, Debug)]
pub struct TunnelPermits {
    limit: usize,
    counts: Arc<Mutex<HashMap<AgentId, usize>>>,
}

/// Counts one tunnel until it is dropped.
#[derive(Debug)]
pub(super) struct TunnelPermit {
    agent: AgentId,
    counts: Arc<Mutex<HashMap<AgentId, usize>>>,
}

impl TunnelPermits {
    /// Allows `limit` tunnels for each agent.
    pub fn new(limit: usize) -> Self {
        Self { limit, counts: Arc::default() }
    }

    /// Takes a permit, or returns `None` if the agent has as many tunnels as allowed.
    pub(super) fn try_acquire(&self, agent: AgentId) -> Option<TunnelPermit> {
        let mut counts = self.counts.lock();
        let count = counts.entry(agent).or_default();
        if *count >= self.limit {
            return None;
        }
        *count += 1;
        Some(TunnelPermit { agent, counts: Arc::clone(&self.counts) })
    }
}

impl Drop for TunnelPermit {
    fn drop(&mut self) {
        let mut counts = self.counts.lock();
        if let Some(count) = counts.get_mut(&self.agent) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.agent);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn permits_of_one_agent_are_limited() {
        let permits = TunnelPermits::new(2);
        let first = permits.try_acquire(AgentId(1)).unwrap();
        let _second = permits.try_acquire(AgentId(1)).unwrap();
        assert!(permits.try_acquire(AgentId(1)).is_none());
        assert!(permits.try_acquire(AgentId(2)).is_some(), "each agent has its own limit");
        drop(first);
        assert!(permits.try_acquire(AgentId(1)).is_some());
    }
}
