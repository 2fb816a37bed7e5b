//! Groups: which objects belong together, and how they are.

use std::{
    cell::OnceCell,
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    sync::Arc,
};

use object_health::JudgedParts;
use proto::{
    LabelSelector,
    graph::{Attention, Group, GroupHealth, GroupList, HealthReport, HealthState},
};

use crate::{
    access::Access,
    entry::{Entry, Text},
    graph::Graph,
    groups,
    ownership::MAX_DEPTH,
    query::Query,
    time,
};

/// The most groups of one object, those of its owners included.
const MAX_GROUPS: usize = 8;
/// The most Applications of one object, in addition to its other groups: a selector may match all objects, and pushes out no other group.
const MAX_OF_APPLICATIONS: usize = 4;
/// The most objects that are listed because they need attention.
const MAX_ATTENTION: usize = 10;
/// The time after which a Pod that has failed and was replaced does not count any more, in seconds. The crashes of a container are
/// forgotten after the same time.
const FORGOTTEN: i64 = 600;
/// The most namespaces of a group that are listed.
const MAX_NAMESPACES: usize = 32;

/// The most Applications of a namespace whose members are looked for, in order of their names: each of them is compared with each object.
pub(crate) const MAX_APPLICATIONS: usize = 200;

/// The groups of all visible objects.
pub(crate) struct Memberships<'a> {
    graph: &'a Graph,
    access: &'a Access,
    /// The projects of GitOps by the ids of their ApplySets.
    projects: HashMap<Text, Text>,
    /// The selectors of Applications of `app.k8s.io`, by namespace.
    selectors: HashMap<Text, Vec<MemberSelector<'a>>>,
    /// The namespaces with more Applications than are looked at.
    crowded: HashSet<Text>,
    /// The crowded namespaces with objects that were looked up.
    crowded_of_objects: BTreeSet<Text>,
    known: HashMap<u32, Arc<[Text]>>,
    /// The objects with more Applications than an object has, and those that they own.
    cut: HashSet<u32>,
}

/// The selector of an Application.
struct MemberSelector<'a> {
    application: &'a str,
    labels: &'a LabelSelector,
}

impl Graph {
    /// Returns all groups, with their health.
    pub fn groups(&self, query: &Query, access: &Access, now: i64) -> GroupList {
        let mut members: BTreeMap<Text, Vec<u32>> = BTreeMap::new();
        let mut memberships = Memberships::new(self, access);
        for (slot, entry) in self.entries() {
            if !access.sees_entry(entry) || query.excludes_namespace(&entry.facts.namespace) {
                continue;
            }
            for id in memberships.of(slot).iter() {
                members.entry(Arc::clone(id)).or_default().push(slot);
            }
        }
        let groups = members.into_iter().map(|(id, slots)| self.group(&id, &slots, query, access, now));
        let groups = groups.collect();
        GroupList { groups, partial: [self.partial(query, access), memberships.partial()].concat() }
    }

    /// Returns the next time at which an object has been unhealthy for so long that its groups are, or do not count it any more, in
    /// seconds since 1970.
    pub(crate) fn next_due(&self, query: &Query, access: &Access, now: i64) -> Option<i64> {
        let unhealthy = self.entries().filter(|(_, entry)| {
            entry.facts.health > HealthState::Suspended
                && access.sees_entry(entry)
                && !query.excludes_namespace(&entry.facts.namespace)
        });
        let times = unhealthy.flat_map(|(_, entry)| {
            let forgotten = entry.facts.is_over.then_some(FORGOTTEN);
            [Some(patience(query)), forgotten]
                .into_iter()
                .flatten()
                .map(|after| entry.since.saturating_add(after))
        });
        times.filter(|time| *time > now).min()
    }

    /// Returns the members of one group.
    pub(crate) fn members(&self, id: &str, access: &Access) -> HashSet<u32> {
        let mut memberships = Memberships::new(self, access);
        let visible = self.entries().filter(|(_, entry)| access.sees_entry(entry));
        visible
            .map(|(slot, _)| slot)
            .filter(|&slot| memberships.of(slot).iter().any(|of| **of == *id))
            .collect()
    }

