//! The other replicas that are alive. This module does no I/O, and its clock is this replica's own heartbeats.
//!
//! A replica is dead once several own heartbeats arrived and no event of that replica. While Redis, or the network to
//! it, is down, no own heartbeats arrive either: no replica expires, and all of them stay in use.
//!
//! ```text
//!           event received               HEARTBEATS_TO_EXPIRY own heartbeats without its event
//!   unknown ─────────────► confirmed ────────────────────────────────────────────► dead
//!                           │     ▲                                                 ▲
//!       this replica has    │     │ event received, or its heartbeat                │ the same
//!       connected anew      ▼     │ was found in Redis                              │
//!                         unconfirmed ──────────────────────────────────────────────┘
//! ```
//!
//! Redis may have lost the records of an unconfirmed replica: its earlier routes stay valid.

use std::collections::HashMap;

use proto::{AgentId, ReplicaId};

use super::{
    keys::{HEARTBEAT_INTERVAL, HEARTBEAT_TTL},
    wire::{Heartbeat, RedisEvent, RedisEventKind},
};
use crate::routes::Replica;

/// The number of own heartbeats that take as long as the TTL of a heartbeat.
const HEARTBEATS_TO_EXPIRY: u64 = HEARTBEAT_TTL.as_secs().div_ceil(HEARTBEAT_INTERVAL.as_secs());
/// The highest number of other replicas. It bounds the memory that forged heartbeats can use.
pub(super) const MAX_REPLICAS: usize = 256;

/// The other replicas of the fleet.
#[derive(Debug)]
pub(super) struct Members {
    /// The id of this replica.
    replica: ReplicaId,
    fleet: String,
    others: HashMap<ReplicaId, Member>,
    /// The number of own heartbeats received.
    own_heartbeats: u64,
}

#[derive(Debug)]
struct Member {
    replica: Replica,
    /// The number of its tunnels, or `None` if it takes no more.
    tunnels: Option<u32>,
    generation: u64,
    sequence: u64,
    /// The value of `own_heartbeats` when its last event arrived.
    last_seen: u64,
    confirmed: bool,
}

/// The effect of an event on cached lookups.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Effect {
    /// Nothing changed.
    None,
    /// The event was sent by this replica.
    OwnEvent,
    /// The cached lookups of these agents are invalid.
    InvalidateAgents(Vec<AgentId>),
    /// All cached lookups are invalid.
    InvalidateAll,
    /// The event was sent by a replica of this other fleet.
    OtherFleet(String),
}

impl Members {
    pub(super) fn new(replica: ReplicaId, fleet: String) -> Self {
        Self { replica, fleet, others: HashMap::new(), own_heartbeats: 0 }
    }

    /// Updates the sender of an event and returns the event's effect.
    pub(super) fn handle_event(&mut self, event: RedisEvent) -> Effect {
        let RedisEvent { replica, generation, sequence, kind } = event;
        if replica == self.replica {
            if matches!(kind, RedisEventKind::Heartbeat(_)) {
                self.own_heartbeats += 1;
            }
            return Effect::OwnEvent;
        }

        let last_seen = self.own_heartbeats;
        let Some(member) = self.others.get_mut(&replica) else {
            return match kind {
                RedisEventKind::Heartbeat(heartbeat) => self.insert(replica, heartbeat, generation, sequence),
                // Its heartbeat was missed; the next one adds it and invalidates everything.
                RedisEventKind::Changed(_)
                | RedisEventKind::Pushed(_)
                | RedisEventKind::Disabled
                | RedisEventKind::Logged
                | RedisEventKind::Left => Effect::None,
            };
        };
        if generation < member.generation {
            return Effect::None;
        }

        let next = generation == member.generation && sequence == member.sequence + 1;
        let complete = next && member.confirmed;
        (member.generation, member.sequence, member.last_seen, member.confirmed) =
            (generation, sequence, last_seen, true);
        if let RedisEventKind::Heartbeat(heartbeat) = &kind {
            member.tunnels = heartbeat.tunnels;
        }
        match kind {
            RedisEventKind::Left => {
                self.others.remove(&replica);
                Effect::InvalidateAll
            }
            RedisEventKind::Changed(agents) if complete => Effect::InvalidateAgents(agents),
            RedisEventKind::Heartbeat(_)
            | RedisEventKind::Pushed(_)
            | RedisEventKind::Disabled
            | RedisEventKind::Logged
                if complete =>
            {
                Effect::None
            }
            RedisEventKind::Heartbeat(_)
            | RedisEventKind::Changed(_)
            | RedisEventKind::Pushed(_)
            | RedisEventKind::Disabled
            | RedisEventKind::Logged => Effect::InvalidateAll,
        }
    }

