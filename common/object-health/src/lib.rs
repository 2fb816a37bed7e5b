//! The health of an object: whether it does its work, from the object alone.
//!
//! The rules are those of Argo CD 3.6 for the kinds of Kubernetes, without some of its defects: the status of a Job's conditions
//! counts, a StatefulSet waits for its new revision, and init containers that fail are seen. Kinds of well-known programs have rules as
//! data in the folder `rules`, one file for each API group. All other kinds, and objects about which a rule says `default`, follow the
//! generic rule, which reads the words of the status. A rule of the user replaces those of a kind.
//!
//! A reason says what a person has to know at night: why no node runs a Pod, which probe fails, how often and with which exit code and
//! last words a container crashes. A container that crashes again and again is not healthy between its crashes.
#![warn(missing_docs)]

mod data;
mod generic;
mod pod;
mod programs;
mod resources;
mod rules;
mod words;
mod workload;

use std::time::SystemTime;

use proto::{
    agent_configuration::graph::{EvaluationError, HealthRule},
    graph::{HealthState, KindName},
};
use serde_json::Value;

use self::generic::StatusWriter;
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

/// The value of a rule that leaves an object to the rules of agentk.
const DEFAULT: &str = "default";
/// The API groups of Kubernetes. Other groups below `k8s.io` belong to programs that clusters have or not.
const BUILT_IN: [&str; 24] = [
    "",
    "admissionregistration.k8s.io",
    "apiextensions.k8s.io",
    "apiregistration.k8s.io",
    "apps",
    "authentication.k8s.io",
    "authorization.k8s.io",
    "autoscaling",
    "batch",
    "certificates.k8s.io",
    "coordination.k8s.io",
    "discovery.k8s.io",
    "events.k8s.io",
    "extensions",
    "flowcontrol.apiserver.k8s.io",
    "internal.apiserver.k8s.io",
    "networking.k8s.io",
    "node.k8s.io",
    "policy",
    "rbac.authorization.k8s.io",
    "resource.k8s.io",
    "scheduling.k8s.io",
    "storage.k8s.io",
    "storagemigration.k8s.io",
];

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

/// The facts about an object that are not in it.
#[derive(Clone, Copy, Debug)]
pub struct AssessmentContext<'a> {
    /// The time: a crash is forgotten when the container has run long enough.
    pub now: SystemTime,
    /// The API server keeps the status of the kind apart (the subresource `status`), so that a controller is to write one.
    pub has_status: bool,
    /// The rule of the user for the kind.
    pub rule: Option<&'a HealthRule>,
}

impl AssessmentContext<'_> {
    /// Returns the context of an object without a rule of the user, now.
    pub fn now(has_status: bool) -> Self {
        Self { now: SystemTime::now(), has_status, rule: None }
    }
}

/// Returns whether the health of a kind's objects can be anything but good.
pub fn has_health(group: &str, kind: &str) -> bool {
    !(is_built_in(group) && WITHOUT_HEALTH.contains(&kind))
}

/// Returns whether a group is one of Kubernetes itself.
pub fn is_built_in(group: &str) -> bool {
    BUILT_IN.contains(&group)
}

/// Returns the API groups of programs whose kinds agentk has rules for, in no order.
pub fn groups_with_rules() -> impl Iterator<Item = &'static str> {
    data::groups()
}

/// Assesses an object as the API server returns it.
pub fn assess(object: &Value, context: AssessmentContext<'_>) -> Assessment {
    if let Some(assessment) = without_rules(object) {
        return assessment;
    }
    match context.rule.map(|rule| by_rule(object, rule)) {
        Some(Ok(Some(assessment))) => assessment,
        Some(Err(error)) => {
            Assessment { health: HealthState::Unknown, reason: format!("graph.health_rules: {error}") }
        }
        Some(Ok(None)) | None => of_kind(object, context),
    }
}

/// Returns when an object is healthy if nothing changes until then: a Pod that is only degraded because a container has crashed again and
/// again, or an object whose controller writes no status.
pub fn healthy_from(
    object: &Value,
    assessment: &Assessment,
    context: AssessmentContext<'_>,
) -> Option<SystemTime> {
    if without_rules(object).is_some() {
        return None;
    }
    let (group, kind) = group_kind(object);
    match assessment.health {
        HealthState::Degraded if kind == "Pod" && context.rule.is_none() => pod::healthy_from(object),
        HealthState::Progressing if data::rule(group, kind).is_some() => None,
        HealthState::Progressing if assessment.reason == generic::NO_STATUS => generic::healthy_from(object),
        _ => None,
    }
}

