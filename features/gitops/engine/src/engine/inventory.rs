//! Reads and writes the inventory: the parent of the ApplySet, and the record of the members.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use kube_cluster::{ApiError, ApplyOptions, Cluster, FIELD_MANAGER, Fence, GroupKind, Kind};
use proto::gitops::{ObjectError, ObjectId, RecoveryPlan};
use serde_json::{Value, json};

use super::{ATTEMPTS, CONCURRENCY, Engine, SyncContext, SyncError, SyncInput, cannot_write};
use crate::{
    Manifest,
    applyset::{ApplySet, PART_OF},
    deletion_plan::code,
    inventory::{GENERATION, HeldPlan, Inventory, InventoryState, MANAGER, ParentState},
    ownership::{self, ObjectOwner},
    retry::{ApiCallError, with_retry},
};

/// The most objects that a plan of a recovery names.
const MAX_SHOWN: usize = 20;

/// The inventory of a project, as it was read.
#[derive(Clone, Debug, Default)]
pub(super) struct StoredInventory {
    /// What the parent says.
    pub(super) set: ApplySet,
    /// The record.
    pub(super) inventory: Inventory,
    /// A commit was complete before, or the members when an older agentk was here are known.
    pub(super) is_recorded: bool,
    /// The parent exists.
    pub(super) exists: bool,
    /// The generation that the parent has.
    generation: u64,
    /// The record as it is in the cluster, with its version.
    written: Option<(Inventory, String)>,
}

impl StoredInventory {
    /// Returns whether the plan of deletions is not the one that was written.
    pub(super) fn has_new_plan(&self) -> bool {
        let Inventory { held, approved, .. } = &self.inventory;
        match &self.written {
            Some((written, _)) => (&written.held, &written.approved) != (held, approved),
            None => held.is_some() || !approved.is_empty(),
        }
    }
}

/// The result of [`Engine::recover`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Recovery {
    /// The inventory that would be written.
    Planned(RecoveryPlan),
    /// It was written. `suspended` says whether a command had suspended the project, if that is known.
    Done {
        /// Whether the project was suspended.
        suspended: Option<bool>,
    },
}

/// The owner of an object in Git whose kind cannot be listed.
enum UnlistedObject {
    /// It exists, and agentk has applied it with the label of the project.
    OfProject,
    /// It does not exist, or is not of the project.
    Other,
    /// It cannot be read.
    Unreadable(ObjectError),
}

/// The objects that a scan of the cluster has found.
#[derive(Debug, Default)]
struct Scan {
    members: BTreeMap<String, ObjectId>,
    /// The kinds that cannot be listed, with the reasons.
    unknown: Vec<(GroupKind, ApiError)>,
}

impl<C: Cluster> Engine<C> {
    /// Reads the inventory.
    pub(super) async fn load(
        &mut self,
        sync: &SyncContext<'_>,
        manifests: &[Manifest],
    ) -> Result<StoredInventory, SyncError> {
        let (mut stored, state) = self.read_inventory(sync.input, sync.fence).await?;
        match state {
            InventoryState::Known(_) => stored.is_recorded = true,
            InventoryState::Unrecorded => {}
            InventoryState::Lost(reason) => return Err(SyncError::InventoryLost(reason)),
            InventoryState::Absent => {
                if self.has_objects(sync, manifests).await? {
                    return Err(SyncError::InventoryLost(
                        "the cluster has objects of the project, and its inventory is gone",
                    ));
                }
            }
        }
        self.generation = Some(stored.inventory.generation).filter(|generation| *generation > 0);
        Ok(stored)
    }

