//! The objects that a caller may see.

use std::collections::{BTreeSet, HashMap};

use crate::entry::Entry;

/// The objects that a caller may list and watch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Access {
    /// All that agentk sees.
    all: bool,
    /// The namespaces of each resource. Others are hidden.
    resources: HashMap<usize, VisibleNamespaces>,
}

/// The namespaces of one resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum VisibleNamespaces {
    /// All of them, and objects in none.
    All,
    /// Some of them.
    Some(BTreeSet<String>),
}

impl Access {
    /// Returns the access of agentk itself.
    pub fn of_agent() -> Self {
        Self { all: true, resources: HashMap::new() }
    }

    /// Allows the objects of a resource.
    pub(crate) fn allow(&mut self, resource: usize, namespaces: VisibleNamespaces) {
        self.resources.insert(resource, namespaces);
    }

    /// Returns whether the caller may see the objects of a resource in a namespace.
    pub(crate) fn sees(&self, resource: usize, namespace: &str) -> bool {
        self.all
            || match self.resources.get(&resource) {
                Some(VisibleNamespaces::All) => true,
                Some(VisibleNamespaces::Some(namespaces)) => namespaces.contains(namespace),
                None => false,
            }
    }

    pub(crate) fn sees_entry(&self, entry: &Entry) -> bool {
        self.sees(entry.resource, &entry.facts.namespace)
    }

    /// Returns the namespaces of a resource that the caller may see, or `None` if there is none.
    pub(crate) fn namespaces(&self, resource: usize) -> Option<&VisibleNamespaces> {
        if self.all { Some(&VisibleNamespaces::All) } else { self.resources.get(&resource) }
    }
}
