//! The objects that are known, in memory. It has no I/O.
//!
//! Each change has a number. Objects are in order of the number of their last change, and so are the last deletions: a reader that knows
//! all changes up to a number asks for those above it, and gets each object once, however often it has changed.

mod limits;
mod resources;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, VecDeque},
    sync::Arc,
};

use kube::core::ApiResource;
use proto::graph::{HealthState, ResourceState};
use serde_json::Value;

pub use self::limits::{GraphLimits, Limit};
pub(crate) use self::{limits::LimitExceeded, resources::Resource};
use crate::{
    access::Access,
    entry::{self, Entry, Facts, Text},
    text::Interner,
    warnings::Warnings,
};

/// The deletions that are remembered for readers that continue.
const TOMBSTONES: usize = 16_384;

/// The objects of a cluster.
#[derive(Debug)]
pub struct Graph {
    limits: GraphLimits,
    resources: Vec<Resource>,
    /// Kinds of programs that the API server has and that are not loaded.
    pub(crate) left_out: Vec<ApiResource>,
    /// An object keeps its place until it is deleted.
    slots: Vec<Option<Box<Entry>>>,
    free: Vec<u32>,
    by_uid: HashMap<Text, u32>,
    /// The objects in order of their last change.
    changes: BTreeMap<u64, u32>,
    tombstones: VecDeque<Tombstone>,
    /// Deletions up to this number are forgotten.
    forgotten: u64,
    sequence: u64,
    /// Objects that select Pods, by namespace.
    selectors: HashMap<Text, BTreeSet<u32>>,
    pods: HashMap<Text, BTreeSet<u32>>,
    /// The number of the resource of Pods.
    pod_resource: Option<usize>,
    /// The objects that become healthy by themselves, by the time.
    recoveries: BTreeSet<(i64, u32)>,
    pub(crate) warnings: Warnings,
    interner: Interner,
    bytes: usize,
    /// The number of changes of the states of resources.
    state_version: u64,
}

/// An object that was deleted.
#[derive(Debug)]
pub(crate) struct Tombstone {
    pub(crate) sequence: u64,
    pub(crate) slot: u32,
    pub(crate) uid: Text,
}

/// A change for a reader.
#[derive(Debug)]
pub(crate) enum Change<'a> {
    Object(u32, &'a Entry),
    Deleted(&'a Tombstone),
}

impl Change<'_> {
    pub(crate) fn sequence(&self) -> u64 {
        match self {
            Self::Object(_, entry) => entry.sequence,
            Self::Deleted(tombstone) => tombstone.sequence,
        }
    }
}

impl Graph {
    /// Returns an empty graph.
    pub fn new(limits: GraphLimits) -> Self {
        Self {
            limits,
            resources: Vec::new(),
            left_out: Vec::new(),
            slots: Vec::new(),
            free: Vec::new(),
            by_uid: HashMap::new(),
            changes: BTreeMap::new(),
            tombstones: VecDeque::new(),
            forgotten: 0,
            sequence: 0,
            selectors: HashMap::new(),
            pods: HashMap::new(),
            pod_resource: None,
            recoveries: BTreeSet::new(),
            warnings: Warnings::default(),
            interner: Interner::default(),
            bytes: 0,
            state_version: 0,
        }
    }