    fn insert(&mut self, id: ReplicaId, heartbeat: Heartbeat, generation: u64, sequence: u64) -> Effect {
        if heartbeat.fleet != self.fleet {
            return Effect::OtherFleet(heartbeat.fleet);
        }
        if self.others.len() >= MAX_REPLICAS {
            return Effect::None;
        }
        let Heartbeat { url, tunnels, .. } = heartbeat;
        let (replica, last_seen) = (Replica { id, url }, self.own_heartbeats);
        let member = Member { replica, tunnels, generation, sequence, last_seen, confirmed: true };
        self.others.insert(id, member);
        Effect::InvalidateAll
    }

    /// Merges the heartbeats that were found in Redis after this replica has connected.
    ///
    /// Known replicas that were not found become unconfirmed, and dead unless an event of theirs arrives in time.
    pub(super) fn resync(&mut self, found: Vec<(ReplicaId, Heartbeat)>) {
        for member in self.others.values_mut() {
            (member.confirmed, member.last_seen) = (false, self.own_heartbeats);
        }
        for (id, heartbeat) in found {
            if id == self.replica || heartbeat.fleet != self.fleet {
                continue;
            }
            match self.others.get_mut(&id) {
                // The next event counts as a gap, because events may have been missed.
                Some(member) => (member.confirmed, member.sequence) = (true, 0),
                None => drop(self.insert(id, heartbeat, 0, 0)),
            }
        }
    }

    /// Removes the replicas that are dead, and returns their ids.
    pub(super) fn remove_expired(&mut self) -> Vec<ReplicaId> {
        let now = self.own_heartbeats;
        let expired = self.others.extract_if(|_, member| now >= member.last_seen + HEARTBEATS_TO_EXPIRY);
        expired.map(|(id, _)| id).collect()
    }

    /// Returns another replica of this fleet, if it is alive.
    pub(super) fn get(&self, id: ReplicaId) -> Option<&Replica> {
        self.others.get(&id).map(|member| &member.replica)
    }

    /// Returns whether the replica is alive but Redis may have lost its records.
    pub(super) fn is_unconfirmed(&self, id: ReplicaId) -> bool {
        self.others.get(&id).is_some_and(|member| !member.confirmed)
    }

    /// Returns the ids of all other live replicas.
    pub(super) fn ids(&self) -> Vec<ReplicaId> {
        self.others.keys().copied().collect()
    }

    /// Returns all other live replicas.
    pub(super) fn replicas(&self) -> Vec<Replica> {
        self.others.values().map(|member| member.replica.clone()).collect()
    }

    /// Returns the number of tunnels of each other live replica that takes more.
    pub(super) fn loads(&self) -> Vec<(ReplicaId, u32)> {
        self.others.iter().filter_map(|(id, member)| Some((*id, member.tunnels?))).collect()
    }

