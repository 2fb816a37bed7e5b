//! One reader that follows the graph. It decides what to send; it has no I/O and no clock.
//!
//! A reader owns no queue: it has a position in the order of changes, and a bit for each object that it was sent. However slow it is, it
//! delays nobody and takes no more memory.

use std::{collections::HashMap, sync::Arc};

use proto::{
    agent_configuration::graph::GraphSection,
    graph::{GoneReason, GraphEvent, Group, Token, View, WatchMode},
};

use crate::{
    access::Access,
    graph::{Change, Graph},
    query::Query,
};

/// The most objects of one batch. The graph is locked while a batch is made.
const BATCH: usize = 500;

/// A reader of the graph.
#[derive(Debug)]
pub struct Viewer {
    query: Query,
    access: Access,
    shown: Shown,
    /// The changes up to this number were sent.
    cursor: u64,
    /// Deletions up to this number do not matter: the objects were never sent.
    began: u64,
    sent: SentObjects,
    /// The states of resources that were sent.
    state_version: Option<u64>,
    sent_groups: HashMap<String, Group>,
    sent_views: Option<Vec<View>>,
    /// The number of the last change, and of the last state, that groups or views were computed from.
    computed: Option<(u64, u64)>,
    /// The time at which groups change if no object does, in seconds since 1970.
    due: Option<i64>,
    /// A commit is due once all changes were sent.
    uncommitted: bool,
}

/// The kind of data that is sent to a reader.
#[derive(Clone, Debug)]
pub enum Shown {
    /// Objects.
    Objects,
    /// Groups, in place of objects.
    Groups,
    /// The views of a configuration, in place of objects.
    Views(Arc<GraphSection>),
}

/// The objects that a reader was sent, as one bit for each place.
#[derive(Debug, Default)]
struct SentObjects(Vec<u64>);

impl Viewer {
    /// Returns a reader with its first line. `since` is the position from which it continues.
    pub fn new(
        graph: &Graph,
        query: Query,
        shown: Shown,
        access: Access,
        since: Option<(Token, bool)>,
    ) -> (Self, GraphEvent) {
        let mut viewer = Self {
            query,
            access,
            shown,
            cursor: 0,
            began: graph.sequence(),
            sent: SentObjects::default(),
            state_version: None,
            sent_groups: HashMap::new(),
            sent_views: None,
            computed: None,
            due: None,
            uncommitted: true,
        };
        let mode = match since {
            None => WatchMode::Snapshot,
            Some((token, true)) if viewer.resume(graph, token.sequence) => WatchMode::Delta,
            Some(_) => WatchMode::Reset,
        };
        (viewer, GraphEvent::Begin { mode })
    }

    /// Continues after a change. Returns false if deletions since then are forgotten.
    fn resume(&mut self, graph: &Graph, sequence: u64) -> bool {
        let known = sequence <= graph.sequence() && graph.remembers(sequence);
        // An object may have joined or left a group without a change of its own.
        if !known || !matches!(self.shown, Shown::Objects) || self.query.group.is_some() {
            return false;
        }
        (self.cursor, self.began) = (sequence, sequence);
        // Objects that have changed since then may have been sent before. A line that an object is gone harms nobody who does not know it.
        for (slot, entry) in graph.entries() {
            let selected = self.access.sees_entry(entry) && self.query.selects(graph, entry);
            if entry.sequence > sequence || selected {
                self.sent.insert(slot);
            }
        }
        // Places of deleted objects are not in use, or belong to objects that have changed since.
        for change in graph.changes_after(sequence, usize::MAX) {
            if let Change::Deleted(tombstone) = change {
                self.sent.insert(tombstone.slot);
            }
        }
        true
    }

    /// Returns the next lines. They are empty if the reader knows everything. Call this again until they are.
    pub fn next(&mut self, graph: &Graph, token: impl Fn(u64) -> Token, now: i64) -> Vec<GraphEvent> {
        let mut events = Vec::new();
        let has_states = !matches!(self.shown, Shown::Views(_));
        if has_states && self.state_version != Some(graph.state_version()) {
            self.state_version = Some(graph.state_version());
            events.push(graph.state_event(&self.query, &self.access));
        }
        let before = self.cursor;
        match &self.shown {
            Shown::Objects if self.query.group.is_none() => self.next_objects(graph, &mut events),
            Shown::Objects if self.cursor == graph.sequence() && !self.uncommitted => {}
            Shown::Objects => self.compare(graph, GoneReason::Filter, &mut events),
            Shown::Groups | Shown::Views(_) => self.next_computed(graph, now, &mut events),
        }
        self.uncommitted |= !events.is_empty() || before != self.cursor;
        if self.uncommitted && self.cursor >= graph.sequence() {
            self.uncommitted = false;
            events.push(GraphEvent::Commit { token: token(self.cursor) });
        }
        events
    }

    /// Returns the time at which there are lines also without a change, in seconds since 1970.
    pub fn due(&self) -> Option<i64> {
        self.due
    }

    /// Replaces the access. Returns the lines about objects that come into view, or leave it.
    pub fn set_access(&mut self, graph: &Graph, access: Access) -> Vec<GraphEvent> {
        let mut events = Vec::new();
        if self.access == access {
            return events;
        }
        self.access = access;
        // The sentences about what is hidden change, too.
        self.state_version = None;
        if let Shown::Objects = self.shown {
            self.compare(graph, GoneReason::Permission, &mut events);
            self.uncommitted = true;
        } else {
            self.computed = None;
        }
        events
    }

