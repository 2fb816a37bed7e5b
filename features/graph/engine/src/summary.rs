//! The facts about an object that people want to know at a glance, as kubectl prints them.

use proto::graph::Ready;
use serde_json::Value;

/// The most images of one object.
const MAX_IMAGES: usize = 16;
/// The most texts of a detail that is a list.
const MAX_LISTED: usize = 16;

/// The facts of one object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Summary {
    pub(crate) status: String,
    pub(crate) ready: Option<Ready>,
    pub(crate) restarts: u32,
    pub(crate) images: Vec<String>,
    pub(crate) details: Vec<(&'static str, String)>,
}

/// Summarizes an object as the API server returns it.
pub(crate) fn summarize(group: &str, kind: &str, object: &Value) -> Summary {
    let mut summary = Summary { images: images(object), ..Summary::default() };
    match (group, kind) {
        ("", "Pod") => pod(object, &mut summary),
        ("apps", "Deployment" | "ReplicaSet" | "StatefulSet") | ("", "ReplicationController") => {
            let desired = object.pointer("/spec/replicas").map_or(1, count);
            summary.set_ready(at(object, "/status/readyReplicas"), desired);
            if object.pointer("/spec/paused") == Some(&Value::Bool(true)) {
                summary.detail("paused", "true");
            }
        }
        ("apps", "DaemonSet") => {
            summary
                .set_ready(at(object, "/status/numberReady"), at(object, "/status/desiredNumberScheduled"));
        }
        ("batch", "Job") => job(object, &mut summary),
        ("batch", "CronJob") => {
            summary.detail("schedule", text(object, "/spec/schedule"));
            if object.pointer("/spec/suspend") == Some(&Value::Bool(true)) {
                "Suspended".clone_into(&mut summary.status);
            }
        }
        ("", "Service") => service(object, &mut summary),
        ("networking.k8s.io" | "extensions", "Ingress") => {
            summary.detail("class", text(object, "/spec/ingressClassName"));
            summary
                .detail("hosts", join(list(object, "/spec/rules").filter_map(|rule| rule["host"].as_str())));
            summary.detail("address", addresses(object));
        }
        ("gateway.networking.k8s.io", "Gateway") => {
            summary.detail("class", text(object, "/spec/gatewayClassName"));
            let values = list(object, "/status/addresses").filter_map(|address| address["value"].as_str());
            summary.detail("address", join(values));
        }
        ("gateway.networking.k8s.io", _) => {
            summary.detail("hosts", join(list(object, "/spec/hostnames").filter_map(Value::as_str)));
        }
        ("", "PersistentVolumeClaim") => {
            summary.status = text(object, "/status/phase").to_owned();
            summary.detail("volume", text(object, "/spec/volumeName"));
            summary.detail("capacity", text(object, "/status/capacity/storage"));
            summary.detail("class", text(object, "/spec/storageClassName"));
        }
        ("", "PersistentVolume") => {
            summary.status = text(object, "/status/phase").to_owned();
            summary.detail("capacity", text(object, "/spec/capacity/storage"));
            summary.detail("class", text(object, "/spec/storageClassName"));
        }
        ("", "Node") => node(object, &mut summary),
        ("", "Namespace") => summary.status = text(object, "/status/phase").to_owned(),
        ("discovery.k8s.io", "EndpointSlice") => {
            let endpoints = || list(object, "/endpoints");
            // An unknown state counts as ready (discovery/v1).
            let ready = endpoints().filter(|endpoint| endpoint["conditions"]["ready"] != false).count();
            summary.set_ready(small(ready), small(endpoints().count()));
        }
        ("autoscaling", "HorizontalPodAutoscaler") => {
            let current = at(object, "/status/currentReplicas");
            match at(object, "/status/desiredReplicas") {
                // It has not been computed, such as without metrics.
                0 => summary.status = format!("{current} replicas"),
                desired => summary.set_ready(current, desired),
            }
            let minimum = object.pointer("/spec/minReplicas").map_or(1, count);
            summary.detail("bounds", &*format!("{minimum}-{}", at(object, "/spec/maxReplicas")));
        }
        ("policy", "PodDisruptionBudget") => {
            summary.set_ready(at(object, "/status/currentHealthy"), at(object, "/status/desiredHealthy"));
            summary.detail("disruptions", &*at(object, "/status/disruptionsAllowed").to_string());
        }
        // The inventory of a project of GitOps.
        ("", "ConfigMap") => {
            summary.detail(
                "project",
                object["metadata"]["annotations"]["agentk/project"].as_str().unwrap_or_default(),
            );
        }
        ("apiextensions.k8s.io", "CustomResourceDefinition") => {
            let served = list(object, "/spec/versions").filter(|version| version["served"] != false);
            summary.detail("versions", join(served.filter_map(|version| version["name"].as_str())));
        }
        ("storage.k8s.io", "StorageClass") => summary.detail("provisioner", text(object, "/provisioner")),
        ("argoproj.io", "Application") => {
            summary.status = text(object, "/status/sync/status").to_owned();
        }
        _ => {
            let ready = list(object, "/status/conditions").find(|condition| condition["type"] == "Ready");
            if let Some(ready) = ready {
                let is_ready = ready["status"] == "True";
                let reason = ready["reason"].as_str().filter(|reason| !reason.is_empty());
                summary.status = if is_ready { "Ready" } else { reason.unwrap_or("NotReady") }.to_owned();
            }
            let revision = text(object, "/status/lastAppliedRevision");
            let revision =
                if revision.is_empty() { text(object, "/status/artifact/revision") } else { revision };
            summary.detail("revision", revision);
        }
    }
    summary
}

