//! Finds the next step for one object, with a dry run on the server.

use std::{
    borrow::Cow,
    fmt,
    hash::{DefaultHasher, Hash as _, Hasher as _},
};

use kube_cluster::{ApiError, Applied, Cluster, FIELD_MANAGER, Kind};
use proto::{agent_configuration::gitops::InventoryPolicy, gitops::ObjectError};
use serde_json::{Map, Value, json};

use super::{
    Engine, SyncContext,
    gitlab::{OWNING_INVENTORY, inventory_id},
    ignored::with_live_values,
    members::{Members, fingerprint},
    without_server_fields,
};
use crate::{
    Manifest,
    applyset::{ApplySet, ID, PART_OF},
    deletion_plan::{Member, NAMESPACE, VOLUME, VOLUME_CLAIM},
    diff, folded, hook,
    ownership::{self, ObjectOwner},
    retry::{ApiCallError, with_retry},
    validate::DEFINITIONS,
};

/// The annotation in which `kubectl apply` keeps the manifest that it has applied last.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";
/// Annotations with which the owner of an object allows that it is deleted and created again.
const RECREATE: [(&str, &str); 3] = [
    ("agentk/recreate", "true"),
    ("kustomize.toolkit.fluxcd.io/force", "enabled"),
    ("argocd.argoproj.io/sync-options", "Force=true"),
];
/// Kinds whose deletion loses data or all that is in them.
const NEVER_RECREATED: [(&str, &str); 4] = [NAMESPACE, VOLUME_CLAIM, VOLUME, DEFINITIONS];
/// Managers whose fields are taken over together with an object: those of programs that apply manifests, too.
const TAKEN_OVER: [&str; 6] = [
    "kubectl",
    "kubectl-client-side-apply",
    "kubectl-create",
    "before-first-apply",
    "kustomize-controller",
    "helm",
];

/// The most fields that a change names.
const MAX_FIELDS: usize = 3;
/// The attempts to see an object that changes all the time.
const ATTEMPTS: u32 = 3;

/// The last apply of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Known {
    /// The hash of the manifest.
    pub(super) desired: u64,
    /// The fingerprint of the metadata after it.
    pub(super) live: u64,
}

/// The next step for an object.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Step {
    /// Nothing.
    Unchanged(Seen),
    /// Somebody else has changed it, and it is not healed.
    Drifted(Seen, String),
    Create,
    /// It exists with this UID, and differs.
    Update {
        uid: String,
        /// The version of the object that was examined.
        version: String,
        /// The change by another program since the last apply, if the difference is not a change of Git.
        drift: Option<Change>,
    },
    /// It exists with this UID, and becomes a member.
    Adopt {
        uid: String,
        /// Hands the fields of other programs to agentk.
        patch: Option<Value>,
        /// Its owner, who has taken it over since the last apply if this engine has applied it before.
        owner: Option<String>,
    },
    /// It has to be deleted first, because a field cannot change.
    Recreate {
        uid: String,
    },
    /// It is being deleted, and is created again once it is gone.
    Terminating {
        uid: String,
        finalizers: String,
    },
    /// It is a job that was applied, and that the cluster has removed.
    Finished,
    /// It is a hook that still runs for an earlier version of the manifests.
    Running {
        uid: String,
        reason: String,
    },
    /// Others have changed it again, and it is not changed back yet. It is there if it still belongs to the project.
    Contested(Option<Seen>),
}

/// A change of an object by somebody else.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Change {
    /// In words.
    what: String,
    /// The manager of the fields, if that is known.
    manager: String,
    /// The first fields that differ.
    fields: Vec<String>,
}

impl Change {
    /// The object is not there.
    pub(super) fn deletion() -> Self {
        Self { what: "deleted by somebody else".to_owned(), ..Self::default() }
    }

    /// Another owner has taken the object over.
    pub(super) fn take_over(owner: &str) -> Self {
        Self { what: format!("taken over by {owner}"), ..Self::default() }
    }

    /// Describes it in words.
    pub(super) fn what(&self) -> &str {
        &self.what
    }

    /// Describes how it ends.
    pub(super) fn remedy(&self) -> &'static str {
        if self.fields.is_empty() {
            "remove it from Git, or there"
        } else {
            "remove the field from Git, or name it in ignore_differences"
        }
    }
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&*self.manager, &self.fields[..]) {
            ("", _) | (_, []) => write!(f, "it is {}", self.what),
            (manager, fields) => write!(f, "{manager} changes {}", fields.join(", ")),
        }
    }
}

