//! Watches of the metadata of objects.

use crate::{
    ApiError, Cluster as _, Kind, KubeCluster,
    kube_cluster::{lost, path},
};
use futures_util::{StreamExt as _, pin_mut};
use kube::{
    api::{DynamicObject, ListParams, PartialObjectMeta, WatchEvent, WatchParams},
    core::ObjectMeta,
};

impl KubeCluster {
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
        self.watch_changes(kind, namespace, selector, report).await
    }

    /// Reports the metadata of the objects of a kind that change, until the API server ends the watch. Changes before the watch begins are
    /// not reported. The second argument says whether the object exists.
    ///
    /// # Errors
    ///
    /// agentk may not watch them, or the API server does not respond.
    pub async fn watch_changes(
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