    /// Returns the health of the objects that a query selects.
    pub fn health(&self, query: &Query, labels: &str, access: &Access, now: i64) -> HealthReport {
        let selected = self.select(query, access);
        let mut health = self.group_health(&selected, query, access, now);
        let mut partial = self.partial(query, access);
        if selected.is_empty() {
            health.health = HealthState::Unknown;
            let what = query.describe(labels);
            partial.insert(0, format!("no object was found {what}; do the objects have these labels?"));
        } else if !self.is_loaded() && health.health <= HealthState::Suspended {
            // The objects that are not loaded yet may be worse.
            health.health = HealthState::Unknown;
        }
        let uids: HashSet<&str> = selected.iter().map(|&slot| &*self.entry(slot).uid).collect();
        let events = self.resources().iter().position(|resource| resource.kind.api.kind == "Event");
        let warnings = self.warnings.newest(|event| {
            events.is_some_and(|events| access.sees(events, &event.namespace))
                && uids.contains(&*event.object)
        });
        HealthReport { health, warnings, partial }
    }

    fn group(&self, id: &str, slots: &[u32], query: &Query, access: &Access, now: i64) -> Group {
        let namespaces: BTreeSet<&str> =
            slots.iter().map(|&slot| &*self.entry(slot).facts.namespace).collect();
        let namespaces = namespaces.into_iter().filter(|name| !name.is_empty());
        Group {
            id: id.to_owned(),
            found_by: groups::found_by(id).to_owned(),
            namespaces: namespaces.take(MAX_NAMESPACES).map(str::to_owned).collect(),
            health: self.group_health(slots, query, access, now),
        }
    }

    /// Returns the health of several objects: that of the worst one that no other of them judges.
    pub(crate) fn group_health(
        &self,
        slots: &[u32],
        query: &Query,
        access: &Access,
        now: i64,
    ) -> GroupHealth {
        let patience = patience(query);
        let lasting = |entry: &Entry| {
            let fresh = now.saturating_sub(entry.since) < patience;
            let health = entry.facts.health;
            if fresh && health > HealthState::Suspended { HealthState::Healthy } else { health }
        };
        let set: HashSet<u32> = slots.iter().copied().collect();
        let judge = Judge::new(self, slots, now);
        let is_judged = |slot| self.has_ancestor(slot, &set, access, |owner, part| judge.judges(owner, part));
        let mut counts = BTreeMap::new();
        let (mut worst, mut bad) = (HealthState::Healthy, Vec::new());
        for &slot in slots {
            let entry = self.entry(slot);
            let health = lasting(entry);
            *counts.entry(health).or_default() += 1;
            if health == HealthState::Healthy {
                continue;
            }
            if health > HealthState::Suspended {
                bad.push((health, entry));
            }
            if health > worst && !is_judged(slot) {
                worst = health;
            }
        }
        bad.sort_by(|(a, first), (b, second)| {
            b.cmp(a).then(first.since.cmp(&second.since)).then_with(|| first.uid.cmp(&second.uid))
        });
        let attention = bad.into_iter().take(MAX_ATTENTION).map(|(health, entry)| Attention {
            uid: entry.uid.to_string(),
            kind: self.api(entry).kind.clone(),
            namespace: entry.facts.namespace.to_string(),
            name: entry.facts.name.to_string(),
            health,
            message: self.message(entry, access),
            since: time::text(entry.since),
        });
        GroupHealth { health: worst, counts, attention: attention.collect() }
    }
}

/// Returns the seconds for which an object must be unhealthy before its groups are.
fn patience(query: &Query) -> i64 {
    i64::try_from(query.degraded_after.as_secs()).unwrap_or(i64::MAX)
}

/// Decides which objects of a set count, because no owner judges them.
struct Judge<'a> {
    graph: &'a Graph,
    slots: &'a [u32],
    now: i64,
    /// The Pods that have failed within [`FORGOTTEN`], by their owner.
    failures: OnceCell<HashMap<u32, usize>>,
    /// The time at which the newest object was created that has succeeded, by its owner and its resource.
    successes: OnceCell<HashMap<(u32, usize), i64>>,
}