    /// Reads the parent and the record, and compares them.
    async fn read_inventory(
        &self,
        input: &SyncInput,
        fence: &dyn Fence,
    ) -> Result<(StoredInventory, InventoryState), SyncError> {
        let mut set = ApplySet::new(input.agent, &input.project, &self.namespace);
        let ((kind, parent_id), (_, record_id)) = (set.parent_id(), set.record_id());
        let cannot_read = |error| SyncError::of_project("the inventory cannot be read", error);
        let parent = with_retry(fence, || self.own.get(&kind, &parent_id)).await.map_err(cannot_read)?;
        let record = with_retry(fence, || self.own.get(&kind, &record_id)).await.map_err(cannot_read)?;
        if let Some(parent) = &parent {
            set.read(parent).map_err(|error| SyncError::Project(error.to_string()))?;
        }
        let parent = parent.map(|parent| ParentState::new(&parent, &set));
        let decoded = record.as_ref().filter(|record| Inventory::is_in(record)).map(Inventory::from_object);
        let version =
            |object: &Value| object["metadata"]["resourceVersion"].as_str().unwrap_or_default().to_owned();
        let written = record.map(|object| {
            let version = version(&object);
            let inventory = decoded.as_ref().and_then(|decoded| decoded.as_ref().ok());
            (inventory.cloned().unwrap_or_default(), version)
        });
        let state = InventoryState::new(parent.as_ref(), decoded, self.generation);
        let inventory = match &state {
            InventoryState::Known(inventory) => (**inventory).clone(),
            _ => Inventory {
                parent: parent.as_ref().map(|parent| parent.uid.clone()).unwrap_or_default(),
                // Copies of an empty inventory may have one.
                generation: parent.as_ref().map_or(0, |parent| parent.generation),
                ..Inventory::default()
            },
        };
        // Kinds and namespaces of members that somebody has removed from the parent are looked at all the same.
        set.add_all(inventory.members.values());
        let (exists, generation) = (parent.is_some(), parent.map_or(0, |parent| parent.generation));
        let stored = StoredInventory { set, inventory, is_recorded: false, exists, generation, written };
        Ok((stored, state))
    }

    /// Returns whether the cluster has objects that agentk has applied with the label of the project.
    ///
    /// The project may lack the right to list kinds. Objects of such kinds that this sync would write are read one by one.
    ///
    /// # Errors
    ///
    /// A kind in Git cannot be listed and read: what cannot be seen is not absent.
    async fn has_objects(&self, sync: &SyncContext<'_>, manifests: &[Manifest]) -> Result<bool, SyncError> {
        use futures_util::{StreamExt as _, TryStreamExt as _, stream};

        let kinds = self.listable_kinds(sync.fence).await?;
        let namespaces: BTreeSet<&str> = manifests
            .iter()
            .map(|manifest| &*manifest.id.namespace)
            .filter(|name| !name.is_empty())
            .collect();
        let Scan { members, unknown } = self.scan(kinds, &namespaces, &Inventory::default(), sync).await?;
        if !members.is_empty() {
            return Ok(true);
        }
        let in_git: BTreeSet<GroupKind> = manifests.iter().map(Manifest::group_kind).collect();
        // A kind of somebody else that does not work must not block each new project.
        let failed = |(kind, error): &&(GroupKind, ApiError)| error.status != 403 && in_git.contains(kind);
        if let Some((kind, error)) = unknown.iter().find(failed) {
            return Err(cannot_see(kind, error));
        }
        let unlisted = |manifest: &&Manifest| unknown.iter().any(|(kind, _)| *kind == manifest.group_kind());
        let reads: Vec<_> =
            manifests.iter().filter(unlisted).map(|manifest| self.read_unlisted(manifest, sync)).collect();
        let mut reads = stream::iter(reads).buffered(CONCURRENCY);
        let mut unread = Vec::new();
        while let Some(read) = reads.try_next().await? {
            match read {
                UnlistedObject::OfProject => return Ok(true),
                UnlistedObject::Other => {}
                UnlistedObject::Unreadable(error) => unread.push(error),
            }
        }
        if unread.is_empty() { Ok(false) } else { Err(SyncError::Refused(unread)) }
    }

    /// Reads the object of a manifest whose kind cannot be listed.
    async fn read_unlisted(
        &self,
        manifest: &Manifest,
        sync: &SyncContext<'_>,
    ) -> Result<UnlistedObject, SyncError> {
        let id = &manifest.id;
        let Some(kind) = self.resolve(&GroupKind::of(id), None, sync.fence).await?.found() else {
            return Ok(UnlistedObject::Other);
        };
        let is_of_project =
            |object: &Value| ownership::owner(&object["metadata"], &sync.set, false) == ObjectOwner::Project;
        match with_retry(sync.fence, || self.cluster.get(&kind, id)).await {
            Ok(Some(object)) if is_of_project(&object) => Ok(UnlistedObject::OfProject),
            Ok(_) => Ok(UnlistedObject::Other),
            Err(ApiCallError::Api(error)) => Ok(UnlistedObject::Unreadable(
                manifest
                    .error(format!("agentk cannot see whether it has applied the object before: {error}")),
            )),
            Err(ApiCallError::Stopped(stopped)) => Err(stopped.into()),
        }
    }

