//! The health of an object: whether it does its work, from the object alone.
//!
//! The rules are those of Argo CD 3.6 for the kinds of Kubernetes, without three of its defects: the status of a Job's conditions
//! counts, a StatefulSet waits for its new revision, and init containers that fail are seen. Other kinds follow kstatus: deletion,
//! `observedGeneration`, and the conditions `Reconciling`, `Stalled` and `Ready`. A rule of the user replaces those of a kind.
//!
//! A reason says what a person has to know at night: why no node runs a Pod, which probe fails, how often and with which exit code and
//! last words a container crashes. A container that crashes again and again is not healthy between its crashes.
#![warn(missing_docs)]

mod pod;
mod rules;

use std::time::SystemTime;

use proto::{agent_configuration::graph::HealthRule, graph::HealthState};
use serde_json::Value;

pub use self::rules::HealthRules;

/// The health of an object with the reason, which is empty for healthy objects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Assessment {
    /// The health.
    pub health: HealthState,
    /// One sentence, or nothing.
    pub reason: String,
}

/// The annotation that leaves an object out of the health of its project.
const IGNORE: &str = "argocd.argoproj.io/ignore-healthcheck";
/// The annotation that treats the restarts of a Pod as those of `restartPolicy: Never`.
const IGNORE_RESTART_POLICY: &str = "argocd.argoproj.io/ignore-restart-policy";

/// Kinds whose objects are always healthy, so that they need not be read.
const WITHOUT_HEALTH: [&str; 12] = [
    "ClusterRole",
    "ClusterRoleBinding",
    "ConfigMap",
    "LimitRange",
    "Namespace",
    "NetworkPolicy",
    "PriorityClass",
    "ResourceQuota",
    "Role",
    "RoleBinding",
    "Secret",
    "ServiceAccount",
];

/// Returns whether the health of a kind's objects can be anything but good.
pub fn has_health(group: &str, kind: &str) -> bool {
    let built_in = !group.contains('.') || group.ends_with(".k8s.io");
    !(built_in && WITHOUT_HEALTH.contains(&kind))
}

/// Assesses an object as the API server returns it.
pub fn assess(object: &Value) -> Assessment {
    assess_at(object, SystemTime::now())
}

/// Assesses an object at a time: a crash is forgotten when the container has run long enough.
pub fn assess_at(object: &Value, now: SystemTime) -> Assessment {
    without_rules(object).unwrap_or_else(|| of_kind(object, now))
}

/// Returns when a Pod is healthy that is only degraded because a container has crashed again and again, if nothing changes until then.
pub fn healthy_from(object: &Value) -> Option<SystemTime> {
    if object["kind"] != "Pod" || without_rules(object).is_some() {
        return None;
    }
    pod::healthy_from(object)
}

/// Assesses an object by a rule of the user.
pub fn assess_by_rule(object: &Value, rule: &HealthRule) -> Assessment {
    without_rules(object).unwrap_or_else(|| by_rule(object, rule))
}

/// Returns the health of an object that is not assessed: it is being deleted, or somebody has excluded it.
fn without_rules(object: &Value) -> Option<Assessment> {
    let metadata = &object["metadata"];
    if metadata["annotations"][IGNORE] == "true" {
        return Some(healthy());
    }
    metadata.get("deletionTimestamp").map(|_| progressing("it is being deleted"))
}

fn by_rule(object: &Value, rule: &HealthRule) -> Assessment {
    let unknown = |what: String| Assessment {
        health: HealthState::Unknown,
        reason: format!("graph.health_rules: {what}"),
    };
    let name = match rule.health.text(object) {
        Ok(name) => name,
        Err(error) => return unknown(format!("the rule of {} fails: {error}", rule.kind)),
    };
    let Some(health) = HealthState::ALL.into_iter().find(|known| known.as_str() == name) else {
        let names = HealthState::ALL.map(HealthState::as_str).join(", ");
        return unknown(format!("the rule of {} has the value {name:?}, and not one of {names}", rule.kind));
    };
    let message = rule.message.as_ref().filter(|_| health != HealthState::Healthy);
    // A message that cannot be computed does not change the health.
    let reason = message.map(|message| message.text(object).unwrap_or_default()).unwrap_or_default();
    Assessment { health, reason }
}