impl<'a> Judge<'a> {
    fn new(graph: &'a Graph, slots: &'a [u32], now: i64) -> Self {
        Self { graph, slots, now, failures: OnceCell::new(), successes: OnceCell::new() }
    }

    /// Returns whether the health of an owner says how an object is.
    fn judges(&self, owner: &Entry, part: &Entry) -> bool {
        let has_failed = part.facts.health == HealthState::Degraded;
        match owner.facts.judged_parts {
            JudgedParts::None => false,
            JudgedParts::AllButWorkloads => {
                let api = self.graph.api(part);
                !object_health::is_workload(&api.group, &api.kind)
            }
            JudgedParts::NotFailed if has_failed && !part.facts.is_over => false,
            JudgedParts::NotFailed | JudgedParts::All => !has_failed || !self.fails_again(owner, part),
            JudgedParts::FailedBefore(success) => !has_failed || time::at(part.facts.created) <= success,
            JudgedParts::FailedBeforeSuccess => !has_failed || self.has_later_success(owner, part),
        }
    }

    /// Returns whether a Pod is one of so many of its ReplicaSet that have failed lately that those which have replaced others must have
    /// failed, too. The ReplicaSet is healthy for a moment between two of them.
    fn fails_again(&self, owner: &Entry, part: &Entry) -> bool {
        let (owner, owner_kind) = (self.graph.by_uid(&owner.uid), &*self.graph.api(owner).kind);
        let Some(slot) = owner.filter(|_| part.facts.is_over && owner_kind == "ReplicaSet") else {
            return false;
        };
        let failures = self.failures.get_or_init(|| self.recent_failures());
        let desired = self.graph.entry(slot).facts.ready.map_or(0, |ready| ready.desired);
        let is_recent = self.now.saturating_sub(part.since) < FORGOTTEN;
        is_recent && failures.get(&slot).is_some_and(|failures| *failures > (desired as usize).max(2))
    }

    fn recent_failures(&self) -> HashMap<u32, usize> {
        let mut failures = HashMap::new();
        for &slot in self.slots {
            let entry = self.graph.entry(slot);
            if entry.facts.is_over && self.now.saturating_sub(entry.since) < FORGOTTEN {
                for owner in self.graph.owners(entry) {
                    *failures.entry(owner).or_default() += 1;
                }
            }
        }
        failures
    }

    fn has_later_success(&self, owner: &Entry, part: &Entry) -> bool {
        let successes = self.successes.get_or_init(|| self.newest_successes());
        let newest = self.graph.by_uid(&owner.uid).and_then(|owner| successes.get(&(owner, part.resource)));
        newest.is_some_and(|newest| part.facts.created < *newest)
    }

    fn newest_successes(&self) -> HashMap<(u32, usize), i64> {
        let mut newest = HashMap::new();
        for &slot in self.slots {
            let entry = self.graph.entry(slot);
            if entry.facts.health != HealthState::Healthy {
                continue;
            }
            for owner in self.graph.owners(entry) {
                if self.graph.entry(owner).facts.judged_parts == JudgedParts::FailedBeforeSuccess {
                    let time = newest.entry((owner, entry.resource)).or_insert(entry.facts.created);
                    *time = entry.facts.created.max(*time);
                }
            }
        }
        newest
    }
}