/// An object as it is in the cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Seen {
    pub(super) uid: String,
    pub(super) fingerprint: u64,
}

impl Seen {
    pub(super) fn of(object: &Value) -> Self {
        let metadata = &object["metadata"];
        Self {
            uid: metadata["uid"].as_str().unwrap_or_default().to_owned(),
            fingerprint: fingerprint(metadata),
        }
    }
}

/// The next step for an object, with what a diff shows of it.
pub(super) struct Examined {
    pub(super) step: Step,
    /// The object in the cluster.
    pub(super) live: Option<Value>,
    /// The object after the step, as the API server says, if that is known.
    pub(super) tried: Option<Value>,
}

/// The reason why an object has no step.
pub(super) enum ExamineError {
    Object(ObjectError),
    Stopped(kube_cluster::Stopped),
}

impl<C: Cluster> Engine<C> {
    /// Finds out what has to be done with an object, without a write. A sync that does not heal does nothing.
    pub(super) async fn examine(
        &self,
        manifest: &Manifest,
        kind: &Kind,
        members: &Members,
        sync: &SyncContext<'_>,
    ) -> Result<Step, ExamineError> {
        let step = self.try_apply(manifest, kind, members, sync).await?.step;
        if sync.input.heal {
            let again =
                self.known.get(&manifest.id).is_some_and(|known| known.desired == hash(&manifest.object));
            let waits = again && self.waits(&manifest.id, sync.input.now);
            return Ok(match step {
                Step::Create | Step::Adopt { .. } if waits => Step::Contested(None),
                Step::Update { uid, drift: Some(_), .. } if waits => {
                    Step::Contested(Some(Seen { uid, fingerprint: 0 }))
                }
                step => step,
            });
        }
        let unseen = || Seen { uid: String::new(), fingerprint: 0 };
        Ok(match step {
            Step::Unchanged(_)
            | Step::Drifted(..)
            | Step::Terminating { .. }
            | Step::Finished
            | Step::Running { .. }
            | Step::Contested(_) => step,
            Step::Create => Step::Drifted(unseen(), "deleted by somebody else".to_owned()),
            Step::Update { .. } | Step::Adopt { .. } | Step::Recreate { .. } => {
                Step::Drifted(unseen(), "created again by somebody else".to_owned())
            }
        })
    }

    /// Finds the next step with a dry run.
    pub(super) async fn try_apply(
        &self,
        manifest: &Manifest,
        kind: &Kind,
        members: &Members,
        sync: &SyncContext<'_>,
    ) -> Result<Examined, ExamineError> {
        let member = members.by_id.get(&manifest.id);
        if let (Some((member, live)), Some(known)) = (member, self.known.get(&manifest.id))
            && *known == (Known { desired: hash(&manifest.object), live: *live })
        {
            let seen = Seen { uid: member.uid.clone(), fingerprint: *live };
            return Ok(Examined { step: Step::Unchanged(seen), live: None, tried: None });
        }
        if members.has_finished(manifest, sync) {
            return Ok(Examined { step: Step::Finished, live: None, tried: None });
        }
        let id = &manifest.id;
        let failed = |error: ApiCallError| match error {
            ApiCallError::Api(error) => ExamineError::Object(manifest.error(describe(&error, manifest))),
            ApiCallError::Stopped(stopped) => ExamineError::Stopped(stopped),
        };
        if member.is_some()
            && hook::runs(manifest)
            && let Some(step) = self.next_run(manifest, kind, sync).await.map_err(failed)?
        {
            return Ok(Examined { step, live: None, tried: None });
        }
        let seen = self.try_and_read(manifest, kind, sync).await.map_err(failed)?;
        let (tried, live) = match seen {
            (tried, Some(live)) => (tried, live),
            (tried, None) => return Ok(Examined { step: Step::Create, live: None, tried }),
        };
        let owner = self.check_owner(&live, members, sync).await;
        let owner = owner.map_err(|what| ExamineError::Object(manifest.error(what)))?;
        let ours = matches!(owner, Membership::Member);
        let seen = Seen::of(&live);
        if let Some(finalizers) = Member::new(id.clone(), String::new(), &live["metadata"]).deleting {
            let step = Step::Terminating { uid: seen.uid, finalizers };
            return Ok(Examined { step, live: Some(live), tried });
        }
        let step = match &tried {
            None if ours => {
                match self.keeps_claims(&live, manifest, sync).await {
                    Ok(None) => {}
                    Ok(Some(what)) => return Err(ExamineError::Object(manifest.error(what))),
                    Err(super::SyncError::Stopped(stopped)) => return Err(ExamineError::Stopped(stopped)),
                    Err(failure) => return Err(ExamineError::Object(manifest.error(failure.to_string()))),
                }
                // An object that the API server would not create must not be deleted.
                let created =
                    with_retry(sync.fence, || self.cluster.try_create(kind, id, &manifest.object)).await;
                created.map_err(failed)?;
                Step::Recreate { uid: seen.uid }
            }
            None => {
                let what =
                    "a field cannot change, and only an object of this project is deleted and created again";
                return Err(ExamineError::Object(manifest.error(what)));
            }
            Some(_) if let Membership::Adopted(owner) = owner => {
                Step::Adopt { uid: seen.uid, patch: take_over(&live), owner }
            }
            Some(tried)
                if without_server_fields(&live) == without_server_fields(tried)
                    && folded::has_same_owner(id, &live, tried) =>
            {
                Step::Unchanged(seen)
            }
            Some(tried) if sync.input.heal => {
                let known = self.known.get(id).is_some_and(|known| known.desired == hash(&manifest.object));
                let version = version(&live).as_str().unwrap_or_default().to_owned();
                let drift = known.then(|| change_of(manifest, &live, tried));
                Step::Update { uid: seen.uid, version, drift }
            }
            Some(tried) => Step::Drifted(seen, change_of(manifest, &live, tried).what),
        };
        Ok(Examined { step, live: Some(live), tried })
    }

