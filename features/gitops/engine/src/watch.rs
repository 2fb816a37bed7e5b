//! Changes of objects by anybody, seen through watches of their metadata.

use futures_util::{StreamExt as _, pin_mut};
use kube::{
    api::{DynamicObject, ListParams, PartialObjectMeta, WatchEvent, WatchParams},
    core::ObjectMeta,
};
use proto::gitops::ObjectId;
use serde_json::Value;

use crate::{
    ApiError, Cluster as _, Kind, KubeCluster,
    applyset::PART_OF,
    engine::fingerprint,
    kube_cluster::{lost, path},
};

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

impl KubeCluster {
    /// Reports the changes of all objects of a kind that belong to projects, until the API server ends the watch. Changes before the
    /// watch begins are not reported.
    ///
    /// # Errors
    ///
    /// agentk may not watch the kind in all namespaces, or the API server does not respond.
    pub async fn watch_members(
        &self,
        kind: &Kind,
        mut report: impl FnMut(Change) + Send,
    ) -> Result<(), ApiError> {
        self.watch(kind, "", PART_OF, |metadata, exists| report(change(kind, metadata, exists))).await
    }

    /// Reports the metadata of the objects of a kind in a namespace that have a label, and of those that change, until the API server
    /// ends the watch. The second argument says whether the object exists.
    ///
    /// # Errors
    ///
    /// agentk may not watch them, or the API server does not respond.
    pub async fn watch_metadata(
        &self,
        kind: &Kind,
        namespace: &str,
        selector: &str,
        mut report: impl FnMut(&ObjectMeta, bool) + Send,
    ) -> Result<(), ApiError> {
        for object in self.list(kind, namespace, selector, true).await? {
            if let Ok(metadata) = serde_json::from_value(object["metadata"].clone()) {
                report(&metadata, true);
            }
        }
        self.watch(kind, namespace, selector, report).await
    }

    async fn watch(
        &self,
        kind: &Kind,
        namespace: &str,
        selector: &str,
        mut report: impl FnMut(&ObjectMeta, bool) + Send,
    ) -> Result<(), ApiError> {
        let path = path(kind, namespace);
        let (_, list) =
            self.json(path.list_metadata(&ListParams::default().labels(selector).limit(1))).await?;
        let version = list["metadata"]["resourceVersion"].as_str().unwrap_or("0").to_owned();
        let request = path.watch_metadata(&WatchParams::default().labels(selector), &version);
        let request = request.map_err(|error| lost(error.to_string()))?;
        let events = self.client().request_events::<PartialObjectMeta<DynamicObject>>(request).await;
        let events = events.map_err(|error| match error {
            kube::Error::Api(status) => {
                ApiError { status: status.code, message: status.message.clone(), ..ApiError::default() }
            }
            error => lost(error.to_string()),
        })?;
        pin_mut!(events);
        while let Some(event) = events.next().await {
            match event.map_err(|error| lost(error.to_string()))? {
                WatchEvent::Added(object) | WatchEvent::Modified(object) => report(&object.metadata, true),
                WatchEvent::Deleted(object) => report(&object.metadata, false),
                WatchEvent::Bookmark(_) => {}
                // The version is too old, for example. The next watch begins anew.
                WatchEvent::Error(_) => return Ok(()),
            }
        }
        Ok(())
    }
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
    use crate::GroupKind;

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
