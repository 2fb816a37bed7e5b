//! Kubernetes Events about projects and their objects, for whoever uses `kubectl describe` or `kubectl get events`.

use std::time::{Duration, SystemTime};

use kube_cluster::{ApiError, ApplyOptions, Cluster, GroupKind, Kind, KindLookup};
use parking_lot::Mutex;
use proto::{
    AgentId,
    gitops::{ObjectId, ProjectState, ProjectStatus, SyncEvent, SyncEventKind},
};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use tokio::time::timeout;

use super::{Gitops, project::Wanted, stored::inventory, worker::project_cluster};

/// The most Events about the objects of one sync.
const MAX_EVENTS: usize = 20;
/// The longest message of an Event, in bytes. It is a rule of the API.
const MAX_MESSAGE: usize = 1024;
/// The time for the Events of a sync. Others are not written.
const TIME_LIMIT: Duration = Duration::from_secs(10);

/// The content of an Event about an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Notice {
    pub(super) object: ObjectId,
    /// A word for programs, such as `SyncFailed`.
    pub(super) reason: &'static str,
    pub(super) is_warning: bool,
    pub(super) message: String,
}

/// Collects what is worth an Event in the syncs of a project.
#[derive(Debug, Default)]
pub(super) struct Notices {
    /// Those of this sync.
    now: Mutex<Vec<Notice>>,
    /// Those of the sync before it.
    told: Vec<Notice>,
}

impl Notices {
    /// Notes an event of a sync. The thousands of a first sync are not worth Events.
    pub(super) fn note(&self, event: &SyncEvent) {
        let Some(object) = &event.object else { return };
        let (reason, is_warning) = match event.event {
            SyncEventKind::Failed => ("SyncFailed", true),
            SyncEventKind::Drifted => ("Drifted", true),
            SyncEventKind::Pruned => ("Pruned", false),
            _ => return,
        };
        let mut notices = self.now.lock();
        if notices.len() < MAX_EVENTS {
            let (object, message) = (object.clone(), event.message.clone());
            notices.push(Notice { object, reason, is_warning, message });
        }
    }

    /// Ends a sync. Returns what the sync before it has not said, too: a failure that is tried again each minute is one Event.
    pub(super) fn take(&mut self) -> Vec<Notice> {
        let now = std::mem::take(self.now.get_mut());
        let told = std::mem::replace(&mut self.told, now.clone());
        now.into_iter().filter(|notice| !told.contains(notice)).collect()
    }
}

/// Writes Events about objects, as the identity of the project. Without the right, there are none.
pub(super) async fn write_for_objects(gitops: &Gitops, wanted: &Wanted, notices: Vec<Notice>) {
    let cluster = project_cluster(gitops, wanted);
    let write = async {
        for notice in notices {
            let kind = cluster.resolve(&GroupKind::of(&notice.object), None).await;
            let Ok(KindLookup::Found(kind)) = kind else { continue };
            if let Err(error) = gitops.leader.while_leading(write(&cluster, &kind, &notice)).await {
                tracing::debug!(object = %notice.object, %error, "an Event cannot be written");
            }
        }
    };
    if timeout(TIME_LIMIT, write).await.is_err() {
        tracing::debug!("Events are left out, because the API server is slow");
    }
}

/// Writes an Event about a project: its inventory is the object.
pub(super) async fn write_for_project(gitops: &Gitops, agent: AgentId, status: &ProjectStatus) {
    let (reason, is_warning) = match status.state {
        ProjectState::Synced => ("Synced", false),
        ProjectState::Empty => ("Empty", true),
        ProjectState::OutOfSync => ("OutOfSync", true),
        ProjectState::Contested => ("Contested", true),
        ProjectState::Degraded => ("Degraded", true),
        ProjectState::Held => ("PruneHeld", true),
        ProjectState::Failed => ("SyncFailed", true),
        ProjectState::InventoryLost => ("InventoryLost", true),
        _ => return,
    };
    let (kind, object) = inventory(gitops, agent, &status.project);
    let message = format!("{}: {}", status.project, status.message);
    let notice = Notice { object, reason, is_warning, message };
    if let Ok(Err(error)) =
        timeout(TIME_LIMIT, gitops.leader.while_leading(write(gitops.leader.own_cluster(), &kind, &notice)))
            .await
    {
        tracing::debug!(project = status.project, %error, "an Event cannot be written");
    }
}

/// Writes an Event, or counts one more of the same.
async fn write(cluster: &impl Cluster, kind: &Kind, notice: &Notice) -> Result<(), ApiError> {
    let live = cluster.get(kind, &notice.object).await?;
    let uid = live.as_ref().and_then(|live| live["metadata"]["uid"].as_str()).unwrap_or_default();
    let id = event_id(uid, notice);
    let event_kind = Kind {
        kind: GroupKind::of(&id),
        version: "v1".to_owned(),
        plural: "events".to_owned(),
        namespaced: true,
        has_status: false,
    };
    let before = cluster.get(&event_kind, &id).await?;
    let event = event(kind, uid, notice, &id, before.as_ref(), SystemTime::now());
    let options = ApplyOptions { manager: "agentk-events", dry_run: false, force: true };
    cluster.apply(&event_kind, &id, &event, options).await.map(drop)
}