    /// Looks for the objects of the project by their label.
    async fn scan(
        &self,
        kinds: Vec<Kind>,
        namespaces: &BTreeSet<&str>,
        inventory: &Inventory,
        sync: &SyncContext<'_>,
    ) -> Result<Scan, SyncError> {
        use futures_util::{StreamExt as _, stream};

        let selector = format!("{PART_OF}={}", sync.set);
        let list = async |kind: Kind| {
            let all = with_retry(sync.fence, || self.cluster.list(&kind, "", &selector, true)).await;
            let mut listed = match all {
                Err(ApiCallError::Api(error))
                    if error.status == 403 && kind.namespaced && !namespaces.is_empty() =>
                {
                    Ok(Vec::new())
                }
                listed => return (kind, listed),
            };
            for namespace in namespaces {
                let some =
                    with_retry(sync.fence, || self.cluster.list(&kind, namespace, &selector, true)).await;
                listed = match (listed, some) {
                    (Ok(mut all), Ok(some)) => {
                        all.extend(some);
                        Ok(all)
                    }
                    (Err(error), _) | (_, Err(error)) => Err(error),
                };
            }
            (kind, listed)
        };
        let lists: Vec<_> = kinds.into_iter().map(list).collect();
        let mut lists = stream::iter(lists).buffered(CONCURRENCY);
        let mut scan = Scan::default();
        while let Some((kind, listed)) = lists.next().await {
            let listed = match listed {
                Ok(listed) => listed,
                Err(ApiCallError::Stopped(stopped)) => return Err(stopped.into()),
                // The kind has no lists, or has gone.
                Err(ApiCallError::Api(error)) if matches!(error.status, 404 | 405) => continue,
                Err(ApiCallError::Api(error)) => {
                    scan.unknown.push((kind.kind, error));
                    continue;
                }
            };
            for object in listed {
                let metadata = &object["metadata"];
                let uid = metadata["uid"].as_str().unwrap_or_default();
                if ownership::owner(metadata, &sync.set, inventory.has(uid)) == ObjectOwner::Project {
                    scan.members.insert(uid.to_owned(), kind.kind.object_id(&object));
                }
            }
        }
        Ok(scan)
    }

    async fn listable_kinds(&self, fence: &dyn Fence) -> Result<Vec<Kind>, SyncError> {
        let kinds = with_retry(fence, || self.cluster.listable_kinds()).await;
        kinds
            .map(|(kinds, _)| kinds)
            .map_err(|error| SyncError::of_project("the kinds of the cluster cannot be read", error))
    }

    /// Writes the record, if it has changed, and then its generation.
    pub(super) async fn store(
        &mut self,
        stored: &mut StoredInventory,
        fence: &dyn Fence,
    ) -> Result<(), SyncError> {
        let changed = |(written, _): &(Inventory, String)| *written != stored.inventory;
        if stored.written.as_ref().is_none_or(changed) {
            if stored.generation < stored.inventory.generation {
                // A process has ended between the two writes. The record must not be two generations ahead.
                self.write_generation(stored, fence).await?;
            }
            if stored.written.is_none() {
                stored.written = Some((Inventory::default(), self.create_record(stored, fence).await?));
            }
            stored.inventory.generation += 1;
            let (kind, id) = stored.set.record_id();
            let mut object = stored.inventory.to_object(&stored.set);
            if let Some((_, version)) = &stored.written {
                // What another leader has written meanwhile stays.
                object["metadata"]["resourceVersion"] = version.as_str().into();
            }
            let options = ApplyOptions { manager: MANAGER, dry_run: false, force: true };
            let written = with_retry(fence, || self.own.apply(&kind, &id, &object, options)).await;
            let written = written.map_err(cannot_write)?.object;
            let version = written["metadata"]["resourceVersion"].as_str().unwrap_or_default().to_owned();
            stored.written = Some((stored.inventory.clone(), version));
            self.generation = Some(stored.inventory.generation);
        }
        if stored.generation < stored.inventory.generation {
            self.write_generation(stored, fence).await
        } else {
            Ok(())
        }
    }

