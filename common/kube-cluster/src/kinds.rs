//! Kinds of objects, and those that a policy allows.

use std::fmt;

use proto::gitops::ObjectId;
use serde_json::Value;

/// A kind of objects in any version.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GroupKind {
    /// The API group; empty for the core group.
    pub group: String,
    /// The kind.
    pub kind: String,
}

/// A kind as the cluster serves it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kind {
    /// The group and the kind.
    pub kind: GroupKind,
    /// The version.
    pub version: String,
    /// The name in paths, such as `deployments`.
    pub plural: String,
    /// Its objects are in namespaces.
    pub namespaced: bool,
    /// The API server keeps the status of its objects apart, so that a controller is to write one.
    pub has_status: bool,
}

/// The kinds that may be objects of environments.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AllowedKinds(Vec<AllowedResources>);

/// Resources of API groups.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AllowedResources {
    /// The API groups, or `None` for each group that has the resources.
    pub groups: Option<Vec<String>>,
    /// The resources, such as `rolebindings`.
    pub resources: Vec<String>,
}

impl GroupKind {
    /// Returns the kind of an object.
    pub fn of(id: &ObjectId) -> Self {
        Self { group: id.group.clone(), kind: id.kind.clone() }
    }

    /// Returns the id of an object of this kind. Items of lists have no kind themselves.
    pub fn object_id(&self, object: &Value) -> ObjectId {
        let text = |key: &str| object["metadata"][key].as_str().unwrap_or_default().to_owned();
        ObjectId {
            group: self.group.clone(),
            kind: self.kind.clone(),
            namespace: text("namespace"),
            name: text("name"),
        }
    }
}

/// `Deployment.apps`, `ConfigMap`: the form of `kubectl` and of ApplySets.
impl fmt::Display for GroupKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.group.is_empty() {
            f.write_str(&self.kind)
        } else {
            write!(f, "{}.{}", self.kind, self.group)
        }
    }
}

impl AllowedKinds {
    /// Allows the resources of each entry.
    pub fn new(entries: impl IntoIterator<Item = AllowedResources>) -> Self {
        Self(entries.into_iter().collect())
    }

    /// Returns whether no kind is allowed.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns whether objects of a kind are allowed.
    pub fn allows(&self, kind: &Kind) -> bool {
        self.0.iter().any(|entry| entry.has_group(&kind.kind.group) && entry.resources.contains(&kind.plural))
    }

    /// Returns whether a kind of an API group is allowed.
    pub fn has_group(&self, group: &str) -> bool {
        self.0.iter().any(|entry| entry.has_group(group))
    }
}

impl AllowedResources {
    fn has_group(&self, group: &str) -> bool {
        self.groups.as_ref().is_none_or(|groups| groups.iter().any(|each| each == "*" || each == group))
    }
}