impl Summary {
    fn set_ready(&mut self, ready: u32, desired: u32) {
        self.ready = Some(Ready { ready, desired });
        self.status = format!("{ready}/{desired}");
    }

    fn detail(&mut self, key: &'static str, value: impl AsRef<str>) {
        if !value.as_ref().is_empty() {
            self.details.push((key, value.as_ref().to_owned()));
        }
    }
}

/// The status of a Pod as `printPod` of Kubernetes 1.37 computes it (`pkg/printers/internalversion/printers.go`).
fn pod(object: &Value, summary: &mut Summary) {
    let containers = list(object, "/spec/containers").count();
    let mut reason = text(object, "/status/phase").to_owned();
    let status_reason = text(object, "/status/reason");
    if !status_reason.is_empty() {
        status_reason.clone_into(&mut reason);
    }
    let is_true =
        |kind: &str| list(object, "/status/conditions").any(|c| c["type"] == kind && c["status"] == "True");
    let gated = list(object, "/status/conditions")
        .any(|c| c["type"] == "PodScheduled" && c["reason"] == "SchedulingGated");
    if gated {
        "SchedulingGated".clone_into(&mut reason);
    }

    let (mut ready, mut restarts, mut sidecar_restarts, mut total) = (0_u32, 0_u32, 0_u32, small(containers));
    let specs: Vec<&Value> = list(object, "/spec/initContainers").collect();
    let is_sidecar =
        |name: &Value| specs.iter().any(|spec| spec["name"] == *name && spec["restartPolicy"] == "Always");
    total += small(specs.iter().filter(|spec| spec["restartPolicy"] == "Always").count());
    let mut initializing = false;
    for (place, container) in list(object, "/status/initContainerStatuses").enumerate() {
        restarts = restarts.saturating_add(count(&container["restartCount"]));
        let state = &container["state"];
        let sidecar = is_sidecar(&container["name"]);
        if sidecar {
            sidecar_restarts = sidecar_restarts.saturating_add(count(&container["restartCount"]));
        }
        if let Some(terminated) = state.get("terminated") {
            if count(&terminated["exitCode"]) == 0 && terminated["exitCode"].is_number() {
                continue;
            }
            reason = format!("Init:{}", end_of(terminated));
            initializing = true;
            break;
        }
        if sidecar && container["started"] == true {
            ready += u32::from(container["ready"] == true);
            continue;
        }
        let waiting = state["waiting"]["reason"].as_str().unwrap_or_default();
        reason = match waiting {
            "" | "PodInitializing" => format!("Init:{place}/{}", specs.len()),
            waiting => format!("Init:{waiting}"),
        };
        initializing = true;
        break;
    }
    if !initializing || is_true("Initialized") {
        restarts = sidecar_restarts;
        let mut running = false;
        let statuses: Vec<&Value> = list(object, "/status/containerStatuses").collect();
        for container in statuses.into_iter().rev() {
            restarts = restarts.saturating_add(count(&container["restartCount"]));
            let state = &container["state"];
            let waiting = state["waiting"]["reason"].as_str().unwrap_or_default();
            if !waiting.is_empty() {
                waiting.clone_into(&mut reason);
            } else if let Some(terminated) = state.get("terminated") {
                reason = end_of(terminated);
            } else if container["ready"] == true && state.get("running").is_some() {
                running = true;
                ready += 1;
            }
        }
        if reason == "Completed" && running {
            reason = if is_true("Ready") { "Running" } else { "NotReady" }.to_owned();
        }
    }
    if object["metadata"].get("deletionTimestamp").is_some() {
        let ended = matches!(text(object, "/status/phase"), "Succeeded" | "Failed");
        if status_reason == "NodeLost" {
            "Unknown".clone_into(&mut reason);
        } else if !ended {
            "Terminating".clone_into(&mut reason);
        }
    }
    summary.status = reason;
    summary.ready = Some(Ready { ready, desired: total });
    summary.restarts = restarts;
    summary.detail("node", text(object, "/spec/nodeName"));
    summary.detail("ip", text(object, "/status/podIP"));
}