    /// Returns the number of own heartbeats received.
    pub(super) fn own_heartbeats(&self) -> u64 {
        self.own_heartbeats
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn members() -> Members {
        Members::new(ReplicaId::random(), "blue".into())
    }

    fn heartbeat(fleet: &str) -> Heartbeat {
        Heartbeat {
            url: "http://other:8155".into(),
            fleet: fleet.into(),
            kas: "0.1.0".into(),
            started: 0,
            tunnels: None,
            mac: None,
        }
    }

    fn event(replica: ReplicaId, generation: u64, sequence: u64, kind: RedisEventKind) -> RedisEvent {
        RedisEvent { replica, generation, sequence, kind }
    }

    fn alive(replica: ReplicaId, generation: u64, sequence: u64) -> RedisEvent {
        event(replica, generation, sequence, RedisEventKind::Heartbeat(heartbeat("blue")))
    }

    fn changed(replica: ReplicaId, generation: u64, sequence: u64) -> RedisEvent {
        event(replica, generation, sequence, RedisEventKind::Changed(vec![AgentId(7)]))
    }

    fn own_heartbeat(members: &mut Members) {
        let event = alive(members.replica, 1, members.own_heartbeats);
        assert_eq!(members.handle_event(event), Effect::OwnEvent);
    }

    #[test]
    fn event_gap_invalidates_everything() {
        let (mut members, other) = (members(), ReplicaId::random());
        let agent = || Effect::InvalidateAgents(vec![AgentId(7)]);
        assert_eq!(members.handle_event(changed(other, 1, 1)), Effect::None, "an unknown replica");
        assert_eq!(members.handle_event(alive(other, 1, 2)), Effect::InvalidateAll);
        assert_eq!(members.handle_event(changed(other, 1, 3)), agent());
        assert_eq!(members.handle_event(alive(other, 1, 4)), Effect::None);
        assert_eq!(members.handle_event(alive(other, 1, 6)), Effect::InvalidateAll, "5 was missed");
        assert_eq!(members.handle_event(changed(other, 2, 1)), Effect::InvalidateAll, "a new generation");
        assert_eq!(members.handle_event(changed(other, 1, 7)), Effect::None, "the old generation");
        assert_eq!(members.handle_event(changed(other, 2, 2)), agent());
    }

    #[test]
    fn replica_expires_after_own_heartbeats_without_its_events() {
        let (mut members, other) = (members(), ReplicaId::random());
        members.handle_event(alive(other, 1, 1));
        for _ in 1..HEARTBEATS_TO_EXPIRY {
            own_heartbeat(&mut members);
            assert!(members.remove_expired().is_empty());
        }
        members.handle_event(alive(other, 1, 2));
        own_heartbeat(&mut members);
        assert!(members.remove_expired().is_empty(), "its event arrived in between");
        for _ in 1..HEARTBEATS_TO_EXPIRY {
            own_heartbeat(&mut members);
        }
        assert_eq!(members.remove_expired(), [other]);
        assert!(members.get(other).is_none());
    }

    #[test]
    fn loads_are_those_of_the_last_heartbeats_of_live_replicas() {
        let (mut members, other, full) = (members(), ReplicaId::random(), ReplicaId::random());
        let load = |sequence, tunnels| {
            event(other, 1, sequence, RedisEventKind::Heartbeat(Heartbeat { tunnels, ..heartbeat("blue") }))
        };
        members.handle_event(alive(full, 1, 1));
        members.handle_event(load(1, Some(7)));
        assert_eq!(members.loads(), [(other, 7)]);
        members.handle_event(load(2, Some(8)));
        assert_eq!(members.loads(), [(other, 8)]);
        members.handle_event(changed(other, 1, 3));
        assert_eq!(members.loads(), [(other, 8)]);
        members.handle_event(load(4, None));
        assert!(members.loads().is_empty());
        members.handle_event(load(5, Some(9)));
        members.handle_event(event(other, 1, 6, RedisEventKind::Left));
        assert!(members.loads().is_empty());
    }

    #[test]
    fn left_replica_is_removed_at_once() {
        let (mut members, other) = (members(), ReplicaId::random());
        members.handle_event(alive(other, 1, 1));
        assert_eq!(members.handle_event(event(other, 1, 2, RedisEventKind::Left)), Effect::InvalidateAll);
        assert!(members.get(other).is_none());
    }

    #[test]
    fn resync_keeps_missing_replicas_until_they_expire() {
        let (mut members, other, third) = (members(), ReplicaId::random(), ReplicaId::random());
        members.handle_event(alive(other, 1, 1));
        members.handle_event(alive(third, 1, 1));
        members.resync(vec![(third, heartbeat("blue"))]);
        assert!(members.is_unconfirmed(other) && !members.is_unconfirmed(third));
        assert_eq!(
            members.handle_event(changed(third, 1, 2)),
            Effect::InvalidateAll,
            "events may be missing"
        );
        assert_eq!(members.handle_event(alive(other, 2, 1)), Effect::InvalidateAll);
        assert!(!members.is_unconfirmed(other));

        members.resync(vec![]);
        for _ in 0..HEARTBEATS_TO_EXPIRY {
            own_heartbeat(&mut members);
        }
        assert_eq!(members.remove_expired().len(), 2);
    }

    #[test]
    fn other_fleet_is_no_member() {
        let (mut members, other) = (members(), ReplicaId::random());
        let foreign = event(other, 1, 1, RedisEventKind::Heartbeat(heartbeat("green")));
        assert_eq!(members.handle_event(foreign), Effect::OtherFleet("green".into()));
        members.resync(vec![(other, heartbeat("green"))]);
        assert!(members.get(other).is_none());
    }

    #[test]
    fn forged_replicas_use_bounded_memory() {
        let mut members = members();
        for _ in 0..2 * MAX_REPLICAS {
            members.handle_event(alive(ReplicaId::random(), 1, 1));
        }
        assert_eq!(members.ids().len(), MAX_REPLICAS);
    }
}