    /// Creates the ConfigMap of the record without the record, and returns its version. Each record names the version that it replaces, so
    /// that what a former leader has sent and that arrives late replaces nothing; only this write cannot, and it replaces nothing.
    async fn create_record(&self, stored: &StoredInventory, fence: &dyn Fence) -> Result<String, SyncError> {
        let (kind, id) = stored.set.record_id();
        let object = json!({
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": id.name, "namespace": id.namespace},
        });
        let options = ApplyOptions { manager: FIELD_MANAGER, dry_run: false, force: false };
        let created = with_retry(fence, || self.own.apply(&kind, &id, &object, options)).await;
        let created = created.map_err(cannot_write)?.object;
        Ok(created["metadata"]["resourceVersion"].as_str().unwrap_or_default().to_owned())
    }

    /// Writes the parent of a recovery. It has a generation, so that the inventory is still lost if the process ends before it has
    /// written the record.
    async fn write_recovered_parent(
        &self,
        set: &mut ApplySet,
        generation: u64,
        fence: &dyn Fence,
    ) -> Result<String, SyncError> {
        for attempt in 1.. {
            let (kind, id) = set.parent_id();
            let mut object = set.parent();
            object["metadata"]["annotations"][GENERATION] = generation.to_string().into();
            let options = ApplyOptions { manager: FIELD_MANAGER, dry_run: false, force: true };
            match with_retry(fence, || self.own.apply(&kind, &id, &object, options)).await {
                Ok(written) => {
                    let text = |key: &str| written.object["metadata"][key].as_str().map(str::to_owned);
                    set.version = text("resourceVersion");
                    return Ok(text("uid").unwrap_or_default());
                }
                Err(ApiCallError::Api(error)) if error.is_stale() && attempt < ATTEMPTS => {
                    self.read_parent(set, fence).await?;
                }
                Err(error) => return Err(cannot_write(error)),
            }
        }
        unreachable!("the last attempt returns")
    }

    /// Writes the generation of the record to the parent, unless another leader has written a newer one.
    async fn write_generation(
        &self,
        stored: &mut StoredInventory,
        fence: &dyn Fence,
    ) -> Result<(), SyncError> {
        let (kind, id) = stored.set.parent_id();
        let generation = stored.inventory.generation;
        for attempt in 1.. {
            let object = json!({
                "apiVersion": "v1",
                "kind": "ConfigMap",
                "metadata": {
                    "name": id.name,
                    "namespace": id.namespace,
                    "annotations": {GENERATION: generation.to_string()},
                    "resourceVersion": stored.set.version,
                    "uid": stored.inventory.parent,
                },
            });
            let options = ApplyOptions { manager: MANAGER, dry_run: false, force: true };
            match with_retry(fence, || self.own.apply(&kind, &id, &object, options)).await {
                Ok(written) => {
                    let version = written.object["metadata"]["resourceVersion"].as_str();
                    stored.set.version = version.map(str::to_owned);
                    break;
                }
                // The status may have been written since the beginning.
                Err(ApiCallError::Api(error)) if error.is_stale() && attempt < ATTEMPTS => {
                    let parent = self.read_parent(&mut stored.set, fence).await?;
                    let newer = parent.is_some_and(|parent| parent.generation > generation);
                    if newer {
                        return Err(SyncError::Project(
                            "another process has written the inventory".to_owned(),
                        ));
                    }
                }
                Err(error) => return Err(cannot_write(error)),
            }
        }
        stored.generation = generation;
        Ok(())
    }

    /// Notes whether a command has suspended the project, so that this survives the loss of the parent.
    ///
    /// # Errors
    ///
    /// The inventory cannot be read or written.
    pub async fn note_suspension(
        &mut self,
        input: &SyncInput,
        suspended: bool,
        fence: &dyn Fence,
    ) -> Result<(), SyncError> {
        let (mut stored, state) = self.read_inventory(input, fence).await?;
        let InventoryState::Known(inventory) = state else { return Ok(()) };
        stored.inventory = Inventory { suspended, ..*inventory };
        self.store(&mut stored, fence).await
    }

