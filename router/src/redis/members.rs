//! Who else is there, as this replica heard it. Pure: its clock is its own heartbeats.
//!
//! A replica is dead once this one has heard itself several times and the other not. Time in which Redis, or the way to
//! it, is down does not count: then nobody hears anybody, and everybody serves on.
//!
//! ```text
//!             heard                     BEATS_TO_DEATH own beats in silence
//!   unknown ─────────► known, certain ───────────────────────────────────► dead
//!                        │      ▲                                            ▲
//!     this replica was    │      │ heard again, or its heartbeat              │ the same
//!     cut off from Redis  ▼      │ was found in Redis                         │
//!                      known, uncertain ──────────────────────────────────────┘
//! ```
//!
//! Of an uncertain replica Redis may have lost the records: what was known of it before stays good.

use std::collections::HashMap;

use proto::{AgentId, ReplicaId};

use super::{
    keys::{BEAT, LIFE},
    wire::{Event, Heartbeat, News},
};
use crate::store::Replica;

/// So many own beats take as long as the life of a heartbeat.
const BEATS_TO_DEATH: u64 = LIFE.as_secs().div_ceil(BEAT.as_secs());
/// Most replicas that are believed in: forged heartbeats cost no more memory than this.
pub(super) const MAX_REPLICAS: usize = 256;

/// The table.
#[derive(Debug)]
pub(super) struct Members {
    me: ReplicaId,
    fleet: String,
    others: HashMap<ReplicaId, Member>,
    /// How often this replica has heard itself.
    beats: u64,
}

#[derive(Debug)]
struct Member {
    replica: Replica,
    /// How many tunnels it has, if it takes more.
    tunnels: Option<u32>,
    generation: u64,
    sequence: u64,
    /// At which of the own beats it was heard last.
    heard: u64,
    certain: bool,
}

/// What an event means for what is known.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Meaning {
    /// Nothing.
    Nothing,
    /// This replica has heard itself.
    Own,
    /// What is known of these agents is old.
    Agents(Vec<AgentId>),
    /// Everything that is known is old.
    Everything,
    /// A replica of another fleet speaks.
    Foreigner(String),
}

impl Members {
    pub(super) fn new(me: ReplicaId, fleet: String) -> Self {
        Self { me, fleet, others: HashMap::new(), beats: 0 }
    }

    /// Takes an event.
    pub(super) fn hear(&mut self, event: Event) -> Meaning {
        let Event { from, generation, sequence, news } = event;
        if from == self.me {
            if matches!(news, News::Beat(_)) {
                self.beats += 1;
            }
            return Meaning::Own;
        }

        let beats = self.beats;
        let Some(member) = self.others.get_mut(&from) else {
            return match news {
                News::Beat(beat) => self.welcome(from, beat, generation, sequence),
                // Its first word was missed; its next beat says everything.
                News::Changed(_) | News::Left => Meaning::Nothing,
            };
        };
        if generation < member.generation {
            return Meaning::Nothing;
        }

        let next = generation == member.generation && sequence == member.sequence + 1;
        let whole = next && member.certain;
        (member.generation, member.sequence, member.heard, member.certain) =
            (generation, sequence, beats, true);
        if let News::Beat(beat) = &news {
            member.tunnels = beat.tunnels;
        }
        match news {
            News::Left => {
                self.others.remove(&from);
                Meaning::Everything
            }
            News::Beat(_) if whole => Meaning::Nothing,
            News::Changed(agents) if whole => Meaning::Agents(agents),
            News::Beat(_) | News::Changed(_) => Meaning::Everything,
        }
    }

    fn welcome(&mut self, id: ReplicaId, beat: Heartbeat, generation: u64, sequence: u64) -> Meaning {
        if beat.fleet != self.fleet {
            return Meaning::Foreigner(beat.fleet);
        }
        if self.others.len() >= MAX_REPLICAS {
            return Meaning::Nothing;
        }
        let Heartbeat { url, tunnels, .. } = beat;
        let replica = Replica { id, url };
        let member = Member { replica, tunnels, generation, sequence, heard: self.beats, certain: true };
        self.others.insert(id, member);
        Meaning::Everything
    }

