//! The status of a deployment.

use serde_json::{Value, json};

use super::super::clock;
use super::super::fields::{items, text};
use super::super::pods::{self, TEMPLATE_HASH};
use super::wanted;

/// Computes the status from the pods. It equals the existing one, including times, if nothing changed.
pub(super) fn of<'pods>(deployment: &Value, pods: impl Iterator<Item = &'pods Value>) -> Value {
    let wanted = wanted(deployment);
    let hash = pods::template_hash(deployment);
    let (mut all, mut updated, mut ready) = (0, 0, 0);
    for pod in pods {
        all += 1;
        updated += usize::from(pod["metadata"]["labels"][TEMPLATE_HASH] == hash);
        ready += usize::from(pods::is_running(pod));
    }
    let complete = (all, updated, ready) == (wanted, wanted, wanted);
    let available = if ready >= wanted {
        ["Available", "True", "MinimumReplicasAvailable", "Deployment has minimum availability."]
    } else {
        ["Available", "False", "MinimumReplicasUnavailable", "Deployment does not have minimum availability."]
    };
    let progressing = if complete {
        ["Progressing", "True", "NewReplicaSetAvailable", "All simulated pods are running."]
    } else {
        ["Progressing", "True", "ReplicaSetUpdated", "Simulated pods are starting or stopping."]
    };
    let mut status = json!({
        "observedGeneration": deployment["metadata"]["generation"],
        "replicas": all,
        "updatedReplicas": updated,
        "readyReplicas": ready,
        "availableReplicas": ready,
        "conditions": [condition(deployment, available), condition(deployment, progressing)],
    });
    if wanted > ready {
        status["unavailableReplicas"] = (wanted - ready).into();
    }
    status
}

fn condition(deployment: &Value, [kind, status, reason, message]: [&str; 4]) -> Value {
    let present = items(deployment, "/status/conditions").iter().find(|present| present["type"] == kind);
    let kept = |same: &str, time: &str, value: &str| {
        let present = present.filter(|present| present[same] == value);
        present.map(|present| text(present, time).to_owned()).unwrap_or_else(clock::timestamp)
    };
    json!({
        "type": kind,
        "status": status,
        "reason": reason,
        "message": message,
        "lastUpdateTime": kept("reason", "/lastUpdateTime", reason),
        "lastTransitionTime": kept("status", "/lastTransitionTime", status),
    })
}