/// Returns the id of an Event. The same notice about the same object has the same one.
fn event_id(uid: &str, Notice { object, reason, message, .. }: &Notice) -> ObjectId {
    let digest = Sha256::digest(format!("{object}\n{uid}\n{reason}\n{message}"));
    let digest: String = digest.iter().take(10).map(|byte| format!("{byte:02x}")).collect();
    // Events about objects of the cluster are in this namespace.
    let namespace = if object.namespace.is_empty() { "default" } else { &object.namespace };
    ObjectId {
        group: String::new(),
        kind: "Event".to_owned(),
        namespace: namespace.to_owned(),
        name: format!("agentk-{digest}"),
    }
}

/// Returns an Event of the API group `core`. `before` is the Event that it replaces.
fn event(
    kind: &Kind,
    uid: &str,
    notice: &Notice,
    id: &ObjectId,
    before: Option<&Value>,
    now: SystemTime,
) -> Value {
    let Notice { object, reason, is_warning, message } = notice;
    let now = humantime::format_rfc3339_seconds(now).to_string();
    let first = before.and_then(|before| before["firstTimestamp"].as_str()).unwrap_or(&now);
    let count = before.and_then(|before| before["count"].as_u64()).unwrap_or(0);
    let group = if object.group.is_empty() { String::new() } else { format!("{}/", object.group) };
    let mut involved = json!({
        "apiVersion": format!("{group}{}", kind.version),
        "kind": object.kind,
        "name": object.name,
    });
    if !object.namespace.is_empty() {
        involved["namespace"] = object.namespace.clone().into();
    }
    if !uid.is_empty() {
        involved["uid"] = uid.into();
    }
    json!({
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": id.name, "namespace": id.namespace},
        "involvedObject": involved,
        "reason": reason,
        "message": cut(message),
        "type": if *is_warning { "Warning" } else { "Normal" },
        "source": {"component": "agentk"},
        "firstTimestamp": first,
        "lastTimestamp": now,
        "count": (count + 1).min(i32::MAX.unsigned_abs().into()),
    })
}

/// Returns the beginning of a message, as long as the API allows it.
fn cut(message: &str) -> &str {
    &message[..message.floor_char_boundary(MAX_MESSAGE)]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn notice() -> Notice {
        let text = str::to_owned;
        let object = ObjectId {
            group: text("apps"),
            kind: text("Deployment"),
            namespace: text("shop"),
            name: text("web"),
        };
        Notice { object, reason: "Drifted", is_warning: true, message: "changed by kubectl".to_owned() }
    }

    fn deployments() -> Kind {
        let kind = GroupKind::of(&notice().object);
        Kind {
            kind,
            version: "v1".to_owned(),
            plural: "deployments".to_owned(),
            namespaced: true,
            has_status: true,
        }
    }

    #[test]
    fn event_is_that_of_the_object_and_counts() {
        let at = |seconds: u64| SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000 + seconds);
        let notice = notice();
        let id = event_id("u-1", &notice);
        let first = event(&deployments(), "u-1", &notice, &id, None, at(0));
        let involved = json!({
            "apiVersion": "apps/v1", "kind": "Deployment", "name": "web", "namespace": "shop", "uid": "u-1",
        });
        assert_eq!((&first["involvedObject"], &first["count"]), (&involved, &json!(1)));
        assert_eq!((&first["type"], &first["reason"]), (&json!("Warning"), &json!("Drifted")));
        let second = event(&deployments(), "u-1", &notice, &id, Some(&first), at(60));
        assert_eq!(second["count"], 2);
        assert_eq!(second["firstTimestamp"], "2023-11-14T22:13:20Z");
        assert_eq!(second["lastTimestamp"], "2023-11-14T22:14:20Z");
    }

    #[test]
    fn event_about_another_object_has_another_name() {
        let one = event_id("u-1", &notice());
        assert_eq!((&*one.namespace, event_id("u-1", &notice())), ("shop", one.clone()));
        assert_ne!(one, event_id("u-2", &notice()), "it was created again");
        let object = ObjectId { namespace: String::new(), ..notice().object };
        assert_eq!(event_id("u-1", &Notice { object, ..notice() }).namespace, "default");
    }

    #[test]
    fn long_message_is_cut_between_characters() {
        let message = "ä".repeat(600);
        assert_eq!(cut(&message).len(), 1024);
        assert_eq!(cut(&format!("x{message}")).len(), 1023);
    }

    #[test]
    fn only_what_people_should_see_becomes_an_event() {
        let mut notices = Notices::default();
        let note = |event, object: Option<ObjectId>| {
            notices.note(&SyncEvent::new(event, object, "m"));
        };
        for kind in
            [SyncEventKind::Applied, SyncEventKind::Unchanged, SyncEventKind::Kept, SyncEventKind::Waiting]
        {
            note(kind, Some(notice().object));
        }
        note(SyncEventKind::Failed, None);
        for _ in 0..MAX_EVENTS {
            note(SyncEventKind::Pruned, Some(notice().object));
            note(SyncEventKind::Failed, Some(notice().object));
        }
        let taken = notices.take();
        assert_eq!((taken.len(), taken[0].reason, taken[1].reason), (MAX_EVENTS, "Pruned", "SyncFailed"));
    }

    #[test]
    fn failure_that_is_tried_again_is_said_once() {
        let mut notices = Notices::default();
        let fail = |notices: &Notices| {
            let (object, message) = (Some(notice().object), "quota".to_owned());
            notices.note(&SyncEvent::new(SyncEventKind::Failed, object, message));
        };
        fail(&notices);
        assert_eq!(notices.take().len(), 1);
        fail(&notices);
        assert!(notices.take().is_empty());
        assert!(notices.take().is_empty(), "it succeeded");
        fail(&notices);
        assert_eq!(notices.take().len(), 1, "it fails again");
    }
}
