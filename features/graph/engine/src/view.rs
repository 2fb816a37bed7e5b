//! The graph as a caller sees it: objects, the state of resources, and the reasons why something may be missing.

use std::fmt::Write as _;

use kube::core::ApiResource;
use proto::graph::{Edge, GraphEvent, Node, ObjectList, Owner, Relation, ResourceState, ResourceStatus};

use crate::{
    access::{Access, VisibleNamespaces},
    entry::Entry,
    graph::{Graph, Resource},
    list_key::ListKey,
    query::Query,
    time,
};

/// The most relations of one object that are sent.
const MAX_EDGES: usize = 256;
/// The most sentences about what may be missing.
const MAX_REASONS: usize = 20;
/// The most kinds of programs that one sentence names.
const MAX_KINDS: usize = 5;

impl Graph {
    /// Returns an object as a caller sees it.
    pub(crate) fn node(&self, slot: u32, access: &Access) -> Node {
        let entry = self.entry(slot);
        let (api, facts) = (self.api(entry), &entry.facts);
        let own = |text: &str| text.to_owned();
        let mut owners: Vec<Owner> = facts
            .owners
            .iter()
            .filter(|owner| !owner.uid.is_empty())
            .map(|owner| Owner { uid: own(&owner.uid), kind: own(&owner.kind), name: own(&owner.name) })
            .collect();
        if owners.is_empty() {
            // Owners that are known by their names only.
            let found = self.owners(entry).into_iter().map(|slot| self.entry(slot));
            owners.extend(found.filter(|owner| access.sees_entry(owner)).map(|owner| Owner {
                uid: own(&owner.uid),
                kind: self.api(owner).kind.clone(),
                name: own(&owner.facts.name),
            }));
        }
        Node {
            uid: own(&entry.uid),
            group: api.group.clone(),
            version: api.version.clone(),
            kind: api.kind.clone(),
            namespace: own(&facts.namespace),
            name: own(&facts.name),
            created: time::text(facts.created),
            deleted: facts.deleted.map(time::text).unwrap_or_default(),
            owners,
            labels: facts.labels.iter().map(|(key, value)| (own(key), own(value))).collect(),
            status: own(&facts.status),
            ready: facts.ready,
            restarts: facts.restarts,
            images: facts.images.iter().map(|image| own(image)).collect(),
            details: facts.details.iter().map(|(key, value)| (own(key), own(value))).collect(),
            health: facts.health,
            message: self.reason(entry, access),
            since: time::text(entry.since),
            groups: facts.groups.iter().map(|id| own(id)).collect(),
            edges: self.edges(entry, access),
            sequence: entry.sequence,
        }
    }

    /// Returns the relations of an object. A selected object that the caller may not see is one relation without a name.
    fn edges(&self, entry: &Entry, access: &Access) -> Vec<Edge> {
        let named = entry.facts.references.iter().map(|reference| {
            let target =
                self.by_name(&reference.group, &reference.kind, &reference.namespace, &reference.name);
            let target = target.map(|slot| self.entry(slot)).filter(|target| access.sees_entry(target));
            Edge {
                relation: reference.relation,
                group: reference.group.to_string(),
                kind: reference.kind.to_string(),
                namespace: reference.namespace.to_string(),
                name: reference.name.to_string(),
                uid: target.map(|target| target.uid.to_string()).unwrap_or_default(),
            }
        });
        let mut edges: Vec<Edge> = named.collect();
        let Some(selector) = entry.facts.selector.as_deref() else { return edges };
        let selected = self.pods(&entry.facts.namespace).map(|(_, pod)| pod);
        let selected = selected.filter(|pod| selector.labels.matches(|key| pod.facts.label(key)));
        let mut hidden = false;
        for pod in selected {
            let visible = access.sees_entry(pod);
            if edges.len() == MAX_EDGES || (!visible && hidden) {
                continue;
            }
            hidden |= !visible;
            edges.push(pod_edge(selector.relation, visible.then_some(pod)));
        }
        edges
    }

