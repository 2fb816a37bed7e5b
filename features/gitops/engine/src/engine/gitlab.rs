//! The inventory of GitLab's agent, which is read until all of its objects are taken over.
//!
//! GitLab's agent kept a ConfigMap for each project, whose keys name the objects that it had applied (cli-utils, `object.ObjMetadata`).
//! Objects that left Git before the take-over are listed only there. A user who may write ConfigMaps in the namespace can change it, so
//! that an object counts only if it has the annotation of this inventory itself.

use std::collections::HashSet;

use futures_util::{StreamExt as _, stream};
use kube_cluster::{ApiError, Cluster, GroupKind, Kind, KindLookup};
use proto::gitops::ObjectId;
use serde_json::{Value, json};

use super::{
    CONCURRENCY, Engine, SyncContext, SyncError, SyncInput, SyncState,
    members::{Members, fingerprint},
    report::Report,
};
use crate::{
    applyset::PART_OF,
    deletion_plan::Member,
    ownership,
    parse::MAX_OBJECTS,
    retry::{ApiCallError, with_retry},
};

/// The annotation with the inventory of GitLab's agent and of cli-utils.
pub(super) const OWNING_INVENTORY: &str = "config.k8s.io/owning-inventory";
/// The label of inventories of cli-utils.
const INVENTORY_ID: &str = "cli-utils.sigs.k8s.io/inventory-id";

/// An inventory of GitLab's agent.
pub(super) struct OldInventory {
    id: ObjectId,
    /// It is in the namespace of agentk, and not in that of the project.
    is_own: bool,
    uid: String,
    version: String,
    /// The objects that are in Git and are taken over by this sync.
    pub(super) in_git: Vec<ObjectId>,
    /// The objects that left Git and are still there.
    left: Vec<OldObject>,
    /// The first reason why objects are not known now.
    unknown: Option<String>,
}

/// An object that left Git before it was taken over.
pub(super) struct OldObject {
    id: ObjectId,
    kind: Kind,
    metadata: Value,
}

/// The read of an object that may have left Git.
enum OldObjectRead {
    Found(OldObject),
    Missing,
    Unreadable(ApiError),
}

impl OldInventory {
    /// Makes the objects that left Git members, without a write.
    pub(super) fn add_to(&self, members: &mut Members) {
        for OldObject { id, kind, metadata } in &self.left {
            if !ownership::is_applied_by_agentk(metadata) {
                let reason = "agentk did not apply it (managedFields), although its annotation says so";
                members.foreign.push((id.clone(), reason.to_owned()));
                continue;
            }
            members.add(Member::new(id.clone(), kind.version.clone(), metadata), fingerprint(metadata));
            members.kinds.insert(kind.kind.clone(), kind.clone());
        }
    }
}

/// Returns the id of the inventory that GitLab's agent has kept for a project.
pub(super) fn inventory_id(input: &SyncInput) -> Option<String> {
    input.gitlab_project.map(|project| format!("{}-{project}", input.agent))
}

impl<C: Cluster> Engine<C> {
    /// Reads the inventory of GitLab's agent, if there is one, without a write.
    pub(super) async fn old_inventory(
        &self,
        members: &Members,
        desired: &HashSet<ObjectId>,
        sync: &SyncContext<'_>,
    ) -> Result<Option<OldInventory>, SyncError> {
        let Some(inventory) = inventory_id(sync.input).filter(|_| !self.taken_over) else { return Ok(None) };
        let of_project = (&self.cluster, &*sync.input.settings.default_namespace, false);
        let of_agentk = (&self.own, &*self.namespace, true);
        for (cluster, namespace, is_own) in [of_project, of_agentk] {
            let (kind, id) = config_map(namespace, format!("inventory-{inventory}"));
            let found = match with_retry(sync.fence, || cluster.get(&kind, &id)).await {
                Ok(found) => found,
                // The project may not read it. Most projects have none.
                Err(ApiCallError::Api(error)) if error.status == 403 => None,
                Err(error) => {
                    return Err(SyncError::of_project(
                        "the inventory of GitLab's agent cannot be read",
                        error,
                    ));
                }
            };
            let Some(found) = found.filter(|found| found["metadata"]["labels"][INVENTORY_ID] == *inventory)
            else {
                continue;
            };
            let text = |key: &str| found["metadata"][key].as_str().unwrap_or_default().to_owned();
            let (uid, version) = (text("uid"), text("resourceVersion"));
            let keys = found["data"].as_object().into_iter().flatten().take(MAX_OBJECTS);
            let others =
                keys.filter_map(|(key, _)| parse_key(key)).filter(|id| !members.by_id.contains_key(id));
            let (in_git, wanted): (Vec<_>, Vec<_>) = others.partition(|id| desired.contains(id));
            let (left, unknown) = self.old_objects(wanted, &inventory, sync).await?;
            return Ok(Some(OldInventory { id, is_own, uid, version, in_git, left, unknown }));
        }
        Ok(None)
    }