fn of_kind(object: &Value, now: SystemTime) -> Assessment {
    let api = object["apiVersion"].as_str().unwrap_or_default();
    let group = api.split_once('/').map_or("", |(group, _)| group);
    match (group, object["kind"].as_str().unwrap_or_default()) {
        ("apps" | "extensions", "Deployment") => deployment(object),
        ("apps", "StatefulSet") => stateful_set(object),
        ("apps" | "extensions", "DaemonSet") => daemon_set(object),
        ("apps" | "extensions", "ReplicaSet") => replica_set(object),
        ("", "Pod") => pod::assess(object, now),
        ("", "Service") => service(object),
        ("networking.k8s.io" | "extensions", "Ingress") => ingress(object),
        ("", "PersistentVolumeClaim") => claim(object),
        ("batch", "Job") => job(object),
        ("batch", "CronJob") => cron_job(object),
        ("autoscaling", "HorizontalPodAutoscaler") => autoscaler(object),
        ("apiregistration.k8s.io", "APIService") => api_service(object),
        ("apiextensions.k8s.io", "CustomResourceDefinition") => definition(object),
        ("policy", "PodDisruptionBudget") => disruption_budget(object),
        ("argoproj.io", "Workflow") => workflow(object),
        ("gateway.networking.k8s.io", "Gateway" | "HTTPRoute") => gateway(object),
        ("cert-manager.io", "Certificate") => certificate(object),
        (group, _) if group.ends_with(".toolkit.fluxcd.io") => flux(object),
        _ => generic(object),
    }
}

fn healthy() -> Assessment {
    Assessment { health: HealthState::Healthy, reason: String::new() }
}

fn progressing(reason: impl Into<String>) -> Assessment {
    Assessment { health: HealthState::Progressing, reason: reason.into() }
}

fn degraded(reason: impl Into<String>) -> Assessment {
    Assessment { health: HealthState::Degraded, reason: reason.into() }
}

fn suspended(reason: impl Into<String>) -> Assessment {
    Assessment { health: HealthState::Suspended, reason: reason.into() }
}

/// Returns a number of the object, or 0.
fn number(object: &Value, pointer: &str) -> i64 {
    object.pointer(pointer).and_then(Value::as_i64).unwrap_or(0)
}

fn conditions(object: &Value) -> impl Iterator<Item = &Value> {
    object.pointer("/status/conditions").and_then(Value::as_array).into_iter().flatten()
}

fn condition<'a>(object: &'a Value, kind: &str) -> Option<&'a Value> {
    conditions(object).find(|condition| condition["type"] == kind)
}

fn is_true(object: &Value, kind: &str) -> bool {
    condition(object, kind).is_some_and(|condition| condition["status"] == "True")
}

/// Returns the message of a condition, or its reason.
fn message(condition: &Value) -> String {
    let text = |key: &str| condition[key].as_str().filter(|text| !text.is_empty());
    text("message").or_else(|| text("reason")).unwrap_or("without a message").to_owned()
}

fn is_observed(object: &Value) -> bool {
    number(object, "/metadata/generation") <= number(object, "/status/observedGeneration")
}

const NOT_OBSERVED: &str = "its controller has not seen the change yet";

fn deployment(object: &Value) -> Assessment {
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

fn stateful_set(object: &Value) -> Assessment {
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
        return match updated < due {
            true => progressing(format!("{updated} of {due} replicas of the partition are updated")),
            false => healthy(),
        };
    }
    let revision = |name: &str| object.pointer(&format!("/status/{name}")).and_then(Value::as_str);
    match revision("updateRevision") == revision("currentRevision") {
        true => healthy(),
        false => progressing(format!("{updated} of {} replicas have the new revision", wanted.unwrap_or(1))),
    }
}

fn daemon_set(object: &Value) -> Assessment {
    if !is_observed(object) {
        return progressing(NOT_OBSERVED);
    }
    if object.pointer("/spec/updateStrategy/type").is_some_and(|kind| kind == "OnDelete") {
        return healthy();
    }
    let desired = number(object, "/status/desiredNumberScheduled");
    let updated = number(object, "/status/updatedNumberScheduled");
    if updated < desired {
        return progressing(format!("{updated} of {desired} pods are updated"));
    }
    let available = number(object, "/status/numberAvailable");
    match available < desired {
        true => progressing(format!("{available} of {desired} pods are available")),
        false => healthy(),
    }
}

