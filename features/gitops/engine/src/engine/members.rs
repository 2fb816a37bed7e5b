//! The objects of the cluster that belong to a project.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    hash::{DefaultHasher, Hash as _, Hasher as _},
};

use futures_util::{StreamExt as _, stream};
use kube_cluster::{ApiError, Cluster, GroupKind, Kind, KindLookup};
use proto::gitops::ObjectId;
use serde_json::Value;

use super::{CONCURRENCY, Engine, SyncContext, SyncError, inventory::StoredInventory};
use crate::{
    applyset::{ApplySet, PART_OF},
    deletion_plan::Member,
    inventory::Inventory,
    ownership::{self, ObjectOwner},
    retry::{ApiCallError, with_retry},
    validate::DEFINITIONS,
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
    /// Kinds in the inventory that cannot be listed, with the reasons. Nothing of them is deleted.
    pub(super) unknown: Vec<(GroupKind, String)>,
    /// Objects that have the label of the project, and do not belong to it, with the reasons.
    pub(super) foreign: Vec<(ObjectId, String)>,
    /// The UIDs of members in the inventory.
    pub(super) recorded: BTreeSet<String>,
    /// The digests of the manifests of jobs that were applied, by their objects.
    pub(super) jobs: BTreeMap<String, String>,
}

/// The members of one kind.
enum MemberList {
    Listed(Vec<Value>),
    /// The kind has gone (404), the project may not list it (403), or the server of its API group is down (503).
    Unlistable(ApiError),
}

impl Members {
    /// Adds a member with the fingerprint of its metadata.
    pub(super) fn add(&mut self, member: Member, fingerprint: u64) {
        self.by_id.insert(member.id.clone(), (member, fingerprint));
    }

    /// Returns whether a kind cannot be listed now.
    pub(super) fn is_unknown(&self, kind: &GroupKind) -> bool {
        self.unknown.iter().any(|(unknown, _)| unknown == kind)
    }
}

impl<C: Cluster> Engine<C> {
    /// Finds the members: by their label, and those that have lost it by their names in the inventory.
    pub(super) async fn members(
        &self,
        stored: &StoredInventory,
        sync: &SyncContext<'_>,
    ) -> Result<Members, SyncError> {
        let StoredInventory { set, inventory, .. } = stored;
        let mut members = Members {
            recorded: inventory.members.keys().cloned().collect(),
            jobs: inventory.jobs.clone(),
            ..Members::default()
        };
        for group_kind in &set.kinds {
            let kind = match self.resolve(group_kind, None, sync.fence).await? {
                KindLookup::Found(kind) => kind,
                // Its objects went with its definition.
                KindLookup::Missing if self.has_no_definition(group_kind, sync).await? => continue,
                KindLookup::Missing => {
                    members.unknown.push((group_kind.clone(), "the cluster does not have it now".to_owned()));
                    continue;
                }
                KindLookup::Unavailable => {
                    let reason = format!("the API group {} does not respond", group_kind.group);
                    members.unknown.push((group_kind.clone(), reason));
                    continue;
                }
            };
            let listed = match self.list_members(&kind, set, sync).await? {
                MemberList::Listed(listed) => listed,
                MemberList::Unlistable(error) => {
                    if error.status == 404 {
                        // Its definition was deleted a moment ago.
                        self.cluster.forget_kinds();
                    }
                    members.unknown.push((group_kind.clone(), error.to_string()));
                    continue;
                }
            };
            for object in listed {
                members.sort_in(&kind, &object, inventory, sync);
            }
            members.kinds.insert(group_kind.clone(), kind);
        }
        self.add_without_label(&mut members, inventory, sync).await?;
        Ok(members)
    }

    /// Returns whether the definition of a kind that is missing was deleted. An API server that starts has kinds that it does not list yet.
    async fn has_no_definition(
        &self,
        missing: &GroupKind,
        sync: &SyncContext<'_>,
    ) -> Result<bool, SyncError> {
        let (group, kind) = DEFINITIONS;
        let definitions = GroupKind { group: group.to_owned(), kind: kind.to_owned() };
        let Some(kind) = self.resolve(&definitions, None, sync.fence).await?.found() else {
            return Ok(false);
        };
        let listed = match with_retry(sync.fence, || self.cluster.list(&kind, "", "", true)).await {
            Ok(listed) => listed,
            Err(ApiCallError::Api(_)) => return Ok(false),
            Err(ApiCallError::Stopped(stopped)) => return Err(stopped.into()),
        };
        let suffix = format!(".{}", missing.group);
        let ids = listed.iter().map(|definition| definitions.object_id(definition));
        for id in ids.filter(|id| id.name.ends_with(&suffix)) {
            match with_retry(sync.fence, || self.cluster.get(&kind, &id)).await {
                Ok(Some(definition)) if definition["spec"]["names"]["kind"] == *missing.kind => {
                    return Ok(false);
                }
                Ok(_) => {}
                Err(ApiCallError::Api(_)) => return Ok(false),
                Err(ApiCallError::Stopped(stopped)) => return Err(stopped.into()),
            }
        }
        Ok(true)
    }

