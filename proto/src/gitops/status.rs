//! The state of a project and the events of a sync.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::CommitInfo;
use crate::agent_configuration::gitops::ManifestProject;

/// An object of a cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ObjectId {
    /// The API group; empty for the core group.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub group: String,
    /// The kind.
    pub kind: String,
    /// The namespace; empty for cluster-scoped objects.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub namespace: String,
    /// The name.
    pub name: String,
}

/// An event of a sync. A line of the response.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SyncEvent {
    /// The kind of the event.
    pub event: SyncEventKind,
    /// The object, unless the event concerns the whole sync.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub object: Option<ObjectId>,
    /// One sentence for people. It contains no values of secrets.
    pub message: String,
    /// The state of the project: of `Planned`, and of `Finished` unless the sync was stopped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<ProjectState>,
    /// The first error of a sync that has failed, of `Finished`; and of `Waiting` the first error of objects that are still being tried.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<ObjectError>,
}

/// The kind of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SyncEventKind {
    /// The files are valid, and the sync begins.
    Planned,
    /// The object was created or changed.
    Applied,
    /// The object was as in Git.
    Unchanged,
    /// The object was deleted, because it left Git.
    Pruned,
    /// The object left Git and was not deleted: a guard said no.
    Kept,
    /// The sync waits for the object.
    Waiting,
    /// The object does its work.
    Healthy,
    /// The object does not do its work.
    Degraded,
    /// The object, or the whole sync, failed.
    Failed,
    /// Somebody else has changed the object.
    Drifted,
    /// The sync has ended.
    Finished,
}

/// The state of a project.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ProjectState {
    /// Nothing was synced yet.
    #[default]
    Pending,
    /// A sync is running.
    Syncing,
    /// The cluster is as in Git, and healthy as far as known.
    Synced,
    /// The commit has no objects, or no file matches.
    Empty,
    /// Somebody else has changed an object, which is not healed.
    OutOfSync,
    /// Others change objects again as soon as they are as in Git. They are set back less and less often.
    Contested,
    /// The cluster is as in Git, and an object does not do its work.
    Degraded,
    /// The configuration or a command has stopped the syncs.
    Suspended,
    /// A guard did not let objects be deleted.
    Held,
    /// The project is not in the configuration any more; its objects stay.
    Orphaned,
    /// The last sync failed.
    Failed,
    /// The record of the objects of the project is gone or wrong. Nothing is written before a person has approved a new one.
    InventoryLost,
    /// No pod of agentk works on the project, so that nothing newer is known of it.
    Unattended,
    /// A state that this version does not know.
    #[serde(other)]
    Unknown,
}

/// The state of a project, for people and programs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProjectStatus {
    /// The id of the project.
    pub project: String,
    /// The version that is followed, such as `branch main`.
    pub reference: String,
    /// The state.
    pub state: ProjectState,
    /// One sentence about the state.
    pub message: String,
    /// The reason why kas has no files of the project now, or nothing. Objects that were applied before stay.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub problem: String,
    /// The commit that the cluster has been made completely.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub synced: Option<CommitInfo>,
    /// The commit that is being applied, or whose deletions wait, while it is not complete.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub working: Option<CommitInfo>,
    /// The newest commit that was tried.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempted: Option<CommitInfo>,
    /// The first objects that the sync waits for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub waiting: Vec<AwaitedObject>,
    /// The first objects that start, after the commit was applied. Nothing waits for them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub starting: Vec<AwaitedObject>,
    /// The time at which the cluster was last seen in this state, in milliseconds since 1970. 0: it was not seen yet.
    #[serde(default)]
    pub as_of: u64,
    /// The deletions that wait for an approval.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held: Option<HeldDeletions>,
    /// The inventory that agentk would write, because the old one was lost.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recovery: Option<RecoveryPlan>,
    /// The digest of the commit and the settings of the last sync that ended without an error.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub revision: String,
    /// The time of the last command that a sync has answered, in milliseconds since 1970.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub answered: String,
    /// The objects of the last sync.
    pub objects: ObjectCounts,
    /// The first errors of the last sync.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub errors: Vec<ObjectError>,
    /// The first objects that left Git and were not deleted, with the reasons.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub kept: Vec<ObjectError>,
    /// The settings with which the project was synced last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub settings: Option<Box<ManifestProject>>,
    /// The last syncs, the newest one first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub history: Vec<SyncRecord>,
}

