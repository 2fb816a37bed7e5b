//! Watches: the changes of a kind as lines of JSON.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use bytes::Bytes;
use futures_util::stream;
use tokio::{sync::watch, time::Instant};

use crate::simulator::{
    Target,
    cluster::{Cluster, OpenStream},
    request::ApiRequest,
    resources::Resource,
    response::{self, ApiResponse, StatusError},
    selector::Selector,
    store::Change,
    view::View,
};

/// Handles a request with `watch=true`.
pub(crate) fn start(call: &ApiRequest, target: Target) -> Result<ApiResponse, StatusError> {
    let query = &call.query;
    let cluster = &call.cluster;
    let timeout = query.number("timeoutSeconds")?.map_or(TIMEOUT, Duration::from_secs).min(TIMEOUT);
    let mut watcher = Watcher {
        resource: target.resource,
        namespace: target.namespace,
        selector: Selector::from_query(query)?,
        view: View::of(call),
        bookmarks: query.flag("allowWatchBookmarks"),
        revision: 0,
        ready: VecDeque::new(),
        ended: false,
        latest: cluster.store.subscribe(),
        deadline: Instant::now() + timeout,
        next_bookmark: Instant::now() + BOOKMARK_INTERVAL,
        _open: cluster.open_stream(),
        cluster: Arc::clone(cluster),
    };
    match query.number("resourceVersion")? {
        // Without an initial revision, the existing objects come first.
        _ if query.flag("sendInitialEvents") => watcher.begin_with_everything(true),
        None | Some(0) => watcher.begin_with_everything(false),
        Some(revision) => watcher.revision = revision,
    }
    let lines =
        stream::unfold(watcher, |mut watcher| async { watcher.next().await.map(|lines| (lines, watcher)) });
    Ok(response::stream("application/json", lines))
}

/// The maximum lifetime of a watch, which is longer than on real servers.
const TIMEOUT: Duration = Duration::from_secs(3600);

const BOOKMARK_INTERVAL: Duration = Duration::from_secs(30);

struct Watcher {
    cluster: Arc<Cluster>,
    resource: &'static Resource,
    namespace: Option<String>,
    selector: Selector,
    view: View,
    bookmarks: bool,
    /// The last revision that was sent.
    revision: u64,
    ready: VecDeque<Bytes>,
    ended: bool,
    latest: watch::Receiver<u64>,
    deadline: Instant,
    next_bookmark: Instant,
    _open: OpenStream,
}

impl Watcher {
    fn begin_with_everything(&mut self, mark_end: bool) {
        let snapshot = self.cluster.store.list(self.resource, self.namespace.as_deref());
        self.revision = snapshot.revision;
        for (_, object) in snapshot.objects {
            if self.selector.matches(&object) {
                self.ready.push_back(self.view.event(self.resource, "ADDED", &object));
            }
        }
        if mark_end {
            self.ready.push_back(self.view.bookmark(self.resource, self.revision, true));
        }
    }

    async fn next(&mut self) -> Option<Bytes> {
        loop {
            if let Some(line) = self.ready.pop_front() {
                return Some(line);
            }
            if self.ended {
                return None;
            }
            // Mark the revision as seen before reading, so that a change in between wakes this task again.
            self.latest.mark_unchanged();
            self.read_changes();
            if !self.ready.is_empty() || self.ended {
                continue;
            }
            tokio::select! {
                () = self.cluster.stop.cancelled() => self.ended = true,
                _ = self.latest.changed() => {}
                () = tokio::time::sleep_until(self.deadline) => {
                    self.ended = true;
                    self.bookmark();
                }
                () = tokio::time::sleep_until(self.next_bookmark) => self.bookmark(),
            }
        }
    }

    fn read_changes(&mut self) {
        let Ok(changes) = self.cluster.store.changes_after(self.revision) else {
            let status = StatusError::expired(self.revision).status();
            self.ready.push_back(View::Plain.event(self.resource, "ERROR", &status));
            self.ended = true;
            return;
        };
        for change in changes {
            self.revision = change.revision;
            self.ready.extend(self.line(&change));
        }
    }

    fn bookmark(&mut self) {
        self.next_bookmark = Instant::now() + BOOKMARK_INTERVAL;
        if self.bookmarks {
            self.ready.push_back(self.view.bookmark(self.resource, self.revision, false));
        }
    }

    /// Returns the event of a change. An object that starts or stops to match the selector is added or deleted.
    fn line(&self, change: &Change) -> Option<Bytes> {
        let key = &change.key;
        let elsewhere = self.namespace.as_ref().is_some_and(|wanted| *wanted != key.namespace);
        if key.plural != self.resource.plural || elsewhere {
            return None;
        }
        let before = change.before.as_deref().filter(|object| self.selector.matches(object));
        let after = change.after.as_deref().filter(|object| self.selector.matches(object));
        match (before, after) {
            (None, None) => None,
            (None, Some(object)) => Some(self.view.event(self.resource, "ADDED", object)),
            (Some(_), Some(object)) => Some(self.view.event(self.resource, "MODIFIED", object)),
            (Some(object), None) => {
                let mut object = object.clone();
                object["metadata"]["resourceVersion"] = change.revision.to_string().into();
                Some(self.view.event(self.resource, "DELETED", &object))
            }
        }
    }
}