    /// Adds the members that have lost their label.
    async fn add_without_label(
        &self,
        members: &mut Members,
        inventory: &Inventory,
        sync: &SyncContext<'_>,
    ) -> Result<(), SyncError> {
        let found: HashSet<&str> = members.by_id.values().map(|(member, _)| &*member.uid).collect();
        let missing: Vec<(ObjectId, Kind)> = inventory
            .members
            .iter()
            .filter(|(uid, _)| !found.contains(&***uid))
            .filter_map(|(_, id)| Some((id.clone(), members.kinds.get(&GroupKind::of(id))?.clone())))
            .collect();
        let reading: Vec<_> = missing
            .into_iter()
            .map(async |(id, kind)| {
                let read = with_retry(sync.fence, || self.cluster.get(&kind, &id)).await;
                (id, kind, read)
            })
            .collect();
        let mut reading = stream::iter(reading).buffered(CONCURRENCY);
        while let Some((id, kind, read)) = reading.next().await {
            match read {
                Ok(Some(object)) => members.sort_in(&kind, &object, inventory, sync),
                Ok(None) => {}
                Err(error) => return Err(SyncError::of_project(&format!("{id} cannot be read"), error)),
            }
        }
        Ok(())
    }

    /// Lists the members of one kind: in one request if that is allowed, and otherwise in one for each namespace.
    async fn list_members(
        &self,
        kind: &Kind,
        set: &ApplySet,
        sync: &SyncContext<'_>,
    ) -> Result<MemberList, SyncError> {
        let selector = format!("{PART_OF}={}", sync.set);
        let list = async |namespace: &str| {
            let listed = with_retry(sync.fence, || self.cluster.list(kind, namespace, &selector, true)).await;
            match listed {
                Ok(listed) => Ok(MemberList::Listed(listed)),
                Err(ApiCallError::Api(error)) if matches!(error.status, 403 | 404 | 503) => {
                    Ok(MemberList::Unlistable(error))
                }
                Err(error) => Err(SyncError::of_project(
                    &format!("the {} of this project cannot be listed", kind.plural),
                    error,
                )),
            }
        };
        if !kind.namespaced || set.namespaces.len() != 1 {
            match list("").await? {
                MemberList::Unlistable(refused) if refused.status == 403 && kind.namespaced => {}
                listed => return Ok(listed),
            }
        }
        let mut all = Vec::new();
        for namespace in &set.namespaces {
            match list(namespace).await? {
                MemberList::Listed(listed) => all.extend(listed),
                refused @ MemberList::Unlistable(_) => return Ok(refused),
            }
        }
        Ok(MemberList::Listed(all))
    }
}

impl Members {
    /// Adds an object to the members if it is one.
    fn sort_in(&mut self, kind: &Kind, object: &Value, inventory: &Inventory, sync: &SyncContext<'_>) {
        let (id, metadata) = (kind.kind.object_id(object), &object["metadata"]);
        let is_recorded = inventory.has(metadata["uid"].as_str().unwrap_or_default());
        match ownership::owner(metadata, &sync.set, is_recorded) {
            ObjectOwner::Project => {
                self.add(Member::new(id, kind.version.clone(), metadata), fingerprint(metadata))
            }
            ObjectOwner::Set(set) => self.foreign.push((id, format!("it belongs to the ApplySet {set}"))),
            ObjectOwner::Other(owner) => self.foreign.push((id, format!("it belongs to {owner}"))),
            // An object of the name of a member that was deleted.
            ObjectOwner::Nobody if metadata["labels"][PART_OF].is_null() => {}
            ObjectOwner::Nobody => self.foreign.push((
                id,
                "agentk did not apply it (managedFields): somebody has copied the label of the project"
                    .to_owned(),
            )),
        }
    }
}

/// Returns a number that changes when somebody changes the object, and not when a controller writes its status.
pub(crate) fn fingerprint(metadata: &Value) -> u64 {
    let mut hasher = DefaultHasher::new();
    metadata["uid"].as_str().hash(&mut hasher);
    match metadata["generation"].as_i64().filter(|generation| *generation > 0) {
        Some(generation) => {
            generation.hash(&mut hasher);
            // Some kinds, such as PriorityClass, keep their first generation for ever.
            let managers = metadata["managedFields"].as_array().into_iter().flatten();
            for manager in managers.filter(|manager| manager["subresource"] != "status") {
                ["manager", "operation", "time"].map(|key| manager[key].as_str()).hash(&mut hasher);
            }
        }
        // Kinds without a generation have no status either, with few exceptions.
        None => metadata["resourceVersion"].as_str().hash(&mut hasher),
    }
    for key in ["labels", "annotations", "ownerReferences", "finalizers", "deletionTimestamp"] {
        metadata[key].to_string().hash(&mut hasher);
    }
    hasher.finish()
}