    /// Returns the objects that a query selects, in order of namespace, kind and name.
    pub(crate) fn select(&self, query: &Query, access: &Access) -> Vec<u32> {
        let members = query.group.as_ref().map(|id| self.members(id, access));
        let candidates = self.entries().filter(|(slot, entry)| {
            members.as_ref().is_none_or(|members| members.contains(slot))
                && access.sees_entry(entry)
                && query.selects(self, entry)
        });
        let mut selected: Vec<u32> = candidates.map(|(slot, _)| slot).collect();
        selected.sort_by_cached_key(|&slot| self.sort_key(slot));
        selected
    }

    /// Returns the place of an object in lists.
    pub(crate) fn sort_key(&self, slot: u32) -> ListKey {
        let entry = self.entry(slot);
        let api = self.api(entry);
        let (namespace, name) = (entry.facts.namespace.to_string(), entry.facts.name.to_string());
        ListKey { namespace, kind: api.kind.clone(), name, group: api.group.clone() }
    }

    /// Returns a page of the objects that a query selects. `after` is the place of the last object of the page before.
    pub fn objects(
        &self,
        query: &Query,
        access: &Access,
        limit: usize,
        after: Option<&ListKey>,
    ) -> ObjectList {
        let selected = self.select(query, access);
        let begin = after.map_or(0, |last| selected.partition_point(|&slot| self.sort_key(slot) <= *last));
        let page: Vec<u32> = selected.iter().skip(begin).take(limit).copied().collect();
        let more = begin + page.len() < selected.len();
        ObjectList {
            next: page.last().filter(|_| more).map(|&slot| self.sort_key(slot).to_string()),
            objects: page.into_iter().map(|slot| self.node(slot, access)).collect(),
            partial: self.partial(query, access),
        }
    }

    /// Returns the states of the resources as a caller sees them.
    pub(crate) fn resource_statuses(&self, access: &Access) -> Vec<ResourceStatus> {
        let mut counts = vec![0_u64; self.resources().len()];
        for (_, entry) in self.entries().filter(|(_, entry)| access.sees_entry(entry)) {
            counts[entry.resource] += 1;
        }
        let status = |(number, resource): (usize, &Resource)| {
            let api = &resource.kind.api;
            let (state, message) = match access.namespaces(number) {
                _ if resource.state != ResourceState::Synced => {
                    (resource.state, state_reason(resource, access.namespaces(number)).to_owned())
                }
                Some(VisibleNamespaces::All) => (resource.state, resource.message.clone()),
                Some(VisibleNamespaces::Some(names)) => {
                    let mut message = "you may list them in ".to_owned();
                    let shown: Vec<&str> = names.iter().take(10).map(String::as_str).collect();
                    message += &shown.join(", ");
                    (ResourceState::DeniedInSome, message)
                }
                None => (ResourceState::Denied, "you may not list and watch them".to_owned()),
            };
            let counted = access.namespaces(number) == Some(&VisibleNamespaces::All);
            let objects = if state == ResourceState::CountedOnly && counted {
                resource.objects as u64
            } else {
                counts[number]
            };
            ResourceStatus {
                group: api.group.clone(),
                version: api.version.clone(),
                kind: api.kind.clone(),
                state,
                objects,
                message,
            }
        };
        self.served().map(status).collect()
    }