/// Returns the reason why a container has ended.
fn end_of(terminated: &Value) -> String {
    match terminated["reason"].as_str().filter(|reason| !reason.is_empty()) {
        Some(reason) => reason.to_owned(),
        None if count(&terminated["signal"]) != 0 => format!("Signal:{}", count(&terminated["signal"])),
        None => format!("ExitCode:{}", terminated["exitCode"].as_i64().unwrap_or(0)),
    }
}

fn job(object: &Value, summary: &mut Summary) {
    let is_true =
        |kind: &str| list(object, "/status/conditions").any(|c| c["type"] == kind && c["status"] == "True");
    let completions = object.pointer("/spec/completions").or_else(|| object.pointer("/spec/parallelism"));
    summary.set_ready(at(object, "/status/succeeded"), completions.map_or(1, count));
    let status = ["Complete", "Failed", "Suspended"].into_iter().find(|kind| is_true(kind));
    let deleted = object["metadata"].get("deletionTimestamp").is_some();
    summary.status = status.unwrap_or(if deleted { "Terminating" } else { "Running" }).to_owned();
}

fn service(object: &Value, summary: &mut Summary) {
    let kind = text(object, "/spec/type");
    summary.status = kind.to_owned();
    summary.detail("cluster_ip", text(object, "/spec/clusterIP"));
    let target = if kind == "ExternalName" {
        text(object, "/spec/externalName").to_owned()
    } else {
        addresses(object)
    };
    summary.detail("address", target);
    let ports = list(object, "/spec/ports").take(MAX_LISTED).map(|port| {
        let protocol = port["protocol"].as_str().unwrap_or("TCP");
        let outside = port["nodePort"].as_i64().filter(|port| *port != 0);
        let outside = outside.map(|port| format!(":{port}")).unwrap_or_default();
        format!("{}{outside}/{protocol}", count(&port["port"]))
    });
    summary.detail("ports", ports.collect::<Vec<_>>().join(","));
}

fn node(object: &Value, summary: &mut Summary) {
    let ready = list(object, "/status/conditions").find(|condition| condition["type"] == "Ready");
    let mut status = match ready.map(|condition| &condition["status"]) {
        Some(status) if status == "True" => "Ready",
        Some(_) => "NotReady",
        None => "Unknown",
    }
    .to_owned();
    if object.pointer("/spec/unschedulable") == Some(&Value::Bool(true)) {
        status += ",SchedulingDisabled";
    }
    summary.status = status;
    summary.detail("version", text(object, "/status/nodeInfo/kubeletVersion"));
}

fn images(object: &Value) -> Vec<String> {
    let places = [
        "/spec/containers",
        "/spec/template/spec/containers",
        "/spec/jobTemplate/spec/template/spec/containers",
    ];
    let containers = places.into_iter().flat_map(|place| list(object, place));
    containers
        .filter_map(|container| container["image"].as_str())
        .map(str::to_owned)
        .take(MAX_IMAGES)
        .collect()
}

/// The addresses at which a load balancer serves the object.
fn addresses(object: &Value) -> String {
    let entries = list(object, "/status/loadBalancer/ingress");
    join(entries.filter_map(|entry| entry["ip"].as_str().or_else(|| entry["hostname"].as_str())))
}

fn join<'a>(texts: impl Iterator<Item = &'a str>) -> String {
    texts.take(MAX_LISTED).collect::<Vec<_>>().join(",")
}

fn list<'a>(object: &'a Value, pointer: &str) -> impl Iterator<Item = &'a Value> {
    object.pointer(pointer).and_then(Value::as_array).into_iter().flatten()
}

fn text<'a>(object: &'a Value, pointer: &str) -> &'a str {
    object.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

fn at(object: &Value, pointer: &str) -> u32 {
    object.pointer(pointer).map_or(0, count)
}

/// A number of the object that cannot be negative.
fn count(value: &Value) -> u32 {
    value.as_i64().and_then(|number| number.try_into().ok()).unwrap_or(0)
}

fn small(number: usize) -> u32 {
    number.try_into().unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The golden file: one document for each case, with the expected summary in the annotation `expected`.
    #[test]
    fn cases_have_their_summary() {
        let cases: Vec<Value> = serde_saphyr::from_multiple(include_str!("summary_cases.yaml")).unwrap();
        assert!(cases.len() >= 30, "only {} cases", cases.len());
        for case in cases {
            let expected = case["metadata"]["annotations"]["expected"].as_str().unwrap();
            let api = case["apiVersion"].as_str().unwrap();
            let group = api.split_once('/').map_or("", |(group, _)| group);
            let summary = summarize(group, case["kind"].as_str().unwrap(), &case);
            let mut found = summary.status.clone();
            if let Some(Ready { ready, desired }) = summary.ready {
                found += &format!(" {ready}/{desired}");
            }
            if summary.restarts > 0 {
                found += &format!(" restarts={}", summary.restarts);
            }
            for image in &summary.images {
                found += &format!(" image={image}");
            }
            for (key, value) in &summary.details {
                found += &format!(" {key}={value}");
            }
            assert_eq!(found.trim(), expected, "{}", case["metadata"]["name"]);
        }
    }
}
