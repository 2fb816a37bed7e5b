//! What this replica itself holds: pure. It is the truth that Redis is made to say, whatever happens to Redis.

use std::{
    collections::{HashMap, HashSet},
    time::SystemTime,
};

use proto::{AgentId, Epoch};

use super::wire::Held;
use crate::store::Instance;

/// This replica's agents, and which of them Redis has yet to hear of.
#[derive(Debug, Default)]
pub(super) struct Own {
    agents: HashMap<AgentId, Held>,
    /// Those that were here, and until when.
    left: HashMap<AgentId, SystemTime>,
    unsaid: HashSet<AgentId>,
    /// Those that Redis was told to hold.
    said: HashSet<AgentId>,
}

impl Own {
    /// The agent is here. Whether that is news.
    pub(super) fn announce(&mut self, agent: AgentId, epoch: Epoch) -> bool {
        let held =
            self.agents.entry(agent).or_insert_with(|| Held { epoch: Epoch(0), instances: Vec::new() });
        let news = held.epoch < epoch;
        if news {
            held.epoch = epoch;
            self.left.remove(&agent);
            self.unsaid.insert(agent);
        }
        news
    }

    /// Which of its processes are here.
    pub(super) fn describe(&mut self, agent: AgentId, instances: Vec<Instance>) {
        let held =
            self.agents.entry(agent).or_insert_with(|| Held { epoch: Epoch(0), instances: Vec::new() });
        if held.instances != instances {
            held.instances = instances;
            if held.epoch > Epoch(0) {
                self.unsaid.insert(agent);
            }
        }
    }

    /// The agent is here no more, unless a later epoch has said that it is. Whether that is news.
    pub(super) fn withdraw(&mut self, agent: AgentId, epoch: Epoch, now: SystemTime) -> bool {
        let news = self.get(agent).is_some_and(|held| held.epoch <= epoch);
        if news {
            self.agents.remove(&agent);
            self.left.insert(agent, now);
            self.unsaid.insert(agent);
        }
        news
    }

    /// What is said of the agent, if it is here.
    pub(super) fn get(&self, agent: AgentId) -> Option<&Held> {
        self.agents.get(&agent).filter(|held| held.epoch > Epoch(0))
    }

    /// When the agent left, if it was here and is not.
    pub(super) fn left(&self, agent: AgentId) -> Option<SystemTime> {
        self.left.get(&agent).copied()
    }

    /// Redis knows nothing: it is to hear of all of them, besides those that have left meanwhile.
    pub(super) fn unsay(&mut self) {
        self.said.clear();
        self.unsaid.extend(self.agents.keys());
    }

    /// Up to `most` agents that Redis is to hear of now: each with its record, or with none if it has left. They count
    /// as said; after a failure everything is unsaid anyway.
    pub(super) fn say(&mut self, most: usize) -> Vec<(AgentId, Option<String>)> {
        let agents: Vec<AgentId> = self.unsaid.iter().copied().take(most).collect();
        let mut words = Vec::with_capacity(agents.len());
        for agent in agents {
            self.unsaid.remove(&agent);
            let record = self.get(agent).map(Held::encode);
            match record {
                Some(_) => self.said.insert(agent),
                None => self.said.remove(&agent),
            };
            words.push((agent, record));
        }
        words
    }

    /// How many agents Redis was told to hold.
    pub(super) fn said(&self) -> usize {
        self.said.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AGENT: AgentId = AgentId(7);
    const NOW: SystemTime = SystemTime::UNIX_EPOCH;

    #[test]
    fn a_lower_epoch_never_replaces_or_removes_a_higher_one() {
        let mut own = Own::default();
        assert!(own.announce(AGENT, Epoch(5)));
        assert!(!own.announce(AGENT, Epoch(4)) && !own.announce(AGENT, Epoch(5)));
        assert!(!own.withdraw(AGENT, Epoch(4), NOW));
        assert_eq!(own.get(AGENT).unwrap().epoch, Epoch(5));
        assert!(own.withdraw(AGENT, Epoch(5), NOW) && !own.withdraw(AGENT, Epoch(5), NOW));
        assert!(own.get(AGENT).is_none());
        assert_eq!(own.left(AGENT), Some(NOW));
    }

    #[test]
    fn only_the_last_word_is_said_and_only_once() {
        let mut own = Own::default();
        own.announce(AGENT, Epoch(1));
        own.announce(AGENT, Epoch(2));
        assert_eq!(own.say(10), [(AGENT, Some("[1,2,[]]".to_owned()))]);
        assert_eq!(own.say(10), []);
        own.withdraw(AGENT, Epoch(2), NOW);
        assert_eq!(own.say(10), [(AGENT, None)]);
        assert_eq!(own.said(), 0);
    }

    #[test]
    fn that_somebody_has_left_is_said_even_if_it_was_not_said_that_they_came() {
        let mut own = Own::default();
        own.announce(AGENT, Epoch(1));
        own.withdraw(AGENT, Epoch(1), NOW);
        own.unsay();
        assert_eq!(own.say(10), [(AGENT, None)]);
    }

    #[test]
    fn after_a_loss_everything_that_is_held_is_said_again_and_nothing_else() {
        let mut own = Own::default();
        for n in 0..5 {
            own.announce(AgentId(n), Epoch(1));
        }
        assert_eq!((own.say(3).len(), own.say(3).len(), own.said()), (3, 2, 5));
        own.withdraw(AgentId(0), Epoch(1), NOW);
        own.unsay();
        assert_eq!(own.said(), 0);
        let mut again = own.say(10);
        again.sort();
        let mut expected = vec![(AgentId(0), None)];
        expected.extend((1..5).map(|n| (AgentId(n), Some("[1,1,[]]".to_owned()))));
        assert_eq!(again, expected);
    }

    #[test]
    fn who_is_described_but_not_announced_is_not_here() {
        let mut own = Own::default();
        own.describe(AGENT, Vec::new());
        assert!(own.get(AGENT).is_none());
        assert_eq!(own.say(10), []);
    }
}