    /// Adds or changes an object.
    ///
    /// # Errors
    ///
    /// A limit is exceeded; the object is not added.
    pub(crate) fn apply(
        &mut self,
        resource: usize,
        object: &mut Value,
        now: i64,
    ) -> Result<(), LimitExceeded> {
        let kind = &self.resources[resource].kind;
        let Some((uid, facts)) = entry::read(kind, object, &mut self.interner, now) else { return Ok(()) };
        if let Some(&slot) = self.by_uid.get(&uid) {
            self.change(slot, resource, facts, now);
            return Ok(());
        }
        let size = facts.size();
        self.check_limits(resource, size)?;
        // Deleted and created again between two looks.
        let name = full_name(&facts.namespace, &facts.name);
        if let Some(&before) = self.resources[resource].names.get(&*name) {
            self.remove(before);
        }
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            u32::try_from(self.slots.len() - 1).expect("the limit of objects is lower")
        });
        let sequence = self.next();
        let known = &mut self.resources[resource];
        known.names.insert(name, slot);
        known.objects += 1;
        let round = known.round;
        self.bytes += size;
        self.by_uid.insert(Arc::clone(&uid), slot);
        self.changes.insert(sequence, slot);
        let since = if facts.created > 0 { facts.created.min(now) } else { now };
        self.slots[slot as usize] =
            Some(Box::new(Entry { uid, resource, facts, since, sequence, round, size }));
        self.index(slot);
        Ok(())
    }

    /// Deletes an object, if it is known.
    pub(crate) fn delete(&mut self, resource: usize, object: &Value) {
        let uid = object["metadata"]["uid"].as_str().unwrap_or_default();
        if let Some(&slot) = self.by_uid.get(uid)
            && self.slots[slot as usize].as_ref().is_some_and(|entry| entry.resource == resource)
        {
            self.remove(slot);
        }
    }

    /// Adds or changes an event. The object whose reason it explains is marked as changed.
    pub(crate) fn apply_event(&mut self, event: &Value) {
        let changed = self.warnings.apply(event);
        self.touch_explained(&changed);
    }

    /// Deletes an event. The object whose reason it has explained is marked as changed.
    pub(crate) fn delete_event(&mut self, event: &Value) {
        let changed = self.warnings.delete(event);
        self.touch_explained(&changed);
    }

    fn touch_explained(&mut self, uids: &[String]) {
        for uid in uids {
            if let Some(&slot) = self.by_uid.get(&**uid)
                && self.entry(slot).facts.health > HealthState::Healthy
            {
                self.touch(slot);
            }
        }
    }

    /// Makes the objects healthy whose crashes are forgotten now.
    pub(crate) fn recover(&mut self, now: i64) {
        while let Some(&(time, slot)) = self.recoveries.first().filter(|(time, _)| *time <= now) {
            let entry = self.entry(slot);
            let (resource, round) = (entry.resource, entry.round);
            let facts = Facts {
                health: HealthState::Healthy,
                message: "".into(),
                healthy_from: None,
                ..entry.facts.clone()
            };
            self.change(slot, resource, facts, time);
            // No list has shown it.
            self.slots[slot as usize].as_mut().expect("a place in an index has an object").round = round;
        }
    }

    /// Returns the reason for the health of an object: what its state says, and the newest event that explains it, if the caller may read
    /// events.
    pub(crate) fn reason(&self, entry: &Entry, access: &Access) -> String {
        let Facts { message, namespace, health, .. } = &entry.facts;
        let cause = self.warnings.cause(&entry.uid).filter(|_| *health > HealthState::Healthy);
        let event_resource = || self.resources.iter().position(|resource| resource.kind.api.kind == "Event");
        match cause {
            Some(cause) if event_resource().is_some_and(|events| access.sees(events, namespace)) => {
                explained(message, cause)
            }
            _ => message.to_string(),
        }
    }

    /// Returns the number of the last change.
    pub fn sequence(&self) -> u64 {
        self.sequence
    }

    /// Returns the number of changes of the states of resources.
    pub(crate) fn state_version(&self) -> u64 {
        self.state_version
    }

    /// Returns the number of objects.
    pub fn len(&self) -> usize {
        self.by_uid.len()
    }

    /// Returns whether there is no object.
    pub fn is_empty(&self) -> bool {
        self.by_uid.is_empty()
    }

    /// Returns the estimated memory of all objects in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns whether no resource is being loaded.
    pub fn is_loaded(&self) -> bool {
        !self.resources.is_empty()
            && self.resources.iter().all(|resource| resource.state != ResourceState::Loading)
    }

    /// Returns all objects with their places, in no order.
    pub(crate) fn entries(&self) -> impl Iterator<Item = (u32, &Entry)> {
        self.changes.values().map(|&slot| (slot, self.entry(slot)))
    }

    /// Returns the object at a place.
    pub(crate) fn entry(&self, slot: u32) -> &Entry {
        self.slots[slot as usize].as_ref().expect("a place in an index has an object")
    }

    pub(crate) fn api(&self, entry: &Entry) -> &ApiResource {
        &self.resources[entry.resource].kind.api
    }

    /// Returns the object with a UID.
    pub(crate) fn by_uid(&self, uid: &str) -> Option<u32> {
        self.by_uid.get(uid).copied()
    }

    /// Returns the object with a name.
    pub(crate) fn by_name(&self, group: &str, kind: &str, namespace: &str, name: &str) -> Option<u32> {
        let of_kind = |known: &&Resource| known.kind.api.group == group && known.kind.api.kind == kind;
        self.resources.iter().find(of_kind)?.names.get(&*full_name(namespace, name)).copied()
    }

    /// Returns the Pods of a namespace.
    pub(crate) fn pods(&self, namespace: &str) -> impl Iterator<Item = (u32, &Entry)> {
        self.pods.get(namespace).into_iter().flatten().map(|&slot| (slot, self.entry(slot)))
    }

    /// Returns whether all deletions after a number are remembered.
    pub(crate) fn remembers(&self, sequence: u64) -> bool {
        sequence >= self.forgotten
    }

    /// Returns the first changes after a number, in their order.
    pub(crate) fn changes_after(&self, sequence: u64, limit: usize) -> Vec<Change<'_>> {
        let first = self.tombstones.partition_point(|tombstone| tombstone.sequence <= sequence);
        let mut deleted = self.tombstones.range(first..).peekable();
        let mut all = Vec::new();
        for (&number, &slot) in self.changes.range(sequence + 1..) {
            while let Some(tombstone) = deleted.next_if(|tombstone| tombstone.sequence < number) {
                all.push(Change::Deleted(tombstone));
            }
            all.push(Change::Object(slot, self.entry(slot)));
            if all.len() >= limit {
                return all;
            }
        }
        all.extend(deleted.map(Change::Deleted));
        all
    }

    fn next(&mut self) -> u64 {
        self.sequence += 1;
        self.sequence
    }

    fn change(&mut self, slot: u32, resource: usize, facts: Facts, now: i64) {
        let round = self.resources[resource].round;
        let entry = self.slots[slot as usize].as_mut().expect("a place in an index has an object");
        if entry.resource != resource {
            // Two resources show the same object, such as an old and a new group. The first one keeps it.
            return;
        }
        entry.round = round;
        if entry.facts == facts {
            return;
        }
        self.unindex(slot);
        let sequence = self.next();
        let size = facts.size();
        let entry = self.slots[slot as usize].as_mut().expect("a place in an index has an object");
        if entry.facts.health != facts.health {
            entry.since = now;
        }
        self.bytes = self.bytes + size - entry.size;
        entry.size = size;
        entry.facts = facts;
        self.changes.remove(&entry.sequence);
        entry.sequence = sequence;
        self.changes.insert(sequence, slot);
        self.index(slot);
    }

    fn remove(&mut self, slot: u32) {
        self.unindex(slot);
        let sequence = self.next();
        let Some(entry) = self.slots[slot as usize].take() else { return };
        self.free.push(slot);
        self.by_uid.remove(&entry.uid);
        self.changes.remove(&entry.sequence);
        self.bytes -= entry.size;
        let resource = &mut self.resources[entry.resource];
        resource.objects -= 1;
        resource.names.remove(&*full_name(&entry.facts.namespace, &entry.facts.name));
        if self.tombstones.len() == TOMBSTONES
            && let Some(forgotten) = self.tombstones.pop_front()
        {
            self.forgotten = forgotten.sequence;
        }
        self.tombstones.push_back(Tombstone { sequence, slot, uid: entry.uid });
    }

    /// Adds an object to the indexes, and marks the objects that select it as changed.
    fn index(&mut self, slot: u32) {
        let entry = self.entry(slot);
        let namespace = Arc::clone(&entry.facts.namespace);
        if let Some(time) = entry.facts.healthy_from {
            self.recoveries.insert((time, slot));
        }
        let entry = self.entry(slot);
        if entry.facts.selector.is_some() {
            self.selectors.entry(namespace).or_default().insert(slot);
        } else if Some(entry.resource) == self.pod_resource {
            self.pods.entry(Arc::clone(&namespace)).or_default().insert(slot);
            self.touch_selectors(slot, &namespace);
        }
    }

    fn unindex(&mut self, slot: u32) {
        let entry = self.entry(slot);
        let namespace = Arc::clone(&entry.facts.namespace);
        if let Some(time) = entry.facts.healthy_from {
            self.recoveries.remove(&(time, slot));
        }
        let entry = self.entry(slot);
        if entry.facts.selector.is_some() {
            remove_from(&mut self.selectors, &namespace, slot);
        } else if Some(entry.resource) == self.pod_resource {
            self.touch_selectors(slot, &namespace);
            remove_from(&mut self.pods, &namespace, slot);
        }
    }

    /// Marks the objects that select a Pod as changed, because their relations have changed.
    fn touch_selectors(&mut self, pod: u32, namespace: &str) {
        let entry = self.entry(pod);
        let selects = |slot: &u32| {
            let selector = self.entry(*slot).facts.selector.as_deref();
            selector.is_some_and(|selector| selector.labels.matches(|key| entry.facts.label(key)))
        };
        let touched = self.selectors.get(namespace).into_iter().flatten().copied().filter(selects);
        for slot in touched.collect::<Vec<_>>() {
            self.touch(slot);
        }
    }

    /// Marks an object as changed.
    fn touch(&mut self, slot: u32) {
        let sequence = self.next();
        let entry = self.slots[slot as usize].as_mut().expect("a place in an index has an object");
        self.changes.remove(&entry.sequence);
        entry.sequence = sequence;
        self.changes.insert(sequence, slot);
    }
}

/// Adds the words of an event to a reason. An event of a probe that fails says so once.
fn explained(message: &str, cause: &str) -> String {
    // A probe without an output has no words after the colon.
    let cause = cause.trim_end().trim_end_matches(':');
    let probes = [
        ("Readiness probe failed", "its readiness probe fails"),
        ("Startup probe failed", "its startup probe has not succeeded yet"),
    ];
    let of_probe = probes.into_iter().find_map(|(begin, end)| {
        cause
            .strip_prefix(begin)
            .filter(|_| message.ends_with(end))
            .map(|words| words.trim_start_matches(':').trim())
    });
    match of_probe {
        Some("") => message.to_owned(),
        Some(words) => format!("{message}: {words}"),
        None if message.is_empty() => cause.to_owned(),
        None => format!("{message}; {cause}"),
    }
}

fn remove_from(index: &mut HashMap<Text, BTreeSet<u32>>, namespace: &Text, slot: u32) {
    if let Some(slots) = index.get_mut(namespace) {
        slots.remove(&slot);
        if slots.is_empty() {
            index.remove(namespace);
        }
    }
}

fn full_name(namespace: &str, name: &str) -> Box<str> {
    format!("{namespace}/{name}").into()
}
