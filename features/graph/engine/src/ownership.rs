//! The owners of objects. The references of objects are not trusted: anybody who may write an object can forge them.

use crate::{
    entry::{Entry, EntryOwner},
    graph::Graph,
    references,
};

/// The longest chain of owners.
pub(crate) const MAX_DEPTH: usize = 32;

impl Graph {
    /// Returns the known owners of an object.
    ///
    /// An owner is in the same namespace or in none, and has the kind and the name that the reference says. Claims have no owner in the
    /// API server: a StatefulSet with a template of that name is one.
    pub(crate) fn owners(&self, entry: &Entry) -> Vec<u32> {
        let explicit = entry.facts.owners.iter().filter_map(|owner| self.owner(entry, owner));
        let mut owners: Vec<u32> = explicit.collect();
        if owners.is_empty() && self.is_kind(entry, "", "PersistentVolumeClaim") {
            owners.extend(self.set_of_claim(entry));
        }
        owners
    }

    fn owner(&self, entry: &Entry, owner: &EntryOwner) -> Option<u32> {
        let namespace = &entry.facts.namespace;
        let slot = if owner.uid.is_empty() {
            let found = self.by_name(&owner.group, &owner.kind, namespace, &owner.name);
            found.or_else(|| self.by_name(&owner.group, &owner.kind, "", &owner.name))?
        } else {
            self.by_uid(&owner.uid)?
        };
        let found = self.entry(slot);
        let place = &found.facts.namespace;
        let genuine = self.api(found).kind == *owner.kind
            && found.facts.name == owner.name
            && (place.is_empty() || place == namespace)
            && found.uid != entry.uid;
        genuine.then_some(slot)
    }

    fn set_of_claim(&self, claim: &Entry) -> Option<u32> {
        references::templates_of_claim(&claim.facts.name).find_map(|(template, name)| {
            let slot = self.by_name("apps", "StatefulSet", &claim.facts.namespace, name)?;
            self.entry(slot).facts.templates.iter().any(|known| **known == *template).then_some(slot)
        })
    }

    pub(crate) fn is_kind(&self, entry: &Entry, group: &str, kind: &str) -> bool {
        let api = self.api(entry);
        api.group == group && api.kind == kind
    }
}