/// The parts of an object, which it owns, about which its health says how they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JudgedParts {
    /// Its health says nothing about its parts.
    None,
    /// Its health is that of its parts, apart from workloads: its controller may not look at what runs.
    AllButWorkloads,
    /// Its health is that of its parts, apart from those that have failed and that it has not replaced: it waits for them, and may wait
    /// for ever.
    NotFailed,
    /// Its health is that of its parts, as far as it matters.
    All,
    /// A part that has failed matters if it was created after this time, at which another one succeeded.
    FailedBefore(SystemTime),
    /// A part that has failed matters until one that was created later has succeeded.
    FailedBeforeSuccess,
}

/// Returns the parts about which the health of an object says how they are. A stopped object says nothing about its parts, and neither does
/// a kind that always counts as healthy.
pub fn judged_parts(object: &Value, assessment: &Assessment, context: AssessmentContext<'_>) -> JudgedParts {
    let (group, kind) = group_kind(object);
    let has_opinion = if is_built_in(group) {
        is_workload(group, kind) && kind != "Pod"
    } else {
        context.rule.is_some() || data::rule(group, kind).is_some() || generic::has_evidence(object)
    };
    match assessment.health {
        HealthState::Suspended => JudgedParts::None,
        _ if !is_built_in(group) && generic::repeats(kind) => JudgedParts::FailedBeforeSuccess,
        _ if !has_opinion => JudgedParts::None,
        // batch/v1beta1 does not know the last success.
        _ if (group, kind) == ("batch", "CronJob") && object["apiVersion"] == "batch/v1" => {
            JudgedParts::FailedBefore(workload::last_success(object).unwrap_or(SystemTime::UNIX_EPOCH))
        }
        // The deadline of a Deployment does not count any more once its rollout was complete, and others have none.
        HealthState::Progressing if is_built_in(group) && kind != "Job" => JudgedParts::NotFailed,
        _ if is_built_in(group) => JudgedParts::All,
        // Its tries are over: it has succeeded in spite of those that failed, or counts as failed itself.
        HealthState::Healthy | HealthState::Degraded if generic::ends(kind) => JudgedParts::All,
        _ => JudgedParts::AllButWorkloads,
    }
}

/// Returns whether a kind of Kubernetes runs containers. The status of another object may be older than what happens to them.
pub fn is_workload(group: &str, kind: &str) -> bool {
    match group {
        "apps" | "batch" | "extensions" => {
            ["CronJob", "DaemonSet", "Deployment", "Job", "ReplicaSet", "StatefulSet"].contains(&kind)
        }
        "" => ["Pod", "ReplicationController"].contains(&kind),
        _ => false,
    }
}

/// Returns the health of an object that is not assessed: it is being deleted, or somebody has excluded it.
fn without_rules(object: &Value) -> Option<Assessment> {
    let metadata = &object["metadata"];
    if metadata["annotations"][IGNORE] == "true" {
        return Some(healthy());
    }
    metadata.get("deletionTimestamp").map(|_| progressing(deletion(object)))
}

/// Returns that an object is being deleted, and for what it waits.
fn deletion(object: &Value) -> String {
    let finalizers = object["metadata"]["finalizers"].as_array().into_iter().flatten();
    let finalizers: Vec<&str> = finalizers.filter_map(Value::as_str).collect();
    let remaining = ["NamespaceFinalizersRemaining", "NamespaceContentRemaining"];
    let remaining = remaining.into_iter().find(|kind| is_true(object, kind));
    match remaining.and_then(|kind| condition(object, kind)) {
        Some(remaining) => format!("it is being deleted: {}", message(remaining)),
        None if finalizers.is_empty() => "it is being deleted".to_owned(),
        None => format!("it is being deleted; finalizers: {}", finalizers.join(", ")),
    }
}

/// A rule that has no result for an object. Its author mends it.
#[derive(Debug, thiserror::Error)]
enum RuleError {
    #[error("the rule of {kind} fails: {error}")]
    Failed { kind: KindName, error: EvaluationError },
    #[error(
        "the rule of {kind} has the value {value:?}, and not one of {}, {DEFAULT}",
        HealthState::ALL.map(HealthState::as_str).join(", ")
    )]
    UnknownHealth { kind: KindName, value: String },
}

/// Assesses an object by a rule, or returns `None` if the rule leaves it to those of agentk.
fn by_rule(object: &Value, rule: &HealthRule) -> Result<Option<Assessment>, RuleError> {
    let name = rule.health.text(object);
    let name = name.map_err(|error| RuleError::Failed { kind: rule.kind.clone(), error })?;
    if name == DEFAULT {
        return Ok(None);
    }
    let Some(health) = HealthState::ALL.into_iter().find(|known| known.as_str() == name) else {
        return Err(RuleError::UnknownHealth { kind: rule.kind.clone(), value: name });
    };
    let message = rule.message.as_ref().filter(|_| health != HealthState::Healthy);
    // A message that cannot be computed does not change the health.
    let reason = message.map(|message| message.text(object).unwrap_or_default()).unwrap_or_default();
    Ok(Some(Assessment { health, reason }))
}