    /// Takes the heartbeats that were found in Redis after this replica was cut off from it. Those that are known and
    /// were not found have some beats' time to be heard.
    pub(super) fn adopt(&mut self, found: Vec<(ReplicaId, Heartbeat)>) {
        for member in self.others.values_mut() {
            (member.certain, member.heard) = (false, self.beats);
        }
        for (id, beat) in found {
            if id == self.me || beat.fleet != self.fleet {
                continue;
            }
            match self.others.get_mut(&id) {
                // Its next event is taken for a gap.
                Some(member) => (member.certain, member.sequence) = (true, 0),
                None => drop(self.welcome(id, beat, 0, 0)),
            }
        }
    }

    /// Forgets those that are dead, and names them.
    pub(super) fn bury(&mut self) -> Vec<ReplicaId> {
        let beats = self.beats;
        let dead = self.others.extract_if(|_, member| beats >= member.heard + BEATS_TO_DEATH);
        dead.map(|(id, _)| id).collect()
    }

    /// Another replica of this fleet, if it lives.
    pub(super) fn get(&self, id: ReplicaId) -> Option<&Replica> {
        self.others.get(&id).map(|member| &member.replica)
    }

    /// Whether Redis may have lost what this replica, if it lives, holds.
    pub(super) fn is_uncertain(&self, id: ReplicaId) -> bool {
        self.others.get(&id).is_some_and(|member| !member.certain)
    }

    /// All others that live.
    pub(super) fn ids(&self) -> Vec<ReplicaId> {
        self.others.keys().copied().collect()
    }

    /// The same, as others reach them.
    pub(super) fn all(&self) -> Vec<Replica> {
        self.others.values().map(|member| member.replica.clone()).collect()
    }

    /// How many tunnels those have that take more.
    pub(super) fn loads(&self) -> Vec<(ReplicaId, u32)> {
        self.others.iter().filter_map(|(id, member)| Some((*id, member.tunnels?))).collect()
    }

