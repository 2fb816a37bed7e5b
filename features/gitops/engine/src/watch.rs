//! Changes of objects of projects by anybody, seen through watches of their metadata.

use kube::core::ObjectMeta;
use kube_cluster::{ApiError, Kind, KubeCluster};
use proto::gitops::ObjectId;
use serde_json::Value;

use crate::{applyset::PART_OF, engine::fingerprint};

/// An object of a project that was changed or deleted, by agentk or by somebody else.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// The id of the ApplySet.
    pub set: String,
    /// The object.
    pub id: ObjectId,
    /// The fingerprint of its metadata, or `None` if it was deleted.
    pub fingerprint: Option<u64>,
}

/// Reports the changes of all objects of a kind that belong to projects, until the API server ends the watch. Changes before the watch
/// begins are not reported.
///
/// # Errors
///
/// agentk may not watch the kind in all namespaces, or the API server does not respond.
pub async fn watch_members(
    cluster: &KubeCluster,
    kind: &Kind,
    mut report: impl FnMut(Change) + Send,
) -> Result<(), ApiError> {
    cluster.watch_changes(kind, "", PART_OF, |metadata, exists| report(change(kind, metadata, exists))).await
}

fn change(kind: &Kind, metadata: &ObjectMeta, exists: bool) -> Change {
    let labels = metadata.labels.as_ref();
    let set = labels.and_then(|labels| labels.get(PART_OF)).cloned().unwrap_or_default();
    let id = ObjectId {
        group: kind.kind.group.clone(),
        kind: kind.kind.kind.clone(),
        namespace: metadata.namespace.clone().unwrap_or_default(),
        name: metadata.name.clone().unwrap_or_default(),
    };
    let fingerprint = exists.then(|| fingerprint(&serde_json::to_value(metadata).unwrap_or(Value::Null)));
    Change { set, id, fingerprint }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use kube_cluster::GroupKind;

    /// A watch has typed metadata, and a list has not.
    #[test]
    fn fingerprint_of_a_watch_is_that_of_a_list() {
        let metadata = json!({
            "name": "high", "uid": "u", "resourceVersion": "7", "generation": 1,
            "creationTimestamp": "2026-01-02T03:04:05Z", "labels": {PART_OF: "set"},
            "managedFields": [{
                "manager": "agentk", "operation": "Apply", "apiVersion": "scheduling.k8s.io/v1", "fieldsType": "FieldsV1",
                "time": "2026-01-02T03:04:05Z",
            }],
        });
        let typed: ObjectMeta = serde_json::from_value(metadata.clone()).unwrap();
        let group_kind =
            GroupKind { group: "scheduling.k8s.io".to_owned(), kind: "PriorityClass".to_owned() };
        let kind = Kind {
            kind: group_kind,
            version: "v1".to_owned(),
            plural: "priorityclasses".to_owned(),
            namespaced: false,
            has_status: false,
        };
        assert_eq!(change(&kind, &typed, true).fingerprint, Some(fingerprint(&metadata)));

        let edited = |time: &str, subresource: &str| {
            let mut edited = metadata.clone();
            let entry = json!({"manager": "kubectl-edit", "operation": "Update", "time": time, "subresource": subresource});
            edited["managedFields"].as_array_mut().unwrap().push(entry);
            fingerprint(&edited)
        };
        assert_ne!(
            edited("2026-01-02T03:04:06Z", ""),
            fingerprint(&metadata),
            "the generation does not move"
        );
        assert_ne!(edited("2026-01-02T03:04:06Z", ""), edited("2026-01-02T03:04:07Z", ""));
        assert_eq!(edited("2026-01-02T03:04:06Z", "status"), fingerprint(&metadata));
    }
}
