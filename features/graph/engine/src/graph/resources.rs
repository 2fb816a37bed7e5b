//! The resources of a graph, with the states of their loads.

use std::collections::HashMap;

use kube::core::ApiResource;
use proto::graph::ResourceState;

use super::{Graph, Limit, LimitExceeded};
use crate::{
    access::{Access, VisibleNamespaces},
    resources::ResourceKind,
};

/// A resource of the API server, and what is known of it.
#[derive(Debug)]
pub(crate) struct Resource {
    pub(crate) kind: ResourceKind,
    /// The API server has it.
    pub(super) is_served: bool,
    pub(crate) state: ResourceState,
    /// The reason of the state in one sentence.
    pub(crate) message: String,
    /// The limit because of which the objects were last only counted.
    pub(super) exceeded: Option<Limit>,
    /// The number of objects, also if they are only counted.
    pub(crate) objects: usize,
    /// The objects by `<namespace>/<name>`.
    pub(super) names: HashMap<Box<str>, u32>,
    pub(super) round: u64,
}

impl Graph {
    /// Adds a resource whose objects will be loaded. Returns its number. A resource that is there already, such as in another version,
    /// keeps its objects.
    pub(crate) fn add_resource(&mut self, kind: ResourceKind) -> usize {
        let same =
            |known: &Resource| known.kind.api.group == kind.api.group && known.kind.api.kind == kind.api.kind;
        if let Some(place) = self.resources.iter().position(same) {
            let known = &mut self.resources[place];
            let is_new = !std::mem::replace(&mut known.is_served, true);
            if is_new {
                known.state = ResourceState::Loading;
            }
            if is_new || known.kind.api != kind.api {
                self.state_version += 1;
            }
            known.kind = kind;
            return place;
        }
        let number = self.resources.len();
        if kind.api.group.is_empty() && kind.api.kind == "Pod" {
            self.pod_resource = Some(number);
        }
        self.resources.push(Resource {
            kind,
            is_served: true,
            state: ResourceState::Loading,
            message: String::new(),
            exceeded: None,
            objects: 0,
            names: HashMap::new(),
            round: 0,
        });
        self.state_version += 1;
        number
    }

    /// Forgets a resource that the API server has no more. Its number stays, so that those of others do not change.
    pub(crate) fn withdraw(&mut self, resource: usize) {
        let round = self.begin_list(resource);
        self.end_list(resource, "", round);
        let known = &mut self.resources[resource];
        (known.is_served, known.objects) = (false, 0);
        self.set_state(resource, ResourceState::Synced, "");
        self.state_version += 1;
    }

    /// Sets the kinds of programs that are not loaded.
    pub(crate) fn set_left_out(&mut self, kinds: Vec<ApiResource>) {
        if self.left_out != kinds {
            self.left_out = kinds;
            self.state_version += 1;
        }
    }

    /// Sets the state of a resource, with its reason.
    pub(crate) fn set_state(&mut self, resource: usize, state: ResourceState, message: &str) {
        let resource = &mut self.resources[resource];
        if resource.state != state || resource.message != message {
            resource.state = state;
            message.clone_into(&mut resource.message);
            self.state_version += 1;
        }
    }

    /// Deletes the objects of a resource that has too many, and notes their number.
    pub(crate) fn count_only(&mut self, resource: usize, objects: usize, exceeded: &LimitExceeded) {
        let round = self.begin_list(resource);
        self.end_list(resource, "", round);
        self.resources[resource].objects = objects;
        self.set_state(resource, ResourceState::CountedOnly, &exceeded.message);
        self.resources[resource].exceeded = Some(exceeded.limit);
    }

    /// Begins a list of a resource. Returns its number.
    pub(crate) fn begin_list(&mut self, resource: usize) -> u64 {
        let round = &mut self.resources[resource].round;
        *round += 1;
        *round
    }

    /// Deletes the objects of a resource in a namespace that were not shown since a list began. An empty namespace is all of them.
    pub(crate) fn end_list(&mut self, resource: usize, namespace: &str, round: u64) {
        let is_gone = |slot: &u32| {
            self.slots[*slot as usize].as_ref().is_some_and(|entry| {
                entry.round < round && (namespace.is_empty() || *entry.facts.namespace == *namespace)
            })
        };
        let gone: Vec<u32> = self.resources[resource].names.values().copied().filter(is_gone).collect();
        gone.into_iter().for_each(|slot| self.remove(slot));
    }

    /// Returns the number of resources so far. The rights of a caller to further ones are not known yet.
    pub fn resource_count(&self) -> usize {
        self.resources.len()
    }

    /// Returns all resources, in the order of their numbers.
    pub(crate) fn resources(&self) -> &[Resource] {
        &self.resources
    }

    /// Returns the resources that the API server has, with their numbers.
    pub(crate) fn served(&self) -> impl Iterator<Item = (usize, &Resource)> {
        self.resources.iter().enumerate().filter(|(_, resource)| resource.is_served)
    }

    /// Returns the number of a resource of which agentk knows all objects, and a caller may see all, or `None` for another one.
    pub(crate) fn whole_resource(&self, group: &str, kind: &str, access: &Access) -> Option<usize> {
        let mut known = self.served().filter(|(_, known)| {
            let api = &known.kind.api;
            api.group == group && api.kind == kind && known.state == ResourceState::Synced
        });
        let (number, _) = known.next()?;
        (access.namespaces(number) == Some(&VisibleNamespaces::All)).then_some(number)
    }
}