    fn next_objects(&mut self, graph: &Graph, events: &mut Vec<GraphEvent>) {
        if !graph.remembers(self.cursor.max(self.began)) {
            // The reader is so slow that deletions are forgotten.
            self.sent = SentObjects::default();
            (self.cursor, self.began) = (0, graph.sequence());
            events.push(GraphEvent::Begin { mode: WatchMode::Reset });
        }
        // A batch of which nothing is selected has no line, and the reader still does not know everything.
        let before = events.len();
        loop {
            let changes = graph.changes_after(self.cursor, BATCH);
            let is_last = changes.len() < BATCH;
            changes.into_iter().for_each(|change| self.next_object(graph, change, events));
            if is_last {
                // Changes of objects that were changed again later have no line.
                self.cursor = graph.sequence();
                return;
            }
            if events.len() > before {
                return;
            }
        }
    }

    fn next_object(&mut self, graph: &Graph, change: Change<'_>, events: &mut Vec<GraphEvent>) {
        self.cursor = change.sequence();
        match change {
            Change::Deleted(tombstone) => {
                if self.sent.remove(tombstone.slot) {
                    let (uid, reason) = (tombstone.uid.to_string(), GoneReason::Deleted);
                    events.push(GraphEvent::Gone { uid, reason });
                }
            }
            Change::Object(slot, entry) => {
                if self.access.sees_entry(entry) && self.query.selects(graph, entry) {
                    self.sent.insert(slot);
                    events.push(node(graph, slot, &self.access));
                } else if self.sent.remove(slot) {
                    let (uid, reason) = (entry.uid.to_string(), GoneReason::Filter);
                    events.push(GraphEvent::Gone { uid, reason });
                }
            }
        }
    }

    /// Compares everything that was sent with everything that is selected. A change of an owner moves objects into a group, and others
    /// out of it, that have not changed themselves.
    fn compare(&mut self, graph: &Graph, reason: GoneReason, events: &mut Vec<GraphEvent>) {
        for change in graph.changes_after(self.cursor, usize::MAX) {
            if let Change::Deleted(tombstone) = change
                && self.sent.remove(tombstone.slot)
            {
                let (uid, reason) = (tombstone.uid.to_string(), GoneReason::Deleted);
                events.push(GraphEvent::Gone { uid, reason });
            }
        }
        let selected = graph.select(&self.query, &self.access);
        let mut now = SentObjects::default();
        for slot in selected {
            now.insert(slot);
            if !self.sent.contains(slot) || graph.entry(slot).sequence > self.cursor {
                events.push(node(graph, slot, &self.access));
            }
        }
        for (slot, entry) in graph.entries() {
            if self.sent.contains(slot) && !now.contains(slot) {
                events.push(GraphEvent::Gone { uid: entry.uid.to_string(), reason });
            }
        }
        self.sent = now;
        self.cursor = graph.sequence();
    }

    /// Computes groups or views, if something has changed, or has been unhealthy for long enough.
    fn next_computed(&mut self, graph: &Graph, now: i64, events: &mut Vec<GraphEvent>) {
        self.cursor = graph.sequence();
        let position = Some((graph.sequence(), graph.state_version()));
        if self.computed == position && self.due.is_none_or(|due| now < due) {
            return;
        }
        self.computed = position;
        let Shown::Views(section) = &self.shown else { return self.next_groups(graph, now, events) };
        let views = graph.views(&section.views, &self.access);
        if self.sent_views.as_ref() != Some(&views) {
            self.sent_views = Some(views.clone());
            events.push(GraphEvent::Views { views });
        }
    }

    fn next_groups(&mut self, graph: &Graph, now: i64, events: &mut Vec<GraphEvent>) {
        let groups = graph.groups(&self.query, &self.access, now).groups;
        self.due = graph.next_due(&self.query, &self.access, now);
        let mut known = std::mem::take(&mut self.sent_groups);
        let mut changed = Vec::new();
        for group in groups {
            if known.remove(&group.id).as_ref() != Some(&group) {
                changed.push(group.clone());
            }
            self.sent_groups.insert(group.id.clone(), group);
        }
        let mut gone: Vec<String> = known.into_keys().collect();
        gone.sort_unstable();
        if !changed.is_empty() || !gone.is_empty() {
            events.push(GraphEvent::Groups { changed, gone });
        }
    }
}

impl SentObjects {
    fn insert(&mut self, slot: u32) {
        let (word, bit) = place(slot);
        if self.0.len() <= word {
            self.0.resize(word + 1, 0);
        }
        self.0[word] |= bit;
    }

    fn contains(&self, slot: u32) -> bool {
        let (word, bit) = place(slot);
        self.0.get(word).is_some_and(|bits| bits & bit != 0)
    }

    /// Removes an object. Returns whether it was there.
    fn remove(&mut self, slot: u32) -> bool {
        let known = self.contains(slot);
        if known {
            let (word, bit) = place(slot);
            self.0[word] &= !bit;
        }
        known
    }
}

fn place(slot: u32) -> (usize, u64) {
    (slot as usize / 64, 1 << (slot % 64))
}

fn node(graph: &Graph, slot: u32, access: &Access) -> GraphEvent {
    GraphEvent::Node { node: Box::new(graph.node(slot, access)) }
}