    /// Returns those of these objects that exist and belong to the inventory, and why others are not known.
    async fn old_objects(
        &self,
        ids: Vec<ObjectId>,
        inventory: &str,
        sync: &SyncContext<'_>,
    ) -> Result<(Vec<OldObject>, Option<String>), SyncError> {
        let reading: Vec<_> = ids.into_iter().map(|id| self.old_object(id, sync)).collect();
        let read: Vec<_> = stream::iter(reading).buffered(CONCURRENCY).collect().await;
        let (mut left, mut unknown) = (Vec::new(), None);
        for found in read {
            match found? {
                OldObjectRead::Found(object) => left.push(object),
                OldObjectRead::Missing => {}
                OldObjectRead::Unreadable(error) => unknown = unknown.or_else(|| Some(error.to_string())),
            }
        }
        left.retain(|OldObject { metadata, .. }| {
            let label = &metadata["labels"][PART_OF];
            let is_free = label.is_null() || *label == *sync.set;
            is_free && metadata["annotations"][OWNING_INVENTORY] == *inventory
        });
        Ok((left, unknown))
    }

    async fn old_object(&self, id: ObjectId, sync: &SyncContext<'_>) -> Result<OldObjectRead, SyncError> {
        let kind = match self.resolve(&GroupKind::of(&id), None, sync.fence).await? {
            KindLookup::Found(kind) if kind.namespaced != id.namespace.is_empty() => kind,
            KindLookup::Found(_) | KindLookup::Missing => return Ok(OldObjectRead::Missing),
            KindLookup::Unavailable => {
                let message = format!("the API group {} does not respond", id.group);
                return Ok(OldObjectRead::Unreadable(ApiError { message, ..ApiError::default() }));
            }
        };
        match with_retry(sync.fence, || self.cluster.get(&kind, &id)).await {
            Ok(Some(mut live)) => {
                Ok(OldObjectRead::Found(OldObject { metadata: live["metadata"].take(), id, kind }))
            }
            Ok(None) => Ok(OldObjectRead::Missing),
            Err(ApiCallError::Api(error)) => Ok(OldObjectRead::Unreadable(error)),
            Err(ApiCallError::Stopped(stopped)) => Err(stopped.into()),
        }
    }

    /// Gives the objects of the inventory of GitLab's agent that left Git the label of members, so that they are found by it from now on,
    /// and deletes the inventory once all are taken over. Returns those that did not get the label.
    pub(super) async fn take_over(
        &mut self,
        old: Option<OldInventory>,
        state: &mut SyncState,
        sync: &SyncContext<'_>,
        report: &mut Report<'_>,
    ) -> Result<HashSet<ObjectId>, SyncError> {
        let (set, members) = (&mut state.stored.set, &mut state.members);
        let mut failed = HashSet::new();
        let Some(OldInventory { id, is_own, uid, version, left, unknown, .. }) = old else {
            self.taken_over = true;
            return Ok(failed);
        };
        let settings = &sync.input.settings;
        let is_allowed = |OldObject { id, kind, metadata }: &OldObject| {
            let place = if kind.namespaced {
                settings.allows_namespace(&id.namespace)
            } else {
                settings.allows_cluster_scoped()
            };
            // The same object can have two names, in two API groups.
            let is_applied = metadata["uid"].as_str().is_some_and(|uid| members.applied.contains(uid));
            place
                && settings.allows_kind(&id.group, &id.kind)
                && !is_applied
                && ownership::is_applied_by_agentk(metadata)
        };
        let left: Vec<_> = left.into_iter().filter(is_allowed).collect();
        // As for all members: the inventory has the kinds and the namespaces before the label.
        if left.iter().fold(false, |grown, object| set.add(&object.id) | grown) {
            self.write_parent(set, sync.fence).await?;
        }
        let mut failure = unknown;
        for OldObject { id, kind, metadata } in left {
            let patch = label(&metadata, &sync.set);
            match with_retry(sync.fence, || self.cluster.patch(&kind, &id, &patch)).await {
                Ok(labelled) => {
                    let metadata = &labelled["metadata"];
                    members.add(Member::new(id, kind.version.clone(), metadata), fingerprint(metadata));
                }
                Err(ApiCallError::Api(error)) => {
                    failure = failure.or_else(|| Some(error.describe(&id)));
                    members.by_id.remove(&id);
                    failed.insert(id);
                }
                Err(ApiCallError::Stopped(stopped)) => return Err(stopped.into()),
            }
        }
        if failure.is_none() {
            let cluster = if is_own { &self.own } else { &self.cluster };
            let (kind, _) = config_map("", String::new());
            let policy = proto::agent_configuration::gitops::PropagationPolicy::Background;
            match with_retry(sync.fence, || cluster.delete(&kind, &id, &uid, Some(&version), policy)).await {
                // The next sync looks for another one.
                Ok(_) => {}
                Err(ApiCallError::Api(error)) if error.status == 404 => {}
                Err(ApiCallError::Api(error)) => failure = Some(error.to_string()),
                Err(ApiCallError::Stopped(stopped)) => return Err(stopped.into()),
            }
        }
        if let Some(failure) = failure {
            report.note(format!(
                "{id} of GitLab's agent stays, because not all of its objects were taken over, and the next sync goes on: {failure}"
            ));
        }
        Ok(failed)
    }
}