fn replica_set(object: &Value) -> Assessment {
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

fn service(object: &Value) -> Assessment {
    let balanced = object.pointer("/spec/type").is_some_and(|kind| kind == "LoadBalancer");
    match balanced && !has_address(object) {
        true => progressing("its load balancer has no address yet"),
        false => healthy(),
    }
}

fn ingress(object: &Value) -> Assessment {
    if has_address(object) { healthy() } else { progressing("it has no address yet") }
}

fn has_address(object: &Value) -> bool {
    object
        .pointer("/status/loadBalancer/ingress")
        .and_then(Value::as_array)
        .is_some_and(|list| !list.is_empty())
}

fn claim(object: &Value) -> Assessment {
    match object.pointer("/status/phase").and_then(Value::as_str).unwrap_or_default() {
        "Bound" => healthy(),
        "Lost" => degraded("its volume is lost"),
        _ => match object.pointer("/spec/storageClassName").and_then(Value::as_str) {
            Some(class) if !class.is_empty() => {
                progressing(format!("it has no volume of the class {class} yet"))
            }
            _ => progressing("it has no volume yet"),
        },
    }
}

fn job(object: &Value) -> Assessment {
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

fn cron_job(object: &Value) -> Assessment {
    let status = |key: &str| object.pointer(&format!("/status/{key}"));
    if object.pointer("/spec/suspend") == Some(&Value::Bool(true)) || object.get("status").is_none() {
        return healthy();
    }
    let (Some(scheduled), Some(succeeded)) = (status("lastScheduleTime"), status("lastSuccessfulTime"))
    else {
        return healthy();
    };
    let running = status("active").and_then(Value::as_array).is_some_and(|active| !active.is_empty());
    // Times of the API have one form, in which the order of texts is that of times.
    match !running && succeeded.as_str() < scheduled.as_str() {
        true => degraded(format!(
            "its job of {} did not succeed; the last one that did ended at {}",
            scheduled.as_str().unwrap_or_default(),
            succeeded.as_str().unwrap_or_default()
        )),
        false => healthy(),
    }
}

fn autoscaler(object: &Value) -> Assessment {
    const FAILURES: [&str; 9] = [
        "FailedGetScale",
        "FailedUpdateScale",
        "FailedGetResourceMetric",
        "InvalidSelector",
        "FailedGetObjectMetric",
        "FailedGetPodsMetric",
        "FailedGetExternalMetric",
        "FailedGetContainerResourceMetric",
        "FailedComputeMetricsReplicas",
    ];
    let annotated = object["metadata"]["annotations"]["autoscaling.alpha.kubernetes.io/conditions"].as_str();
    let annotated: Option<Vec<Value>> = annotated.and_then(|text| serde_json::from_str(text).ok());
    let all: Vec<&Value> = match &annotated {
        Some(conditions) => conditions.iter().collect(),
        None => conditions(object).collect(),
    };
    let failed =
        |condition: &&&Value| condition["reason"].as_str().is_some_and(|reason| FAILURES.contains(&reason));
    if let Some(failed) = all.iter().find(failed) {
        return degraded(format!("it cannot scale: {}", message(failed)));
    }
    let works = |condition: &&Value| {
        (condition["type"] == "AbleToScale" || condition["type"] == "ScalingLimited")
            && condition["status"] == "True"
    };
    if all.iter().any(works) { healthy() } else { progressing("it waits for metrics") }
}

fn api_service(object: &Value) -> Assessment {
    match condition(object, "Available") {
        Some(condition) if condition["status"] == "True" => healthy(),
        Some(condition) => progressing(message(condition)),
        None => progressing("it waits to be processed"),
    }
}

fn definition(object: &Value) -> Assessment {
    for (kind, bad) in [("NamesAccepted", "False"), ("NonStructuralSchema", "True")] {
        if let Some(condition) = condition(object, kind).filter(|condition| condition["status"] == bad) {
            return degraded(message(condition));
        }
    }
    match condition(object, "Established") {
        Some(condition) if condition["status"] == "True" => healthy(),
        Some(condition) if condition["reason"] != "Installing" => degraded(message(condition)),
        _ => progressing("it is not established yet"),
    }
}

fn disruption_budget(object: &Value) -> Assessment {
    let failed =
        |condition: &&Value| condition["status"] == "False" && condition["reason"] != "InsufficientPods";
    if let Some(condition) = conditions(object).find(failed) {
        return degraded(message(condition));
    }
    match conditions(object).next() {
        Some(_) => healthy(),
        // Kubernetes before 1.22 sets no conditions.
        None if object.pointer("/status/observedGeneration").is_some() && is_observed(object) => healthy(),
        None => progressing(NOT_OBSERVED),
    }
}

fn workflow(object: &Value) -> Assessment {
    match object.pointer("/status/phase").and_then(Value::as_str).unwrap_or_default() {
        "Succeeded" => healthy(),
        "Failed" | "Error" => degraded(
            object.pointer("/status/message").and_then(Value::as_str).unwrap_or("the workflow has failed"),
        ),
        _ => progressing("it has not ended"),
    }
}

fn gateway(object: &Value) -> Assessment {
    let generation = number(object, "/metadata/generation");
    let of = |pointer: &str| object.pointer(pointer).and_then(Value::as_array).into_iter().flatten();
    let nested = of("/status/listeners").chain(of("/status/parents"));
    let nested = nested.flat_map(|part| part["conditions"].as_array().into_iter().flatten());
    let all: Vec<&Value> = conditions(object)
        .chain(nested)
        .filter(|condition| {
            condition["observedGeneration"].as_i64().is_none_or(|observed| observed >= generation)
        })
        .collect();
    let has =
        |kind: &str, status: &str| all.iter().find(|c| c["type"] == kind && c["status"] == status).copied();
    if let Some(bad) = has("ResolvedRefs", "False").or_else(|| has("Accepted", "False")) {
        return degraded(message(bad));
    }
    let programmed = all.iter().find(|c| c["type"] == "Programmed" && c["status"] != "True");
    match programmed {
        Some(waiting) => progressing(message(waiting)),
        None if all.is_empty() => progressing(NOT_OBSERVED),
        None => healthy(),
    }
}

fn certificate(object: &Value) -> Assessment {
    if is_true(object, "Issuing") {
        return progressing("it is being issued");
    }
    match condition(object, "Ready") {
        Some(condition) if condition["status"] == "True" => healthy(),
        Some(condition) if condition["status"] == "False" => degraded(message(condition)),
        _ => progressing("it is not ready"),
    }
}

fn flux(object: &Value) -> Assessment {
    if object.pointer("/spec/suspend") == Some(&Value::Bool(true)) {
        return suspended("it is suspended");
    }
    match condition(object, "Ready") {
        Some(ready) if ready["status"] == "True" => healthy(),
        Some(ready) if ready["status"] == "False" => degraded(message(ready)),
        _ => progressing("it is not ready"),
    }
}

/// The rules of kstatus for kinds without their own.
fn generic(object: &Value) -> Assessment {
    if object.pointer("/status/observedGeneration").is_some() && !is_observed(object) {
        return progressing(NOT_OBSERVED);
    }
    if let Some(condition) =
        condition(object, "Reconciling").filter(|condition| condition["status"] == "True")
    {
        return progressing(message(condition));
    }
    if let Some(condition) = condition(object, "Stalled").filter(|condition| condition["status"] == "True") {
        return degraded(message(condition));
    }
    match condition(object, "Ready") {
        Some(condition) if condition["status"] != "True" => progressing(message(condition)),
        _ => healthy(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The golden file: one document for each case, with the expected health in the annotation `expected`.
    #[test]
    fn cases_have_their_health() {
        let cases: Vec<Value> = serde_saphyr::from_multiple(include_str!("health_cases.yaml")).unwrap();
        assert!(cases.len() > 50, "only {} cases", cases.len());
        for case in cases {
            let name = case["metadata"]["name"].as_str().unwrap();
            let expected = case["metadata"]["annotations"]["expected"].as_str().unwrap();
            let now = humantime::parse_rfc3339("2026-01-01T01:00:00Z").unwrap();
            let Assessment { health, reason } = assess_at(&case, now);
            let found =
                if reason.is_empty() { format!("{health:?}") } else { format!("{health:?}: {reason}") };
            assert_eq!(found, expected, "{name} ({})", case["kind"]);
        }
    }
}
