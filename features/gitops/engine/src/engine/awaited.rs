//! Objects that a sync waits for.

use std::time::Duration;

use kube_cluster::Kind;
use object_health::Assessment;
use proto::{agent_configuration::gitops::ManifestProject, gitops::ObjectId, graph::HealthState};

/// The time until a definition is established.
const ESTABLISHED_TIMEOUT: Duration = Duration::from_secs(60);

/// An object that the sync waits for.
#[derive(Clone, Debug)]
pub(super) struct Awaited {
    pub(super) id: ObjectId,
    pub(super) kind: Kind,
    /// The present state in words.
    pub(super) reason: String,
    pub(super) condition: Condition,
    /// The time since when it is being deleted, if that is known, in milliseconds since 1970.
    pub(super) since: Option<u64>,
}

/// The condition that an awaited object has to meet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Condition {
    /// A definition is established.
    Established,
    /// It does its work.
    Healthy,
    /// A job has finished. It may be gone then.
    Finished,
    /// A hook has ended, in whichever way.
    Ended,
    /// The object with this UID is gone.
    Gone(String),
}

impl Awaited {
    /// Returns an object that is awaited until it is gone.
    pub(super) fn until_gone(id: ObjectId, kind: Kind, uid: String, finalizers: &str) -> Self {
        let finalizers = if finalizers.is_empty() { "none" } else { finalizers };
        let reason = format!("it is being deleted; finalizers: {finalizers}");
        Self { id, kind, reason, condition: Condition::Gone(uid), since: None }
    }

    /// Returns the time after which the project has failed.
    pub(super) fn limit(&self, settings: &ManifestProject) -> Duration {
        match self.condition {
            Condition::Established => ESTABLISHED_TIMEOUT,
            Condition::Healthy | Condition::Finished | Condition::Ended => settings.reconcile_timeout,
            Condition::Gone(_) => settings.prune_timeout,
        }
    }

    /// Describes that the time is over.
    pub(super) fn too_late(&self) -> String {
        match self.condition {
            Condition::Gone(_) => format!("it is not gone within prune_timeout: {}", self.reason),
            _ => format!(
                "the next objects wait for it, and its time is over (reconcile_timeout): {}",
                self.reason
            ),
        }
    }
}

impl Condition {
    /// Returns the reason why an object does not meet the condition yet, or `None` if it does.
    pub(super) fn unmet_reason(&self, found: Option<Assessment>) -> Option<String> {
        match found {
            Some(found) if matches!(found.health, HealthState::Healthy | HealthState::Suspended) => None,
            Some(found) if *self == Self::Ended && found.health == HealthState::Degraded => None,
            Some(found) => Some(found.reason),
            None if matches!(self, Self::Finished | Self::Ended) => None,
            None => Some("it does not exist any more".to_owned()),
        }
    }
}
