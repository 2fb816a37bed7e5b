//! The CPU and the memory that a node offers to Pods, and those that a Pod has requested.

use proto::graph::Amounts;
use serde_json::Value;

use crate::quantity;

/// Returns what an object offers or has requested: a node that Pods can use, or a Pod that runs on a node or will.
pub(crate) fn amounts(group: &str, kind: &str, object: &Value) -> Amounts {
    match (group, kind) {
        ("", "Node") => listed(&object["status"]["allocatable"]),
        ("", "Pod") if holds_resources(object) => requested(&object["spec"]),
        _ => Amounts::default(),
    }
}

/// Returns whether a Pod has a place on a node: the scheduler counts its requests there.
fn holds_resources(pod: &Value) -> bool {
    let has_node = pod["spec"]["nodeName"].as_str().is_some_and(|node| !node.is_empty());
    has_node && !matches!(pod["status"]["phase"].as_str(), Some("Succeeded" | "Failed"))
}

/// Returns the requests of a Pod, as the scheduler adds them up (`PodRequests` of Kubernetes): init containers run one after the other,
/// beside the sidecars that were started before.
fn requested(spec: &Value) -> Amounts {
    let of = |container: &Value| listed(&container["resources"]["requests"]);
    let list = |key: &str| spec[key].as_array().into_iter().flatten();
    let containers = list("containers").map(of).fold(Amounts::default(), Amounts::plus);
    let (mut sidecars, mut start) = (Amounts::default(), Amounts::default());
    for container in list("initContainers") {
        if container["restartPolicy"] == "Always" {
            sidecars = sidecars.plus(of(container));
            start = larger(start, sidecars);
        } else {
            start = larger(start, sidecars.plus(of(container)));
        }
    }
    let pod = &spec["resources"]["requests"];
    let counted = larger(containers.plus(sidecars), start);
    // Requests of the whole Pod take precedence (Kubernetes 1.34).
    let counted = Amounts {
        cpu_millicores: amount(&pod["cpu"], 1000).unwrap_or(counted.cpu_millicores),
        memory_bytes: amount(&pod["memory"], 1).unwrap_or(counted.memory_bytes),
    };
    counted.plus(listed(&spec["overhead"]))
}

fn listed(list: &Value) -> Amounts {
    let cpu_millicores = amount(&list["cpu"], 1000).unwrap_or_default();
    Amounts { cpu_millicores, memory_bytes: amount(&list["memory"], 1).unwrap_or_default() }
}

fn amount(value: &Value, unit: u64) -> Option<u64> {
    match value {
        Value::String(text) => quantity::parse(text, unit),
        Value::Number(number) => quantity::parse(&number.to_string(), unit),
        _ => None,
    }
}

fn larger(one: Amounts, other: Amounts) -> Amounts {
    Amounts {
        cpu_millicores: one.cpu_millicores.max(other.cpu_millicores),
        memory_bytes: one.memory_bytes.max(other.memory_bytes),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn of_pod(spec: &Value) -> (u64, u64) {
        let Amounts { cpu_millicores, memory_bytes } = requested(spec);
        (cpu_millicores, memory_bytes)
    }

    fn container(cpu: &str, memory: &str) -> Value {
        json!({"resources": {"requests": {"cpu": cpu, "memory": memory}}})
    }

    fn sidecar(cpu: &str, memory: &str) -> Value {
        let mut container = container(cpu, memory);
        container["restartPolicy"] = "Always".into();
        container
    }

    /// The cases of `TestPodRequestsAndLimits` of Kubernetes that concern requests.
    #[test]
    fn requests_of_a_pod_are_those_of_the_scheduler() {
        for (spec, expected) in [
            (json!({}), (0, 0)),
            (json!({"containers": [container("250m", "1Ki"), container("1", "1Ki")]}), (1250, 2048)),
            (
                json!({"containers": [container("1", "2")], "initContainers": [container("3", "1")]}),
                (3000, 2),
            ),
            (
                json!({"containers": [container("1", "1")], "initContainers": [sidecar("1", "1"), container("5", "1")]}),
                (6000, 2),
            ),
            (
                json!({"containers": [container("4", "1")], "initContainers": [container("3", "1"), sidecar("2", "1")]}),
                (6000, 2),
            ),
            (
                json!({"containers": [container("1", "1")], "overhead": {"cpu": "100m", "memory": "9"}}),
                (1100, 10),
            ),
            (
                json!({"containers": [container("1", "1")], "resources": {"requests": {"cpu": "7"}}}),
                (7000, 1),
            ),
            (json!({"containers": [container("x", "-1"), {"resources": 3}, container("1", "")]}), (1000, 0)),
        ] {
            assert_eq!(of_pod(&spec), expected, "{spec}");
        }
    }

    #[test]
    fn pod_without_a_node_or_that_has_ended_requests_nothing() {
        let pod = |node: Value, phase: &str| {
            let spec = json!({"nodeName": node, "containers": [container("1", "1")]});
            amounts("", "Pod", &json!({"spec": spec, "status": {"phase": phase}})).cpu_millicores
        };
        assert_eq!(pod("a".into(), "Running"), 1000);
        assert_eq!(pod("a".into(), "Pending"), 1000);
        assert_eq!(
            [pod("a".into(), "Succeeded"), pod("a".into(), "Failed"), pod(Value::Null, "Pending")],
            [0; 3]
        );
        assert_eq!(amounts("example.com", "Pod", &json!({"spec": {"nodeName": "a"}})), Amounts::default());
    }
}
