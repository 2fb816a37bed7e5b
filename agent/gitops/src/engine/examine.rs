//! Finds the next step for one object, with a dry run on the server.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use proto::{agent_configuration::gitops::InventoryPolicy, gitops::ObjectError};
use serde_json::{Map, Value, json};

use super::{
    Engine, SyncContext,
    gitlab::{OWNING_INVENTORY, inventory_id},
    members::{Members, fingerprint},
    without_server_fields,
};
use crate::{
    Applied, Cluster, FIELD_MANAGER, Kind, Manifest,
    applyset::PART_OF,
    deletion_plan::{Member, NAMESPACE, VOLUME, VOLUME_CLAIM},
    folded,
    ownership::{self, Owner},
    retry::{CallError, with_retry},
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
        /// The change by another program since the last apply, in words, if the difference is not a change of Git.
        drift: Option<String>,
    },
    /// It exists with this UID, and becomes a member. The patch hands the fields of other programs to agentk.
    Adopt(String, Option<Value>),
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
    Stopped(super::Stopped),
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
            return Ok(step);
        }
        let unseen = || Seen { uid: String::new(), fingerprint: 0 };
        Ok(match step {
            Step::Unchanged(_) | Step::Drifted(..) | Step::Terminating { .. } | Step::Finished => step,
            Step::Create => Step::Drifted(unseen(), "deleted by somebody else".to_owned()),
            Step::Update { .. } | Step::Adopt(..) | Step::Recreate { .. } => {
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
        if members.has_finished(manifest) {
            return Ok(Examined { step: Step::Finished, live: None, tried: None });
        }
        let id = &manifest.id;
        let failed = |error: CallError| match error {
            CallError::Api(error) => ExamineError::Object(manifest.error(error.describe(id))),
            CallError::Stopped(stopped) => ExamineError::Stopped(stopped),
        };
        let seen = self.try_and_read(manifest, kind, sync).await.map_err(failed)?;
        let (tried, live) = match seen {
            (tried, Some(live)) => (tried, live),
            (tried, None) => return Ok(Examined { step: Step::Create, live: None, tried }),
        };
        let ours =
            check_owner(&live, members, sync).map_err(|what| ExamineError::Object(manifest.error(what)))?;
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
                    Err(super::Failure::Stopped(stopped)) => return Err(ExamineError::Stopped(stopped)),
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
            Some(_) if !ours => Step::Adopt(seen.uid, take_over(&live)),
            Some(tried)
                if without_server_fields(&live) == without_server_fields(tried)
                    && folded::has_same_owner(id, &live, tried) =>
            {
                Step::Unchanged(seen)
            }
            Some(_) if sync.input.heal => {
                let known = self.known.get(id).is_some_and(|known| known.desired == hash(&manifest.object));
                let version = version(&live).as_str().unwrap_or_default().to_owned();
                Step::Update { uid: seen.uid, version, drift: known.then(|| changed_by(&live)) }
            }
            Some(_) => Step::Drifted(seen, changed_by(&live)),
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
    ) -> Result<(Option<Value>, Option<Value>), CallError> {
        let (id, options) = (&manifest.id, sync.options(true));
        let recreate = |error: &CallError| matches!(error, CallError::Api(error) if error.is_immutable() && may_recreate(manifest));
        let mut left = ATTEMPTS;
        loop {
            let applied =
                with_retry(sync.fence, || self.cluster.apply(kind, id, &manifest.object, options)).await;
            let tried = match applied {
                Ok(Applied { created: true, object }) => return Ok((Some(object), None)),
                Ok(Applied { object, .. }) => Some(object),
                Err(error) if recreate(&error) => None,
                Err(error) => return Err(error),
            };
            let live = with_retry(sync.fence, || self.cluster.get(kind, id)).await?;
            left -= 1;
            let moved = tried
                .as_ref()
                .zip(live.as_ref())
                .is_some_and(|(tried, live)| version(tried) != version(live));
            if !moved || left == 0 {
                return Ok((tried, live));
            }
        }
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

/// Returns whether an object that exists is a member already.
///
/// # Errors
///
/// It belongs to somebody else, and the policy does not allow to take it over.
fn check_owner(live: &Value, members: &Members, sync: &SyncContext<'_>) -> Result<bool, String> {
    let metadata = &live["metadata"];
    let is_recorded = metadata["uid"].as_str().is_some_and(|uid| members.recorded.contains(uid));
    let owner = match ownership::owner(metadata, &sync.set, is_recorded) {
        Owner::Project => return Ok(true),
        Owner::Other(owner) => Some(owner),
        Owner::Nobody => None,
    };
    let inventory =
        metadata["annotations"][OWNING_INVENTORY].as_str().filter(|inventory| !inventory.is_empty());
    if metadata["labels"][PART_OF].is_null()
        && inventory.is_some()
        && inventory == inventory_id(sync.input).as_deref()
    {
        return Ok(false);
    }
    match (sync.input.settings.inventory_policy, owner.as_deref().or(inventory)) {
        (InventoryPolicy::AdoptAll, _) | (InventoryPolicy::AdoptIfNoInventory, None) => Ok(false),
        (_, Some(owner)) => Err(format!(
            "the object exists and belongs to another owner ({owner}): remove it there, or set inventory_policy: adopt_all"
        )),
        (InventoryPolicy::MustMatch, None) => Err(
            "the object exists already, and does not belong to this project: set inventory_policy: adopt_if_no_inventory to take \
             it over"
                .to_owned(),
        ),
    }
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

fn may_recreate(manifest: &Manifest) -> bool {
    let allows = |(key, value): &(&str, &str)| {
        manifest.annotation(key).is_some_and(|set| set.split(',').any(|entry| entry.trim() == *value))
    };
    !NEVER_RECREATED.contains(&(&*manifest.id.group, &*manifest.id.kind)) && RECREATE.iter().any(allows)
}

/// Says who has changed an object last, from its managed fields.
fn changed_by(live: &Value) -> String {
    let entries = live["metadata"]["managedFields"].as_array().into_iter().flatten();
    let others =
        entries.filter(|entry| entry["manager"] != FIELD_MANAGER && entry.get("subresource").is_none());
    // Times of the API have one form, in which the order of texts is that of times.
    let last = others.max_by_key(|entry| entry["time"].as_str().unwrap_or_default());
    match last {
        Some(entry) => format!(
            "changed by {} at {}",
            entry["manager"].as_str().unwrap_or("an unknown manager"),
            entry["time"].as_str().unwrap_or("an unknown time"),
        ),
        None => "changed by an unknown manager".to_owned(),
    }
}
