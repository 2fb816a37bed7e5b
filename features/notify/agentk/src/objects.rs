//! Objects in the cluster that events change.

use kube_cluster::{ApplyOptions, Cluster as _, GroupKind, Kind, KindLookup};
use proto::gitops::ObjectId;
use serde_json::{Value, json};

use super::{Notify, lane::EffectError};

/// The field manager of what events change. It differs from that of GitOps, which may manage the other fields of the same object.
pub(super) const MANAGER: &str = "agentk-notify";

/// Looks up a kind. The error names `what` is to be installed.
pub(super) async fn kind(notify: &Notify, group: &str, kind: &str, what: &str) -> Result<Kind, EffectError> {
    let wanted = GroupKind { group: group.to_owned(), kind: kind.to_owned() };
    match notify.cluster.resolve(&wanted, None).await? {
        KindLookup::Found(kind) => Ok(kind),
        KindLookup::Missing => {
            // It may be installed until the next attempt.
            notify.cluster.forget_kinds();
            Err(EffectError::Failed(format!("the cluster has no kind {wanted}: install {what}")))
        }
        KindLookup::Unavailable => {
            Err(EffectError::Failed(format!("the server of {wanted} does not respond")))
        }
    }
}

/// Returns the id of an object.
pub(super) fn id_of(kind: &Kind, object: &Value) -> ObjectId {
    let text = |key: &str| object["metadata"][key].as_str().unwrap_or_default().to_owned();
    ObjectId {
        group: kind.kind.group.clone(),
        kind: kind.kind.kind.clone(),
        namespace: text("namespace"),
        name: text("name"),
    }
}

/// Applies an object as the leader.
pub(super) async fn apply(
    notify: &Notify,
    kind: &Kind,
    id: &ObjectId,
    object: Value,
) -> Result<Value, EffectError> {
    let object = named(kind, id, object);
    let options = ApplyOptions { manager: MANAGER, dry_run: false, force: true };
    let applied = notify.leader.while_leading(notify.cluster.apply(kind, id, &object, options)).await?;
    Ok(applied.object)
}

/// Creates an object as the leader. One of the same name stays as it is.
pub(super) async fn create(
    notify: &Notify,
    kind: &Kind,
    id: &ObjectId,
    object: Value,
) -> Result<(), EffectError> {
    let object = named(kind, id, object);
    let created = notify.cluster.create(kind, id, &object, MANAGER);
    match notify.leader.while_leading(created).await {
        Err(error) if error.status == 409 => Ok(()),
        created => Ok(created?),
    }
}

/// Sets an annotation of an object that exists, and changes nothing else.
pub(super) async fn annotate(
    notify: &Notify,
    kind: &Kind,
    object: &Value,
    key: &str,
    value: &str,
) -> Result<(), EffectError> {
    let id = id_of(kind, object);
    // With its UID, an object that was deleted meanwhile is not created again.
    let uid = &object["metadata"]["uid"];
    apply(notify, kind, &id, json!({"metadata": {"uid": uid, "annotations": {key: value}}})).await.map(drop)
}

/// Returns the object with its kind and its name.
fn named(kind: &Kind, id: &ObjectId, mut object: Value) -> Value {
    object["apiVersion"] = api_version(kind).into();
    object["kind"] = kind.kind.kind.clone().into();
    object["metadata"]["name"] = id.name.clone().into();
    object["metadata"]["namespace"] = id.namespace.clone().into();
    object
}

pub(super) fn api_version(kind: &Kind) -> String {
    match &*kind.kind.group {
        "" => kind.version.clone(),
        group => format!("{group}/{}", kind.version),
    }
}