    /// Returns the object as a dry run makes it, unless it would have to be recreated, and as it is in the cluster, if it exists. Both
    /// are of the same moment: what somebody else changes between two requests must not look like a difference.
    async fn try_and_read(
        &self,
        manifest: &Manifest,
        kind: &Kind,
        sync: &SyncContext<'_>,
    ) -> Result<(Option<Value>, Option<Value>), ApiCallError> {
        let (id, options) = (&manifest.id, sync.options(true));
        let recreate = |error: &ApiCallError| matches!(error, ApiCallError::Api(error) if error.is_immutable() && may_recreate(manifest));
        let mut left = ATTEMPTS;
        loop {
            let (object, seen) = self.desired(manifest, kind, sync).await?;
            let applied = with_retry(sync.fence, || self.cluster.apply(kind, id, &object, options)).await;
            let tried = match applied {
                Ok(Applied { created: true, object }) => return Ok((Some(object), None)),
                Ok(Applied { object, .. }) => Some(object),
                Err(error) if recreate(&error) => None,
                Err(error) => return Err(error),
            };
            let live = with_retry(sync.fence, || self.cluster.get(kind, id)).await?;
            left -= 1;
            let moved = tried.as_ref().zip(live.as_ref()).is_some_and(|(tried, live)| {
                version(tried) != version(live) || seen.is_some_and(|seen| seen != *version(live))
            });
            if !moved || left == 0 {
                return Ok((tried, live));
            }
        }
    }
}

/// An object of the cluster that the policy of the project does not allow to take over.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
enum AdoptionError {
    #[error(
        "the object exists and belongs to another owner ({0}): remove it there, or set inventory_policy: adopt_all"
    )]
    OtherOwner(String),
    #[error(
        "the object exists already, and does not belong to this project: set inventory_policy: adopt_if_no_inventory to take it over"
    )]
    NoOwner,
}

/// The membership of an object in the project.
enum Membership {
    Member,
    /// It becomes one, and belongs to this owner now.
    Adopted(Option<String>),
}

