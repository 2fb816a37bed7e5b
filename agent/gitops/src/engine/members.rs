//! The objects of the cluster that belong to a project.

use std::{
    collections::{HashMap, HashSet},
    hash::{DefaultHasher, Hash as _, Hasher as _},
};

use proto::gitops::ObjectId;
use serde_json::Value;

use super::{Engine, Failure, SyncContext};
use crate::{
    Cluster, GroupKind, Kind,
    applyset::{ApplySet, PART_OF},
    prune::Member,
    retry::{CallError, with_retry},
};

/// The members of a project.
#[derive(Debug, Default)]
pub(super) struct Members {
    /// The members with the fingerprints of their metadata.
    pub(super) by_id: HashMap<ObjectId, (Member, u64)>,
    /// The UIDs of the objects that this sync has applied or found unchanged.
    pub(super) applied: HashSet<String>,
    /// The kinds of members, by which they are deleted.
    pub(super) kinds: HashMap<GroupKind, Kind>,
    /// Kinds in the inventory that the cluster does not have now. Nothing of them is deleted.
    pub(super) unknown: Vec<GroupKind>,
}

impl<C: Cluster> Engine<C> {
    /// Lists the members by their label.
    pub(super) async fn members(&self, set: &ApplySet, sync: &SyncContext<'_>) -> Result<Members, Failure> {
        let mut members = Members::default();
        for group_kind in &set.kinds {
            let Some(kind) = self.resolve(group_kind, None, sync.fence).await? else {
                members.unknown.push(group_kind.clone());
                continue;
            };
            let Some(listed) = self.list_members(&kind, set, sync).await? else {
                // Its definition was deleted a moment ago.
                self.cluster.forget_kinds();
                members.unknown.push(group_kind.clone());
                continue;
            };
            for object in listed {
                let (id, metadata) = (id_of(group_kind, &object), &object["metadata"]);
                let member = Member::new(id.clone(), kind.version.clone(), metadata);
                members.by_id.insert(id, (member, fingerprint(metadata)));
            }
            members.kinds.insert(group_kind.clone(), kind);
        }
        Ok(members)
    }

    /// Lists the members of one kind: in one request if that is allowed, and otherwise in one for each namespace. Returns `None` if
    /// the kind has gone.
    async fn list_members(
        &self,
        kind: &Kind,
        set: &ApplySet,
        sync: &SyncContext<'_>,
    ) -> Result<Option<Vec<Value>>, Failure> {
        let selector = format!("{PART_OF}={}", sync.set);
        let list = |namespace: String| {
            let selector = &selector;
            with_retry(sync.fence, move || {
                let namespace = namespace.clone();
                async move { self.cluster.list(kind, &namespace, selector, true).await }
            })
        };
        let error = |error| {
            Failure::of_project(&format!("the {} of this project cannot be listed", kind.plural), error)
        };
        if !kind.namespaced || set.namespaces.len() != 1 {
            match list(String::new()).await {
                Err(CallError::Api(refused)) if refused.status == 403 && kind.namespaced => {}
                Err(CallError::Api(gone)) if gone.status == 404 => return Ok(None),
                listed => return listed.map(Some).map_err(error),
            }
        }
        let mut all = Vec::new();
        for namespace in &set.namespaces {
            match list(namespace.clone()).await {
                Err(CallError::Api(gone)) if gone.status == 404 => return Ok(None),
                listed => all.extend(listed.map_err(error)?),
            }
        }
        Ok(Some(all))
    }
}

/// Returns the id of an object of a kind. Items of lists have no kind themselves.
pub(super) fn id_of(kind: &GroupKind, object: &Value) -> ObjectId {
    let text = |key: &str| object["metadata"][key].as_str().unwrap_or_default().to_owned();
    ObjectId {
        group: kind.group.clone(),
        kind: kind.kind.clone(),
        namespace: text("namespace"),
        name: text("name"),
    }
}

/// Returns a number that changes when somebody changes the object, and not when a controller writes its status.
pub(crate) fn fingerprint(metadata: &Value) -> u64 {
    let mut hasher = DefaultHasher::new();
    metadata["uid"].as_str().hash(&mut hasher);
    match metadata["generation"].as_i64().filter(|generation| *generation > 0) {
        Some(generation) => generation.hash(&mut hasher),
        // Kinds without a generation have no status either, with few exceptions.
        None => metadata["resourceVersion"].as_str().hash(&mut hasher),
    }
    for key in ["labels", "annotations", "ownerReferences", "finalizers", "deletionTimestamp"] {
        metadata[key].to_string().hash(&mut hasher);
    }
    hasher.finish()
}
