//! The health of Services, storage, Nodes, autoscalers and definitions.

use std::time::{Duration, SystemTime};

use serde_json::Value;

use crate::{
    Assessment, NOT_OBSERVED, condition, conditions, degraded, healthy, is_observed, message, progressing,
};

/// The time in which a new Node becomes ready.
const NODE_START: Duration = Duration::from_secs(600);

pub(crate) fn service(object: &Value) -> Assessment {
    let balanced = object.pointer("/spec/type").is_some_and(|kind| kind == "LoadBalancer");
    if balanced && !has_address(object) {
        progressing("its load balancer has no address yet")
    } else {
        healthy()
    }
}

pub(crate) fn ingress(object: &Value) -> Assessment {
    if has_address(object) { healthy() } else { progressing("it has no address yet") }
}

fn has_address(object: &Value) -> bool {
    object
        .pointer("/status/loadBalancer/ingress")
        .and_then(Value::as_array)
        .is_some_and(|list| !list.is_empty())
}

pub(crate) fn claim(object: &Value) -> Assessment {
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

pub(crate) fn autoscaler(object: &Value) -> Assessment {
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

pub(crate) fn api_service(object: &Value) -> Assessment {
    match condition(object, "Available") {
        Some(condition) if condition["status"] == "True" => healthy(),
        Some(condition) => progressing(message(condition)),
        None => progressing("it waits to be processed"),
    }
}

pub(crate) fn definition(object: &Value) -> Assessment {
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

pub(crate) fn disruption_budget(object: &Value) -> Assessment {
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

pub(crate) fn node(object: &Value, now: SystemTime) -> Assessment {
    let is_bad = |condition: &&Value| {
        let kind = condition["type"].as_str().unwrap_or_default();
        condition["status"] == "True" && (kind.ends_with("Pressure") || kind == "NetworkUnavailable")
    };
    let ready = condition(object, "Ready");
    let is_ready = ready.is_some_and(|ready| ready["status"] == "True");
    if !is_ready {
        let reason = ready.map_or_else(|| "its kubelet has not started yet".to_owned(), message);
        let created = object["metadata"]["creationTimestamp"].as_str();
        let created = created.and_then(|time| humantime::parse_rfc3339_weak(time).ok());
        return if created.is_some_and(|created| now < created + NODE_START) {
            progressing(format!("it is new and not ready: {reason}"))
        } else {
            degraded(format!("it is not ready{}: {reason}", since(ready)))
        };
    }
    match conditions(object).find(is_bad) {
        Some(bad) => {
            let kind = bad["type"].as_str().unwrap_or_default();
            degraded(format!("its condition {kind} is True: {}", message(bad)))
        }
        None => healthy(),
    }
}

/// Returns since when a condition is as it is.
fn since(condition: Option<&Value>) -> String {
    let time = condition.and_then(|condition| condition["lastTransitionTime"].as_str());
    time.map(|time| format!(" since {time}")).unwrap_or_default()
}