    /// How often this replica has heard itself.
    pub(super) fn beats(&self) -> u64 {
        self.beats
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn members() -> Members {
        Members::new(ReplicaId::random(), "blue".into())
    }

    fn beat(fleet: &str) -> Heartbeat {
        Heartbeat {
            url: "http://other:8155".into(),
            fleet: fleet.into(),
            kas: "0.1.0".into(),
            started: 0,
            tunnels: None,
        }
    }

    fn event(from: ReplicaId, generation: u64, sequence: u64, news: News) -> Event {
        Event { from, generation, sequence, news }
    }

    fn lives(from: ReplicaId, generation: u64, sequence: u64) -> Event {
        event(from, generation, sequence, News::Beat(beat("blue")))
    }

    fn changed(from: ReplicaId, generation: u64, sequence: u64) -> Event {
        event(from, generation, sequence, News::Changed(vec![AgentId(7)]))
    }

    fn own_beat(members: &mut Members) {
        let beat = lives(members.me, 1, members.beats);
        assert_eq!(members.hear(beat), Meaning::Own);
    }

    #[test]
    fn events_in_order_say_what_is_old_and_a_gap_says_everything() {
        let (mut members, other) = (members(), ReplicaId::random());
        assert_eq!(members.hear(changed(other, 1, 1)), Meaning::Nothing, "a stranger");
        assert_eq!(members.hear(lives(other, 1, 2)), Meaning::Everything);
        assert_eq!(members.hear(changed(other, 1, 3)), Meaning::Agents(vec![AgentId(7)]));
        assert_eq!(members.hear(lives(other, 1, 4)), Meaning::Nothing);
        assert_eq!(members.hear(lives(other, 1, 6)), Meaning::Everything, "5 was missed");
        assert_eq!(members.hear(changed(other, 2, 1)), Meaning::Everything, "it has connected anew");
        assert_eq!(members.hear(changed(other, 1, 7)), Meaning::Nothing, "left over from before");
        assert_eq!(members.hear(changed(other, 2, 2)), Meaning::Agents(vec![AgentId(7)]));
    }

    #[test]
    fn a_silent_replica_is_dead_after_some_own_beats_and_not_after_silence_of_all() {
        let (mut members, other) = (members(), ReplicaId::random());
        members.hear(lives(other, 1, 1));
        for _ in 1..BEATS_TO_DEATH {
            own_beat(&mut members);
            assert!(members.bury().is_empty());
        }
        members.hear(lives(other, 1, 2));
        own_beat(&mut members);
        assert!(members.bury().is_empty(), "it was heard in between");
        for _ in 1..BEATS_TO_DEATH {
            own_beat(&mut members);
        }
        assert_eq!(members.bury(), [other]);
        assert!(members.get(other).is_none());
    }

    #[test]
    fn the_load_is_what_each_said_last_and_of_the_dead_there_is_none() {
        let (mut members, other, shy) = (members(), ReplicaId::random(), ReplicaId::random());
        let says =
            |sequence, tunnels| event(other, 1, sequence, News::Beat(Heartbeat { tunnels, ..beat("blue") }));
        members.hear(lives(shy, 1, 1));
        members.hear(says(1, Some(7)));
        assert_eq!(members.loads(), [(other, 7)]);
        members.hear(says(2, Some(8)));
        assert_eq!(members.loads(), [(other, 8)]);
        members.hear(changed(other, 1, 3));
        assert_eq!(members.loads(), [(other, 8)]);
        members.hear(says(4, None));
        assert!(members.loads().is_empty());
        members.hear(says(5, Some(9)));
        members.hear(event(other, 1, 6, News::Left));
        assert!(members.loads().is_empty());
    }

    #[test]
    fn who_says_goodbye_is_gone_at_once() {
        let (mut members, other) = (members(), ReplicaId::random());
        members.hear(lives(other, 1, 1));
        assert_eq!(members.hear(event(other, 1, 2, News::Left)), Meaning::Everything);
        assert!(members.get(other).is_none());
    }

    #[test]
    fn after_redis_lost_its_data_the_others_have_time_to_come_back() {
        let (mut members, other, third) = (members(), ReplicaId::random(), ReplicaId::random());
        members.hear(lives(other, 1, 1));
        members.hear(lives(third, 1, 1));
        members.adopt(vec![(third, beat("blue"))]);
        assert!(members.is_uncertain(other) && !members.is_uncertain(third));
        assert_eq!(members.hear(changed(third, 1, 2)), Meaning::Everything, "some may have been missed");
        assert_eq!(members.hear(lives(other, 2, 1)), Meaning::Everything);
        assert!(!members.is_uncertain(other));

        members.adopt(vec![]);
        for _ in 0..BEATS_TO_DEATH {
            own_beat(&mut members);
        }
        assert_eq!(members.bury().len(), 2);
    }

    #[test]
    fn another_fleet_is_not_believed() {
        let (mut members, other) = (members(), ReplicaId::random());
        let foreign = event(other, 1, 1, News::Beat(beat("green")));
        assert_eq!(members.hear(foreign), Meaning::Foreigner("green".into()));
        members.adopt(vec![(other, beat("green"))]);
        assert!(members.get(other).is_none());
    }

    #[test]
    fn forged_replicas_cost_a_bounded_memory() {
        let mut members = members();
        for _ in 0..2 * MAX_REPLICAS {
            members.hear(lives(ReplicaId::random(), 1, 1));
        }
        assert_eq!(members.ids().len(), MAX_REPLICAS);
    }
}