impl<'a> Memberships<'a> {
    pub(crate) fn new(graph: &'a Graph, access: &'a Access) -> Self {
        let (mut projects, mut selectors) = (HashMap::new(), HashMap::<_, Vec<_>>::new());
        for (_, entry) in graph.entries().filter(|(_, entry)| access.sees_entry(entry)) {
            let facts = &entry.facts;
            if let Some(project) = facts.details.iter().find(|detail| detail.0 == "project") {
                let set = facts.labels.iter().find(|label| &*label.0 == "applyset.kubernetes.io/id");
                projects.extend(set.map(|set| (Arc::clone(&set.1), Arc::clone(&project.1))));
            }
            if let Some(labels) = facts.application.as_ref().and_then(|found| found.selector.as_ref()) {
                let found = MemberSelector { application: &facts.name, labels };
                selectors.entry(Arc::clone(&facts.namespace)).or_default().push(found);
            }
        }
        let mut crowded = HashSet::new();
        for (namespace, of_namespace) in &mut selectors {
            if of_namespace.len() > MAX_APPLICATIONS {
                crowded.insert(Arc::clone(namespace));
            }
            of_namespace.sort_unstable_by_key(|selector| selector.application);
            of_namespace.truncate(MAX_APPLICATIONS);
        }
        let (known, cut, crowded_of_objects) = (HashMap::new(), HashSet::new(), BTreeSet::new());
        Self { graph, access, projects, selectors, crowded, crowded_of_objects, known, cut }
    }

    /// Returns the reasons why members of Applications may be missing, for the objects whose groups were asked for.
    pub(crate) fn partial(&self) -> Vec<String> {
        let crowded = self.crowded_of_objects.iter().map(|namespace| {
            format!("Application: only the first {MAX_APPLICATIONS} of the namespace {namespace}, by name, have members")
        });
        let cut = (!self.cut.is_empty()).then(|| {
            let (count, most) = (self.cut.len(), MAX_OF_APPLICATIONS);
            let (verb, them) = if count == 1 { ("object is a member", "it") } else { ("objects are members", "them") };
            format!("Application: {count} {verb} of more than {most}, and only the first {most} by name count {them}")
        });
        crowded.take(MAX_NAMESPACES).chain(cut).collect()
    }

    /// Returns the groups of an object: its own and those of its owners.
    pub(crate) fn of(&mut self, slot: u32) -> Arc<[Text]> {
        self.at_depth(slot, 0)
    }

    fn at_depth(&mut self, slot: u32, depth: usize) -> Arc<[Text]> {
        if let Some(known) = self.known.get(&slot) {
            return Arc::clone(known);
        }
        // A cycle ends here: its objects have no groups of owners.
        self.known.insert(slot, Arc::default());
        let entry = self.graph.entry(slot);
        let mut all = self.own(entry);
        let mut is_cut = false;
        if depth < MAX_DEPTH {
            for owner in self.graph.owners(entry) {
                if self.access.sees_entry(self.graph.entry(owner)) {
                    all.extend(self.at_depth(owner, depth + 1).iter().cloned());
                    is_cut |= self.cut.contains(&owner);
                }
            }
        }
        all.sort_unstable();
        all.dedup();
        let (mut all, mut applications): (Vec<Text>, Vec<Text>) =
            all.into_iter().partition(|id| !groups::is_application(id));
        all.truncate(MAX_GROUPS);
        if is_cut || applications.len() > MAX_OF_APPLICATIONS {
            self.cut.insert(slot);
        }
        applications.truncate(MAX_OF_APPLICATIONS);
        let all: Arc<[Text]> = applications.into_iter().chain(all).collect();
        self.known.insert(slot, Arc::clone(&all));
        all
    }

    fn own(&mut self, entry: &Entry) -> Vec<Text> {
        let facts = &entry.facts;
        if self.crowded.contains(&facts.namespace) {
            self.crowded_of_objects.insert(Arc::clone(&facts.namespace));
        }
        let renamed = facts.groups.iter().map(|id| {
            let project = id.strip_prefix("applyset:").and_then(|set| self.projects.get(set));
            project.map_or_else(|| Arc::clone(id), |project| format!("gitops:{project}").into())
        });
        let mut all: Vec<Text> = renamed.collect();
        for MemberSelector { application, labels } in
            self.selectors.get(&facts.namespace).into_iter().flatten()
        {
            if labels.matches(|key| facts.label(key)) {
                all.push(groups::application(&facts.namespace, application).into());
            }
        }
        if !facts.namespace.is_empty() {
            all.push(format!("namespace:{}", facts.namespace).into());
        }
        all
    }
}