    /// Returns the reasons why something may be missing from the result of a query, one sentence each.
    pub(crate) fn partial(&self, query: &Query, access: &Access) -> Vec<String> {
        let mut reasons = Vec::new();
        let mut hidden: Vec<&str> = Vec::new();
        let mut denied: Vec<&ApiResource> = Vec::new();
        for (number, resource) in self.served() {
            let api = &resource.kind.api;
            if !query.concerns(api) {
                continue;
            }
            let kind = &api.kind;
            let why = state_reason(resource, access.namespaces(number));
            match resource.state {
                ResourceState::Synced => {}
                ResourceState::Loading => reasons.push(format!("{kind}: the objects are being loaded")),
                ResourceState::Denied if !object_health::is_built_in(&api.group) => denied.push(api),
                ResourceState::Denied => reasons.push(format!("{kind}: agentk may not list them: {why}")),
                ResourceState::DeniedInSome => {
                    reasons.push(format!("{kind}: agentk may list them in some namespaces only: {why}"));
                }
                ResourceState::CountedOnly => {
                    let is_known = access.namespaces(number) == Some(&VisibleNamespaces::All);
                    let count = if is_known { format!("{} ", resource.objects) } else { "the ".to_owned() };
                    reasons.push(format!("{kind}: {count}objects are only counted, because {why}"));
                }
                ResourceState::Failing => {
                    reasons.push(format!("{kind}: the objects may be outdated: {why}"));
                }
            }
            let visible = match access.namespaces(number) {
                Some(VisibleNamespaces::All) => true,
                Some(VisibleNamespaces::Some(names)) => !resource.kind.namespaced || query.is_within(names),
                None => false,
            };
            if !visible && resource.state != ResourceState::Denied {
                hidden.push(kind);
            }
        }
        if !denied.is_empty() {
            reasons
                .push(format!("agentk may not list {}, so that their health is not known", kinds(&denied)));
        }
        let left_out: Vec<_> = self.left_out.iter().filter(|api| query.concerns(api)).collect();
        if !left_out.is_empty() {
            let kinds = kinds(&left_out);
            reasons.push(format!(
                "agentk does not load {kinds}: add them to graph.health_rules for their health"
            ));
        }
        if !hidden.is_empty() {
            let mut text = String::from("you may not list and watch all objects of ");
            let _ = write!(text, "{}", hidden[..hidden.len().min(MAX_REASONS)].join(", "));
            if hidden.len() > MAX_REASONS {
                let _ = write!(text, " and {} more", hidden.len() - MAX_REASONS);
            }
            reasons.push(text);
        }
        let more = reasons.len().saturating_sub(MAX_REASONS);
        reasons.truncate(MAX_REASONS);
        if more > 0 {
            reasons.push(format!("there are {more} more reasons: see the status"));
        }
        reasons
    }

    /// Returns the line about the states of the resources.
    pub(crate) fn state_event(&self, query: &Query, access: &Access) -> GraphEvent {
        GraphEvent::State {
            loaded: self.is_loaded(),
            resources: self.resource_statuses(access),
            partial: self.partial(query, access),
        }
    }
}

/// Returns the names of kinds, or of the first of them.
fn kinds(all: &[&ApiResource]) -> String {
    let names = all.iter().take(MAX_KINDS).map(|api| format!("{}.{}", api.kind, api.group));
    let text = names.collect::<Vec<_>>().join(", ");
    match all.len().saturating_sub(MAX_KINDS) {
        0 => text,
        more => format!("{text} and {more} more kinds"),
    }
}

/// Returns the reason of the state of a resource, as a caller who may list it in these namespaces may know it: without numbers of objects
/// and names of namespaces that are hidden.
fn state_reason<'a>(resource: &'a Resource, visible: Option<&VisibleNamespaces>) -> &'a str {
    match (resource.state, visible) {
        (ResourceState::CountedOnly, Some(VisibleNamespaces::Some(_)) | None) => "there are too many",
        (ResourceState::DeniedInSome, Some(VisibleNamespaces::Some(_)) | None) => "it may not list all",
        _ => &resource.message,
    }
}

fn pod_edge(relation: Relation, pod: Option<&Entry>) -> Edge {
    let text = |of: fn(&Entry) -> &str| pod.map(of).unwrap_or_default().to_owned();
    Edge {
        relation,
        group: String::new(),
        kind: "Pod".to_owned(),
        namespace: text(|pod| &pod.facts.namespace),
        name: text(|pod| &pod.facts.name),
        uid: text(|pod| &pod.uid),
    }
}
