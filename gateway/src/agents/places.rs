//! How many tunnels one agent may have.

use std::{collections::HashMap, sync::Arc};

use parking_lot::Mutex;
use proto::AgentId;

/// Counts the tunnels of each agent, those that are being opened included.
#[derive(Clone, Debug)]
pub struct Places {
    limit: usize,
    taken: Arc<Mutex<HashMap<AgentId, usize>>>,
}

/// One tunnel's, until this is dropped.
#[derive(Debug)]
pub struct Place {
    agent: AgentId,
    taken: Arc<Mutex<HashMap<AgentId, usize>>>,
}

impl Places {
    /// `limit` for each agent.
    pub fn new(limit: usize) -> Self {
        Self { limit, taken: Arc::default() }
    }

    /// `None` if the agent has all of its places.
    pub fn take(&self, agent: AgentId) -> Option<Place> {
        let mut taken = self.taken.lock();
        let count = taken.entry(agent).or_default();
        if *count >= self.limit {
            return None;
        }
        *count += 1;
        Some(Place { agent, taken: Arc::clone(&self.taken) })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut taken = self.taken.lock();
        if let Some(count) = taken.get_mut(&self.agent) {
            *count -= 1;
            if *count == 0 {
                taken.remove(&self.agent);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_agent_has_so_many_places_and_no_more() {
        let places = Places::new(2);
        let first = places.take(AgentId(1)).unwrap();
        let _second = places.take(AgentId(1)).unwrap();
        assert!(places.take(AgentId(1)).is_none());
        assert!(places.take(AgentId(2)).is_some(), "another agent's are its own");
        drop(first);
        assert!(places.take(AgentId(1)).is_some());
    }
}
