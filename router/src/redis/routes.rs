//! The routes of this replica, and which of them Redis does not have yet. It does no I/O.
//!
//! [`LocalRoutes`] is the source of truth: the sync task copies it to Redis, and again after each loss of Redis' data.

use std::{
    collections::{HashMap, HashSet},
    time::SystemTime,
};

use proto::{AgentId, Epoch};

use super::wire::RouteRecord;
use crate::store::Instance;

/// The epoch of an agent whose instances are known but whose route is not announced.
const NOT_ANNOUNCED: Epoch = Epoch(0);

/// The agents of this replica.
#[derive(Debug, Default)]
pub(super) struct LocalRoutes {
    agents: HashMap<AgentId, RouteRecord>,
    /// The agents that were here, with the time when they disconnected.
    disconnected: HashMap<AgentId, SystemTime>,
    /// The agents whose record in Redis is out of date.
    dirty: HashSet<AgentId>,
    /// The agents with a record in Redis.
    published: HashSet<AgentId>,
}

impl LocalRoutes {
    /// Adds the route of an agent. Returns whether this changed it.
    pub(super) fn announce(&mut self, agent: AgentId, epoch: Epoch) -> bool {
        let record = self.record(agent);
        let changed = record.epoch < epoch;
        if changed {
            record.epoch = epoch;
            self.disconnected.remove(&agent);
            self.dirty.insert(agent);
        }
        changed
    }

    /// Sets the instances of an agent, before or after its route is announced.
    pub(super) fn set_instances(&mut self, agent: AgentId, instances: Vec<Instance>) {
        let record = self.record(agent);
        if record.instances != instances {
            record.instances = instances;
            if record.epoch > NOT_ANNOUNCED {
                self.dirty.insert(agent);
            }
        }
    }

    /// Removes the route of an agent unless a later epoch was announced. Returns whether this changed it.
    pub(super) fn withdraw(&mut self, agent: AgentId, epoch: Epoch, now: SystemTime) -> bool {
        let changed = self.get(agent).is_some_and(|record| record.epoch <= epoch);
        if changed {
            self.agents.remove(&agent);
            self.disconnected.insert(agent, now);
            self.dirty.insert(agent);
        }
        changed
    }

    /// Returns the record of an agent whose route is announced.
    pub(super) fn get(&self, agent: AgentId) -> Option<&RouteRecord> {
        self.agents.get(&agent).filter(|record| record.epoch > NOT_ANNOUNCED)
    }

    /// Returns when the agent disconnected, if it was connected here and is not now.
    pub(super) fn disconnected_since(&self, agent: AgentId) -> Option<SystemTime> {
        self.disconnected.get(&agent).copied()
    }

    /// Marks every record dirty, because Redis may have none of them. Withdrawn agents that are dirty stay so.
    pub(super) fn mark_all_dirty(&mut self) {
        self.published.clear();
        self.dirty.extend(self.agents.keys());
    }

    /// Takes up to `limit` dirty agents with their encoded records; `None` is a withdrawn agent.
    ///
    /// They count as published. If writing them fails, the sync task reconnects and marks all records dirty.
    pub(super) fn take_dirty(&mut self, limit: usize) -> Vec<(AgentId, Option<String>)> {
        let agents: Vec<AgentId> = self.dirty.iter().copied().take(limit).collect();
        let mut taken = Vec::with_capacity(agents.len());
        for agent in agents {
            self.dirty.remove(&agent);
            let record = self.get(agent).map(RouteRecord::encode);
            match record {
                Some(_) => self.published.insert(agent),
                None => self.published.remove(&agent),
            };
            taken.push((agent, record));
        }
        taken
    }

    /// Returns the number of agents that have a record in Redis.
    pub(super) fn published(&self) -> usize {
        self.published.len()
    }

    fn record(&mut self, agent: AgentId) -> &mut RouteRecord {
        let new = || RouteRecord { epoch: NOT_ANNOUNCED, instances: Vec::new() };
        self.agents.entry(agent).or_insert_with(new)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AGENT: AgentId = AgentId(7);
    const NOW: SystemTime = SystemTime::UNIX_EPOCH;

    #[test]
    fn lower_epoch_never_replaces_or_removes_a_higher_one() {
        let mut routes = LocalRoutes::default();
        assert!(routes.announce(AGENT, Epoch(5)));
        assert!(!routes.announce(AGENT, Epoch(4)) && !routes.announce(AGENT, Epoch(5)));
        assert!(!routes.withdraw(AGENT, Epoch(4), NOW));
        assert_eq!(routes.get(AGENT).unwrap().epoch, Epoch(5));
        assert!(routes.withdraw(AGENT, Epoch(5), NOW) && !routes.withdraw(AGENT, Epoch(5), NOW));
        assert!(routes.get(AGENT).is_none());
        assert_eq!(routes.disconnected_since(AGENT), Some(NOW));
    }

    #[test]
    fn last_change_is_taken_once() {
        let mut routes = LocalRoutes::default();
        routes.announce(AGENT, Epoch(1));
        routes.announce(AGENT, Epoch(2));
        assert_eq!(routes.take_dirty(10), [(AGENT, Some("[1,2,[]]".to_owned()))]);
        assert_eq!(routes.take_dirty(10), []);
        routes.withdraw(AGENT, Epoch(2), NOW);
        assert_eq!(routes.take_dirty(10), [(AGENT, None)]);
        assert_eq!(routes.published(), 0);
    }

    #[test]
    fn withdraw_without_published_announce_is_published() {
        let mut routes = LocalRoutes::default();
        routes.announce(AGENT, Epoch(1));
        routes.withdraw(AGENT, Epoch(1), NOW);
        routes.mark_all_dirty();
        assert_eq!(routes.take_dirty(10), [(AGENT, None)]);
    }

    #[test]
    fn mark_all_dirty_takes_every_held_agent_again() {
        let mut routes = LocalRoutes::default();
        for n in 0..5 {
            routes.announce(AgentId(n), Epoch(1));
        }
        assert_eq!((routes.take_dirty(3).len(), routes.take_dirty(3).len(), routes.published()), (3, 2, 5));
        routes.withdraw(AgentId(0), Epoch(1), NOW);
        routes.mark_all_dirty();
        assert_eq!(routes.published(), 0);
        let mut again = routes.take_dirty(10);
        again.sort();
        let mut expected = vec![(AgentId(0), None)];
        expected.extend((1..5).map(|n| (AgentId(n), Some("[1,1,[]]".to_owned()))));
        assert_eq!(again, expected);
    }

    #[test]
    fn instances_without_announce_are_no_route() {
        let mut routes = LocalRoutes::default();
        routes.set_instances(AGENT, Vec::new());
        assert!(routes.get(AGENT).is_none());
        assert_eq!(routes.take_dirty(10), []);
    }
}