impl<C: Cluster> Engine<C> {
    /// Returns what is applied for a manifest: with the values that ignored fields have in the cluster now, and then also the version of
    /// the object that was read.
    pub(super) async fn desired<'a>(
        &self,
        manifest: &'a Manifest,
        kind: &Kind,
        sync: &SyncContext<'_>,
    ) -> Result<(Cow<'a, Value>, Option<Value>), ApiCallError> {
        let ignored = sync.ignored_fields(manifest);
        if ignored.is_empty() {
            return Ok((Cow::Borrowed(&manifest.object), None));
        }
        Ok(match with_retry(sync.fence, || self.cluster.get(kind, &manifest.id)).await? {
            Some(live) => {
                let object = with_live_values(&manifest.object, &live, &ignored);
                (Cow::Owned(object), Some(version(&live).clone()))
            }
            None => (Cow::Borrowed(&manifest.object), None),
        })
    }

    /// Returns whether an object that exists is a member already.
    ///
    /// # Errors
    ///
    /// The policy does not allow to take it over.
    async fn check_owner(
        &self,
        live: &Value,
        members: &Members,
        sync: &SyncContext<'_>,
    ) -> Result<Membership, AdoptionError> {
        let metadata = &live["metadata"];
        let is_recorded = metadata["uid"].as_str().is_some_and(|uid| members.recorded.contains(uid));
        let owner = match ownership::owner(metadata, &sync.set, is_recorded) {
            ObjectOwner::Project => return Ok(Membership::Member),
            ObjectOwner::Set(set) => Some(self.name_of_set(&set, sync).await),
            ObjectOwner::Other(owner) => Some(owner),
            ObjectOwner::Nobody => None,
        };
        let inventory =
            metadata["annotations"][OWNING_INVENTORY].as_str().filter(|inventory| !inventory.is_empty());
        if metadata["labels"][PART_OF].is_null()
            && inventory.is_some()
            && inventory == inventory_id(sync.input).as_deref()
        {
            return Ok(Membership::Adopted(owner));
        }
        let owner = owner.or_else(|| inventory.map(str::to_owned));
        match (sync.input.settings.inventory_policy, owner) {
            (InventoryPolicy::AdoptAll, owner) => Ok(Membership::Adopted(owner)),
            (InventoryPolicy::AdoptIfNoInventory, None) => Ok(Membership::Adopted(None)),
            (_, Some(owner)) => Err(AdoptionError::OtherOwner(owner)),
            (InventoryPolicy::MustMatch, None) => Err(AdoptionError::NoOwner),
        }
    }

    /// Names the project of an ApplySet, as far as agentk may see its parent.
    async fn name_of_set(&self, set: &str, sync: &SyncContext<'_>) -> String {
        if let Some(known) = self.owners.lock().get(set).cloned() {
            return known;
        }
        let (kind, _) = ApplySet::new(sync.input.agent, &sync.input.project, &self.namespace).parent_id();
        let selector = format!("{ID}={set}");
        let mut name = format!("the ApplySet {set}");
        for namespace in [&*self.namespace, ""] {
            // Without the right to list the ConfigMaps of all namespaces, the id is all that is known.
            let listed = with_retry(sync.fence, || self.own.list(&kind, namespace, &selector, true)).await;
            if let Some(found) =
                listed.ok().and_then(|parents| ApplySet::describe(parents.first()?, sync.input.agent))
            {
                name = found;
                break;
            }
        }
        self.owners.lock().insert(set.to_owned(), name.clone());
        name
    }
}

/// Returns a hash of a manifest.
pub(super) fn hash(object: &Value) -> u64 {
    let mut hasher = DefaultHasher::new();
    object.to_string().hash(&mut hasher);
    hasher.finish()
}

/// Returns the version of an object. A dry run keeps it.
fn version(object: &Value) -> &Value {
    &object["metadata"]["resourceVersion"]
}

/// Returns a patch that makes agentk the manager of what other programs have applied, so that fields that leave Git leave the
/// cluster, too.
fn take_over(live: &Value) -> Option<Value> {
    let metadata = &live["metadata"];
    let entries = metadata["managedFields"].as_array()?;
    let from = |entry: &Value| {
        let manager = entry["manager"].as_str().unwrap_or_default();
        let whole = entry.get("subresource").is_none_or(|subresource| subresource == "");
        whole && (TAKEN_OVER.contains(&manager) || manager == FIELD_MANAGER)
    };
    if !entries.iter().any(|entry| from(entry) && entry["manager"] != FIELD_MANAGER) {
        return None;
    }
    let mut fields = Map::new();
    let mut rest = Vec::new();
    for entry in entries {
        match (from(entry), entry["fieldsV1"].as_object()) {
            (true, Some(taken)) => merge(&mut fields, taken),
            _ => rest.push(entry.clone()),
        }
    }
    rest.push(json!({
        "manager": FIELD_MANAGER,
        "operation": "Apply",
        "apiVersion": live["apiVersion"],
        "fieldsType": "FieldsV1",
        "fieldsV1": fields,
    }));
    let mut patch = vec![
        json!({"op": "test", "path": "/metadata/resourceVersion", "value": metadata["resourceVersion"]}),
        json!({"op": "replace", "path": "/metadata/managedFields", "value": rest}),
    ];
    if metadata["annotations"].get(LAST_APPLIED).is_some() {
        let key = LAST_APPLIED.replace('/', "~1");
        patch.push(json!({"op": "remove", "path": format!("/metadata/annotations/{key}")}));
    }
    Some(Value::Array(patch))
}

