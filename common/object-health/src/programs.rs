//! The health of objects of well-known programs for which data is not enough.

use serde_json::Value;

use crate::{
    Assessment, NOT_OBSERVED, condition, conditions, degraded, healthy, integer, is_current, is_true,
    message, number, progressing, suspended,
};

pub(crate) fn workflow(object: &Value) -> Assessment {
    match object.pointer("/status/phase").and_then(Value::as_str).unwrap_or_default() {
        "Succeeded" => healthy(),
        "Failed" | "Error" => degraded(
            object.pointer("/status/message").and_then(Value::as_str).unwrap_or("the workflow has failed"),
        ),
        _ => progressing("it has not ended"),
    }
}

pub(crate) fn gateway(object: &Value) -> Assessment {
    let generation = number(object, "/metadata/generation");
    let of = |pointer: &str| object.pointer(pointer).and_then(Value::as_array).into_iter().flatten();
    let nested = ["/status/listeners", "/status/parents", "/status/ancestors"].into_iter().flat_map(of);
    let nested = nested.flat_map(|part| part["conditions"].as_array().into_iter().flatten());
    let all: Vec<&Value> = conditions(object)
        .chain(nested)
        .filter(|condition| {
            integer(&condition["observedGeneration"]).is_none_or(|observed| observed >= generation)
        })
        .collect();
    let has =
        |kind: &str, status: &str| all.iter().find(|c| c["type"] == kind && c["status"] == status).copied();
    if let Some(bad) = has("ResolvedRefs", "False").or_else(|| has("Accepted", "False")) {
        return degraded(message(bad));
    }
    let is_open =
        |c: &&&Value| (c["type"] == "Accepted" || c["type"] == "Programmed") && c["status"] != "True";
    match all.iter().find(is_open) {
        Some(waiting) => progressing(message(waiting)),
        None if all.is_empty() => progressing(NOT_OBSERVED),
        None => healthy(),
    }
}

pub(crate) fn certificate(object: &Value) -> Assessment {
    if is_true(object, "Issuing") {
        return progressing("it is being issued");
    }
    by_ready(object)
}

pub(crate) fn flux(object: &Value) -> Assessment {
    if object.pointer("/spec/suspend") == Some(&Value::Bool(true)) {
        return suspended("it is suspended");
    }
    // Flux writes no status of these.
    let is_static = object["kind"] == "Alert"
        || object["kind"] == "Provider"
        || object.pointer("/spec/type").is_some_and(|kind| kind == "oci");
    if is_static && conditions(object).next().is_none() {
        return healthy();
    }
    by_ready(object)
}

/// Assesses an object by its condition `Ready`, unless the object has changed since.
fn by_ready(object: &Value) -> Assessment {
    let ready = condition(object, "Ready");
    if !is_current(object, ready) {
        return progressing(NOT_OBSERVED);
    }
    match ready {
        Some(ready) if ready["status"] == "True" => healthy(),
        Some(ready) if ready["status"] == "False" => degraded(message(ready)),
        _ => progressing("it is not ready"),
    }
}