    /// Makes an inventory that was lost anew, from the labels of objects in the cluster. Without the code of exactly this inventory it
    /// writes nothing. The objects that are not in Git then wait for an approval.
    ///
    /// # Errors
    ///
    /// The cluster cannot be read, or the inventory cannot be written.
    pub async fn recover(
        &mut self,
        input: &SyncInput,
        approved: Option<&str>,
        fence: &dyn Fence,
    ) -> Result<Recovery, SyncError> {
        let manifests = self.read_manifests(input, fence).await?;
        let (mut stored, _) = self.read_inventory(input, fence).await?;
        let old = stored.written.as_ref().map(|(old, _)| old.clone()).filter(|old| old.generation > 0);
        let sync = SyncContext { input, fence, set: stored.set.id(), autoscaled: HashSet::new() };
        let kinds = self.listable_kinds(fence).await?;
        let namespaces: BTreeSet<&str> = manifests
            .iter()
            .map(|manifest| &manifest.id)
            .chain(old.iter().flat_map(|old| old.members.values()))
            .map(|id| &*id.namespace)
            .filter(|namespace| !namespace.is_empty())
            .collect();
        let recorded = old.clone().unwrap_or_default();
        let Scan { mut members, unknown } = self.scan(kinds, &namespaces, &recorded, &sync).await?;
        for (uid, id) in &recorded.members {
            if !members.contains_key(uid) && self.is_still_there(uid, id, &sync).await? {
                members.insert(uid.clone(), id.clone());
            }
        }
        let in_git: BTreeSet<&ObjectId> = manifests.iter().map(|manifest| &manifest.id).collect();
        let left: BTreeMap<String, ObjectId> = members
            .iter()
            .filter(|(_, id)| !in_git.contains(id))
            .map(|(uid, id)| (uid.clone(), id.clone()))
            .collect();
        let code = code(0, members.iter().map(|(uid, id)| format!("{id} {uid}")));
        let count = |objects: &BTreeMap<String, ObjectId>| u32::try_from(objects.len()).unwrap_or(u32::MAX);
        if approved != Some(&*code) {
            let (count, objects) = (count(&members), left.values().take(MAX_SHOWN).cloned().collect());
            let left = u32::try_from(left.len()).unwrap_or(u32::MAX);
            let unknown = unknown.into_iter().map(|(kind, error)| format!("{kind}: {error}")).collect();
            return Ok(Recovery::Planned(RecoveryPlan { code, count, left, objects, unknown }));
        }

        stored.set.add_all(members.values());
        let before = recorded.generation.max(stored.generation).max(self.generation.unwrap_or(0)).max(1);
        let parent = self.write_recovered_parent(&mut stored.set, before, fence).await?;
        let suspended = old.as_ref().map(|old| old.suspended);
        let mut held = recorded.held.unwrap_or_else(|| HeldPlan {
            reason:
                "the inventory was lost: approve what left Git with kas gitops approve, or restore the files"
                    .to_owned(),
            commit: input.commit.clone(),
            since: input.now,
            ..HeldPlan::default()
        });
        held.others.extend(std::mem::take(&mut held.objects).into_keys());
        held.others.extend(left.into_keys());
        stored.inventory = Inventory {
            parent,
            generation: before,
            members,
            held: (!held.others.is_empty()).then_some(held),
            deletions: recorded.deletions,
            jobs: recorded.jobs,
            // What is not known is the safer one.
            suspended: suspended.unwrap_or(true),
            ..Inventory::default()
        };
        stored.generation = before;
        // The record is written even if it is the same: the parent has an older generation, or none.
        if let Some((written, _)) = &mut stored.written {
            *written = Inventory::default();
        }
        self.store(&mut stored, fence).await?;
        Ok(Recovery::Done { suspended })
    }

    /// Returns whether an object without the label of the project is still the one that was recorded.
    async fn is_still_there(
        &self,
        uid: &str,
        id: &ObjectId,
        sync: &SyncContext<'_>,
    ) -> Result<bool, SyncError> {
        let Some(kind) = self.resolve(&GroupKind::of(id), None, sync.fence).await?.found() else {
            return Ok(false);
        };
        match with_retry(sync.fence, || self.cluster.get(&kind, id)).await {
            Ok(found) => Ok(found.is_some_and(|found| {
                let metadata = &found["metadata"];
                metadata["uid"] == *uid && ownership::owner(metadata, &sync.set, true) == ObjectOwner::Project
            })),
            Err(ApiCallError::Api(_)) => Ok(false),
            Err(ApiCallError::Stopped(stopped)) => Err(stopped.into()),
        }
    }
}

fn cannot_see(kind: &GroupKind, error: &ApiError) -> SyncError {
    SyncError::Project(format!(
        "agentk cannot see whether the cluster has objects of the project: {kind}: {error}"
    ))
}