/// Returns the kind of ConfigMaps, and the id of one.
fn config_map(namespace: &str, name: String) -> (Kind, ObjectId) {
    let text = str::to_owned;
    let kind = GroupKind { group: String::new(), kind: text("ConfigMap") };
    let id = ObjectId { group: String::new(), kind: text("ConfigMap"), namespace: text(namespace), name };
    (Kind { kind, version: text("v1"), plural: text("configmaps"), namespaced: true, has_status: false }, id)
}

/// Reads a key of an inventory: `<namespace>_<name>_<group>_<kind>`, where `__` in the name stands for `:`.
fn parse_key(key: &str) -> Option<ObjectId> {
    let (namespace, rest) = key.split_once('_')?;
    let (rest, kind) = rest.rsplit_once('_')?;
    let (name, group) = rest.rsplit_once('_')?;
    let name = name.replace("__", ":");
    // These become a path.
    let is_safe = |text: &str| {
        text.len() <= 253 && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-.:".contains(&byte))
    };
    let is_safe = [namespace, &*name, group, kind].into_iter().all(is_safe);
    let text = str::to_owned;
    (is_safe && !matches!(&*name, "" | "." | "..") && !kind.is_empty()).then(|| ObjectId {
        group: text(group),
        kind: text(kind),
        namespace: text(namespace),
        name,
    })
}

/// Returns a patch that makes an object a member, unless it has changed since it was read.
fn label(metadata: &Value, set: &str) -> Value {
    let (path, value) = if metadata["labels"].is_object() {
        (format!("/metadata/labels/{}", PART_OF.replace('/', "~1")), json!(set))
    } else {
        ("/metadata/labels".to_owned(), json!({PART_OF: set}))
    };
    json!([
        {"op": "test", "path": "/metadata/uid", "value": metadata["uid"]},
        {"op": "test", "path": "/metadata/resourceVersion", "value": metadata["resourceVersion"]},
        {"op": "add", "path": path, "value": value},
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_those_of_cli_utils() {
        let read = |key: &str| parse_key(key).map(|id| id.to_string());
        assert_eq!(read("shop_web_apps_Deployment").as_deref(), Some("Deployment.apps shop/web"));
        assert_eq!(read("shop_settings__ConfigMap").as_deref(), Some("ConfigMap shop/settings"));
        assert_eq!(read("_shop__Namespace").as_deref(), Some("Namespace shop"));
        let role = "_system__reader_rbac.authorization.k8s.io_ClusterRole";
        assert_eq!(read(role).as_deref(), Some("ClusterRole.rbac.authorization.k8s.io system:reader"));
        for broken in [
            "",
            "a_b",
            "shop___ConfigMap",
            "shop_a/../b__ConfigMap",
            "shop_..__ConfigMap",
            "shop_a_b__",
            "s?p_a__Pod",
        ] {
            assert_eq!(read(broken), None, "{broken}");
        }
    }
}