/// Adds one set of fields to another. Both are trees whose leaves are empty.
fn merge(into: &mut Map<String, Value>, from: &Map<String, Value>) {
    for (key, value) in from {
        let Value::Object(children) = value else { continue };
        let slot = into.entry(key.clone()).or_insert_with(|| Value::Object(Map::new()));
        if let Value::Object(slot) = slot {
            merge(slot, children);
        }
    }
}

/// Describes why the API server refuses an object, and how an immutable field can change all the same.
fn describe(error: &ApiError, manifest: &Manifest) -> String {
    let id = &manifest.id;
    if !error.is_immutable() {
        return error.describe(id);
    }
    let what = match (&*id.group, &*id.kind) {
        // Its words may contain values.
        ("", "Secret") => error.describe(id),
        _ => error.describe_immutable(),
    };
    if NEVER_RECREATED.contains(&(&*id.group, &*id.kind)) || may_recreate(manifest) {
        what
    } else {
        let (key, value) = RECREATE[0];
        format!(
            "{what}: with the annotation {key}: \"{value}\" agentk deletes the object and creates it again"
        )
    }
}

fn may_recreate(manifest: &Manifest) -> bool {
    let allows = |(key, value): &(&str, &str)| {
        manifest.annotation(key).is_some_and(|set| set.split(',').any(|entry| entry.trim() == *value))
    };
    !NEVER_RECREATED.contains(&(&*manifest.id.group, &*manifest.id.kind))
        && (hook::runs(manifest) || RECREATE.iter().any(allows))
}

/// Returns who has changed an object last, from its managed fields, and the fields that differ from those of Git.
fn change_of(manifest: &Manifest, live: &Value, tried: &Value) -> Change {
    let entries = live["metadata"]["managedFields"].as_array().into_iter().flatten();
    // `kubectl scale` and autoscalers write fields of the object through a subresource. A status is no field of Git.
    let others =
        entries.filter(|entry| entry["manager"] != FIELD_MANAGER && entry["subresource"] != "status");
    // Times of the API have one form, in which the order of texts is that of times.
    let last = others.max_by_key(|entry| entry["time"].as_str().unwrap_or_default());
    let text = |key: &str| last.and_then(|entry| entry[key].as_str());
    let manager = text("manager").unwrap_or("an unknown manager").to_owned();
    let what = match last {
        Some(_) => format!("changed by {manager} at {}", text("time").unwrap_or("an unknown time")),
        None => format!("changed by {manager}"),
    };
    let (live, tried) = (without_server_fields(live), without_server_fields(tried));
    let fields = diff::fields(&manifest.id, Some(&live), Some(&tried)).into_iter();
    Change { what, manager, fields: fields.map(|field| field.path).take(MAX_FIELDS).collect() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn change_names_kubectl_scale_and_no_status() {
        let update =
            |manager: &str, time: &str| json!({"manager": manager, "operation": "Update", "time": time});
        let entry = |manager: &str, subresource: &str, time: &str| {
            let mut entry = update(manager, time);
            entry["subresource"] = subresource.into();
            entry
        };
        let object = |replicas: u8| {
            let managers = [
                update("kubectl-edit", "2026-01-01T00:00:00Z"),
                entry("kubectl", "scale", "2026-01-02T00:00:00Z"),
                entry("kube-controller-manager", "status", "2026-01-03T00:00:00Z"),
            ];
            json!({"metadata": {"name": "web", "managedFields": managers}, "spec": {"replicas": replicas}})
        };
        let yaml = "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: web}\n";
        let file = crate::SourceFile { path: "a.yaml".to_owned(), content: yaml.into() };
        let manifest = crate::parse::parse(&[file]).unwrap().remove(0);
        let change = change_of(&manifest, &object(5), &object(2));
        assert_eq!(change.what(), "changed by kubectl at 2026-01-02T00:00:00Z");
        assert_eq!(change.to_string(), "kubectl changes spec.replicas");
    }
}