/// Deletions that wait for an approval.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldDeletions {
    /// The code that approves exactly these deletions.
    pub code: String,
    /// The number of objects.
    pub count: u32,
    /// The first objects, in the order of their deletion.
    pub objects: Vec<HeldObject>,
    /// The reason in one sentence.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// The commit that would delete them, when they were held first.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub commit: String,
    /// The time since when they are held, in milliseconds since 1970.
    #[serde(default)]
    pub since: u64,
}

/// An object whose deletion waits for an approval.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldObject {
    /// The object.
    #[serde(flatten)]
    pub object: ObjectId,
    /// What its deletion takes with it, if that cannot be had back from Git.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub takes: String,
}

/// An object that a sync waits for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AwaitedObject {
    /// The object.
    pub object: ObjectId,
    /// The reason in one sentence: its health, or the finalizers that keep it.
    pub reason: String,
    /// The time since when the sync waits for it, in milliseconds since 1970.
    pub since: u64,
}

/// An inventory that was made from the labels of objects in the cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecoveryPlan {
    /// The code that approves exactly this inventory.
    pub code: String,
    /// The number of objects that become members again.
    pub count: u32,
    /// The number of those that are not in Git. They wait for an approval then.
    pub left: u32,
    /// The first objects that are not in Git.
    pub objects: Vec<ObjectId>,
    /// The kinds that cannot be listed, with the reasons. Objects of them that left Git are forgotten.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unknown: Vec<String>,
}

/// Numbers of objects by their results.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ObjectCounts {
    /// Objects in Git.
    pub total: u32,
    /// Objects that were created or changed.
    pub applied: u32,
    /// Objects that were as in Git.
    pub unchanged: u32,
    /// Objects that were deleted.
    pub pruned: u32,
    /// Objects that left Git and were not deleted.
    pub kept: u32,
    /// Objects that failed.
    pub failed: u32,
    /// Objects that do not do their work.
    pub degraded: u32,
    /// Objects that are still starting.
    pub progressing: u32,
    /// Objects that the sync waits for: until they do their work, or until they are gone.
    pub waiting: u32,
}

/// An error of an object or of a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ObjectError {
    /// The object, if the file has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub object: Option<ObjectId>,
    /// The file with its line, such as `prod/app.yaml:12`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub file: String,
    /// The reason in the words of whoever refused it.
    pub message: String,
}

/// One sync of the past.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SyncRecord {
    /// The commit.
    pub commit: String,
    /// The time of the end, in milliseconds since 1970.
    pub ended: u64,
    /// The duration in milliseconds.
    pub duration: u64,
    /// The state after it.
    pub state: ProjectState,
    /// The objects by their results.
    pub objects: ObjectCounts,
}

impl SyncEvent {
    /// Creates an event without a state.
    pub fn new(event: SyncEventKind, object: Option<ObjectId>, message: impl Into<String>) -> Self {
        Self { event, object, message: message.into(), state: None, error: None }
    }

    /// Returns whether no further event of the commit follows. A sync that failed, or waits for an approval, is tried again.
    pub fn is_last(&self) -> bool {
        use ProjectState::{Contested, Degraded, Empty, OutOfSync, Synced};

        let done = matches!(self.state, Some(Synced | Empty | Degraded | OutOfSync | Contested));
        self.event == SyncEventKind::Finished && done
    }
}

impl ProjectState {
    /// Returns the word in tables.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Syncing => "syncing",
            Self::Synced => "synced",
            Self::Empty => "empty",
            Self::OutOfSync => "out-of-sync",
            Self::Contested => "contested",
            Self::Unattended => "unattended",
            Self::Degraded => "degraded",
            Self::Suspended => "suspended",
            Self::Held => "held",
            Self::Orphaned => "orphaned",
            Self::Failed => "failed",
            Self::InventoryLost => "inventory-lost",
            Self::Unknown => "unknown",
        }
    }
}

/// `Deployment.apps shop/web`, `Namespace shop`.
impl fmt::Display for ObjectId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { group, kind, namespace, name } = self;
        f.write_str(kind)?;
        if !group.is_empty() {
            write!(f, ".{group}")?;
        }
        f.write_str(" ")?;
        if !namespace.is_empty() {
            write!(f, "{namespace}/")?;
        }
        f.write_str(name)
    }
}
