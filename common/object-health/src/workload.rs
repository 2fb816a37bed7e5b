//! The health of workloads.

use std::time::SystemTime;

use serde_json::Value;

use crate::{
    Assessment, NOT_OBSERVED, condition, degraded, healthy, is_observed, is_true, message, number,
    progressing, suspended,
};

pub(crate) fn deployment(object: &Value) -> Assessment {
    if object.pointer("/spec/paused") == Some(&Value::Bool(true)) {
        return suspended("it is paused");
    }
    if !is_observed(object) {
        return progressing(NOT_OBSERVED);
    }
    let (replicas, updated) = (number(object, "/status/replicas"), number(object, "/status/updatedReplicas"));
    let available = number(object, "/status/availableReplicas");
    let wanted = object.pointer("/spec/replicas").and_then(Value::as_i64);
    // Such as an exceeded quota.
    let refused = condition(object, "ReplicaFailure").filter(|condition| condition["status"] == "True");
    let refused = refused.map(|condition| format!(": {}", message(condition))).unwrap_or_default();
    if let Some(condition) = condition(object, "Progressing")
        && condition["reason"] == "ProgressDeadlineExceeded"
    {
        let wanted = wanted.unwrap_or(updated);
        let state = format!("{updated} of {wanted} replicas are updated, {available} are available");
        return degraded(format!("its rollout takes longer than its deadline: {state}{refused}"));
    }
    if let Some(wanted) = wanted.filter(|wanted| updated < *wanted) {
        return progressing(format!("{updated} of {wanted} replicas are updated{refused}"));
    }
    match replicas - updated {
        ..=0 => {}
        1 => return progressing("1 old replica is still there"),
        old => return progressing(format!("{old} old replicas are still there")),
    }
    if available < updated {
        return progressing(format!("{available} of {updated} updated replicas are available"));
    }
    healthy()
}

pub(crate) fn stateful_set(object: &Value) -> Assessment {
    if number(object, "/status/observedGeneration") == 0 || !is_observed(object) {
        return progressing(NOT_OBSERVED);
    }
    let wanted = object.pointer("/spec/replicas").and_then(Value::as_i64);
    let ready = number(object, "/status/readyReplicas");
    if let Some(wanted) = wanted.filter(|wanted| ready < *wanted) {
        return progressing(format!("{ready} of {wanted} replicas are ready"));
    }
    if object.pointer("/spec/updateStrategy/type").is_some_and(|kind| kind == "OnDelete") {
        return healthy();
    }
    let partition = number(object, "/spec/updateStrategy/rollingUpdate/partition");
    let updated = number(object, "/status/updatedReplicas");
    if partition > 0 {
        let due = wanted.unwrap_or(1) - partition;
        return if updated < due {
            progressing(format!("{updated} of {due} replicas of the partition are updated"))
        } else {
            healthy()
        };
    }
    let revision = |name: &str| object.pointer(&format!("/status/{name}")).and_then(Value::as_str);
    if revision("updateRevision") == revision("currentRevision") {
        healthy()
    } else {
        progressing(format!("{updated} of {} replicas have the new revision", wanted.unwrap_or(1)))
    }
}

pub(crate) fn daemon_set(object: &Value) -> Assessment {
    if !is_observed(object) {
        return progressing(NOT_OBSERVED);
    }
    let desired = number(object, "/status/desiredNumberScheduled");
    let updated = number(object, "/status/updatedNumberScheduled");
    // With OnDelete, the old Pods stay until a person deletes them.
    let waits = object.pointer("/spec/updateStrategy/type").is_some_and(|kind| kind == "OnDelete");
    if updated < desired && !waits {
        return progressing(format!("{updated} of {desired} pods are updated"));
    }
    let available = number(object, "/status/numberAvailable");
    if available < desired {
        progressing(format!("{available} of {desired} pods are available"))
    } else {
        healthy()
    }
}

pub(crate) fn replica_set(object: &Value) -> Assessment {
    if !is_observed(object) {
        return progressing(NOT_OBSERVED);
    }
    if let Some(failure) =
        condition(object, "ReplicaFailure").filter(|condition| condition["status"] == "True")
    {
        return degraded(format!("its pods cannot be created: {}", message(failure)));
    }
    let available = number(object, "/status/availableReplicas");
    match object.pointer("/spec/replicas").and_then(Value::as_i64) {
        Some(wanted) if available < wanted => {
            progressing(format!("{available} of {wanted} replicas are available"))
        }
        _ => healthy(),
    }
}

pub(crate) fn job(object: &Value) -> Assessment {
    if let Some(failed) = condition(object, "Failed").filter(|_| is_true(object, "Failed")) {
        return degraded(message(failed));
    }
    if is_true(object, "Suspended") {
        return suspended("it is suspended");
    }
    if is_true(object, "Complete") {
        return healthy();
    }
    let [active, succeeded, failed] =
        ["active", "succeeded", "failed"].map(|name| number(object, &format!("/status/{name}")));
    if active == 0 && succeeded == 0 && failed == 0 {
        return progressing("none of its pods runs yet");
    }
    let wanted = object.pointer("/spec/completions").and_then(Value::as_i64).unwrap_or(1);
    progressing(format!("pods: {succeeded} of {wanted} succeeded, {failed} failed, {active} active"))
}

pub(crate) fn cron_job(object: &Value) -> Assessment {
    if object.pointer("/spec/suspend") == Some(&Value::Bool(true)) {
        return suspended("it is suspended");
    }
    let time = |key: &str| object.pointer(&format!("/status/{key}")).and_then(Value::as_str);
    let active = object.pointer("/status/active").and_then(Value::as_array);
    let is_running = active.is_some_and(|active| !active.is_empty());
    match (time("lastScheduleTime"), time("lastSuccessfulTime")) {
        // batch/v1beta1 has no such time.
        (Some(scheduled), None) if !is_running && object["apiVersion"] == "batch/v1" => {
            degraded(format!("its job of {scheduled} did not succeed, and none before it"))
        }
        // Times of the API have one form, in which the order of texts is that of times.
        (Some(scheduled), Some(succeeded)) if !is_running && succeeded < scheduled => degraded(format!(
            "its job of {scheduled} did not succeed; the last one that did ended at {succeeded}"
        )),
        _ => healthy(),
    }
}

/// Returns when the last job of a CronJob ended that succeeded.
pub(crate) fn last_success(object: &Value) -> Option<SystemTime> {
    let time = object.pointer("/status/lastSuccessfulTime")?.as_str()?;
    humantime::parse_rfc3339_weak(time).ok()
}
