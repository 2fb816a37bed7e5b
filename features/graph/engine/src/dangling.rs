//! Objects that lead nowhere: they name an object that does not exist, or select no Pod. Their own state does not say so.
//!
//! A reader that follows objects is not told: nothing changes an Ingress when its Service is deleted.

use proto::graph::ResourceState;

use crate::{
    access::Access,
    entry::{Entry, EntryReference},
    graph::Graph,
};

/// The kinds that do nothing without the objects that they name.
const NEED_TARGETS: [&str; 6] = [
    "APIService",
    "ClusterRoleBinding",
    "Ingress",
    "MutatingWebhookConfiguration",
    "RoleBinding",
    "ValidatingWebhookConfiguration",
];

impl Graph {
    /// Returns the reason for the health of an object, and where it leads nowhere. A healthy object may have a message, too.
    pub(crate) fn message(&self, entry: &Entry, access: &Access) -> String {
        let reason = self.reason(entry, access);
        match self.leads_nowhere(entry, access) {
            Some(words) if reason.is_empty() => words,
            Some(words) => format!("{reason}; {words}"),
            None => reason,
        }
    }

    fn leads_nowhere(&self, entry: &Entry, access: &Access) -> Option<String> {
        let api = self.api(entry);
        if (&*api.group, &*api.kind) == ("", "Service") {
            let selector = entry.facts.selector.as_deref()?;
            let namespace = &entry.facts.namespace;
            let mut pods = self.pods(namespace);
            let is_empty = !pods.any(|(_, pod)| selector.labels.matches(|key| pod.facts.label(key)));
            return (is_empty && self.knows("", "Pod", namespace, access))
                .then(|| "no pod has the labels that it selects".to_owned());
        }
        if !object_health::is_built_in(&api.group) || !NEED_TARGETS.contains(&&*api.kind) {
            return None;
        }
        let is_missing = |target: &&EntryReference| {
            let EntryReference { group, kind, namespace, name, .. } = target;
            // A binding may name accounts that are made later.
            &**kind != "ServiceAccount"
                && self.by_name(group, kind, namespace, name).is_none()
                && self.knows(group, kind, namespace, access)
        };
        let missing = entry.facts.references.iter().find(is_missing)?;
        Some(format!("{} {} does not exist", missing.kind, missing.name))
    }

    /// Returns whether all objects of a kind in a namespace are known, and the caller may know that.
    fn knows(&self, group: &str, kind: &str, namespace: &str, access: &Access) -> bool {
        self.served().any(|(number, resource)| {
            let api = &resource.kind.api;
            (&*api.group, &*api.kind) == (group, kind)
                && resource.state == ResourceState::Synced
                && access.sees(number, namespace)
        })
    }
}