/// Assesses an object by the rules of agentk.
fn of_kind(object: &Value, context: AssessmentContext<'_>) -> Assessment {
    let AssessmentContext { now, has_status, .. } = context;
    let (group, kind) = group_kind(object);
    match (group, kind) {
        ("apps" | "extensions", "Deployment") => workload::deployment(object),
        ("apps", "StatefulSet") => workload::stateful_set(object),
        ("apps" | "extensions", "DaemonSet") => workload::daemon_set(object),
        ("apps" | "extensions", "ReplicaSet") => workload::replica_set(object),
        ("batch", "Job") => workload::job(object),
        ("batch", "CronJob") => workload::cron_job(object),
        ("", "Pod") => pod::assess(object, now),
        ("", "Node") => resources::node(object, now),
        ("", "Service") => resources::service(object),
        ("networking.k8s.io" | "extensions", "Ingress") => resources::ingress(object),
        ("", "PersistentVolumeClaim") => resources::claim(object),
        ("autoscaling", "HorizontalPodAutoscaler") => resources::autoscaler(object),
        ("apiregistration.k8s.io", "APIService") => resources::api_service(object),
        ("apiextensions.k8s.io", "CustomResourceDefinition") => resources::definition(object),
        ("policy", "PodDisruptionBudget") => resources::disruption_budget(object),
        ("argoproj.io", "Workflow") => programs::workflow(object),
        ("gateway.networking.k8s.io", kind) if kind != "ReferenceGrant" => programs::gateway(object),
        ("cert-manager.io", "Certificate") => programs::certificate(object),
        (group, _) if group.ends_with(".toolkit.fluxcd.io") => programs::flux(object),
        // An object that a rule of agentk cannot read is as good as one without a rule.
        _ => {
            let rule = data::rule(group, kind);
            let writer = match rule {
                Some(_) => StatusWriter::Known,
                None if has_status && !is_built_in(group) => StatusWriter::Possible,
                None => StatusWriter::None,
            };
            rule.and_then(|rule| by_rule(object, rule).ok().flatten())
                .unwrap_or_else(|| generic::assess(object, writer, now))
        }
    }
}

fn group_kind(object: &Value) -> (&str, &str) {
    let api = object["apiVersion"].as_str().unwrap_or_default();
    let group = api.split_once('/').map_or("", |(group, _)| group);
    (group, object["kind"].as_str().unwrap_or_default())
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
    object.pointer(pointer).and_then(integer).unwrap_or(0)
}

/// Returns a number, which some controllers write as text.
fn integer(value: &Value) -> Option<i64> {
    value.as_i64().or_else(|| value.as_str()?.parse().ok())
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

/// Returns whether the status of an object, or this condition of it, is about its last change. Controllers such as those of Flux note the
/// change in the condition first, and in the status once it has worked.
fn is_current(object: &Value, condition: Option<&Value>) -> bool {
    let of_condition = condition.and_then(|condition| integer(&condition["observedGeneration"]));
    let of_status = || object.pointer("/status/observedGeneration").and_then(integer);
    of_condition.or_else(of_status).is_none_or(|observed| observed >= number(object, "/metadata/generation"))
}

fn is_observed(object: &Value) -> bool {
    number(object, "/metadata/generation") <= number(object, "/status/observedGeneration")
}

const NOT_OBSERVED: &str = "its controller has not seen the change yet";

#[cfg(test)]
mod tests {
    use super::*;

    /// The golden files: one document for each case, with the expected health in the annotation `expected`. The API server keeps the
    /// status of all kinds apart.
    #[test]
    fn cases_have_their_health() {
        let now = humantime::parse_rfc3339("2026-01-01T01:00:00Z").unwrap();
        let context = AssessmentContext { now, has_status: true, rule: None };
        let mut wrong = Vec::new();
        for (least, text) in [
            (25, include_str!("pod_cases.yaml")),
            (35, include_str!("workload_cases.yaml")),
            (25, include_str!("resource_cases.yaml")),
            (50, include_str!("generic_cases.yaml")),
            (50, include_str!("program_cases.yaml")),
        ] {
            let cases: Vec<Value> = serde_saphyr::from_multiple(text).unwrap();
            assert!(cases.len() >= least, "only {} cases", cases.len());
            for case in cases {
                let name = case["metadata"]["name"].as_str().unwrap();
                let expected = case["metadata"]["annotations"]["expected"].as_str().unwrap();
                let Assessment { health, reason } = assess(&case, context);
                let found =
                    if reason.is_empty() { format!("{health:?}") } else { format!("{health:?}: {reason}") };
                if found != expected {
                    wrong.push(format!("{name}: {found:?} and not {expected:?}"));
                }
            }
        }
        assert!(wrong.is_empty(), "{wrong:#?}");
    }
}
