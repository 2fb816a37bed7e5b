//! Many objects for measurements.

use std::convert::Infallible;

use serde_json::{Map, Value, json};

use crate::simulator::{
    Simulator, clock,
    pods::NODE,
    resources::{CONFIG_MAPS, NAMESPACES, PODS, Resource, SERVICES},
    selector::section,
    store::{Key, Store, WriteMode},
};

/// The namespaces of the objects.
const NAMESPACE_COUNT: usize = 20;
/// The label that [`Simulator::label_pod`] sets.
pub const LABEL: &str = "loadtest";
/// The bytes of a pod without managed fields and variables, and of one of each, approximately.
const POD_BYTES: usize = 1500;
const FIELD_BYTES: usize = 22;
const VARIABLE_BYTES: usize = 75;

impl Simulator {
    /// Adds running pods of about this size, and other small objects, to namespaces `load-0` and so on. Half of the others are
    /// ConfigMaps, and half are Services.
    pub fn fill(&self, pods: usize, pod_bytes: usize, others: usize) {
        let store = &self.cluster.store;
        for number in 0..NAMESPACE_COUNT {
            let name = namespace(number);
            put(store, &NAMESPACES, "", &name, json!({"status": {"phase": "Active"}}));
        }
        for number in 0..pods {
            put(store, &PODS, &namespace(number), &pod_name(number), pod(number, pod_bytes));
        }
        for number in 0..others {
            let namespace = namespace(number / 2);
            if number % 2 == 0 {
                let data = json!({"data": {"value": format!("{number}")}});
                put(store, &CONFIG_MAPS, &namespace, &format!("settings-{number}"), data);
            } else {
                let spec =
                    json!({"spec": {"type": "ClusterIP", "clusterIP": "None", "ports": [{"port": 80}]}});
                put(store, &SERVICES, &namespace, &format!("service-{number}"), spec);
            }
        }
    }

    /// Sets the label [`LABEL`] of a pod that [`Self::fill`] has added.
    pub fn label_pod(&self, number: usize, value: &str) {
        let key = Key::new(&PODS, &namespace(number), &pod_name(number));
        let labelled = self.cluster.store.put(&key, WriteMode::Commit, |before| {
            let mut pod = before.cloned().unwrap_or_default();
            pod["metadata"]["labels"][LABEL] = value.into();
            Ok::<_, Infallible>(pod)
        });
        labelled.map(drop).unwrap_or_else(|never| match never {});
    }
}

fn namespace(number: usize) -> String {
    format!("load-{}", number % NAMESPACE_COUNT)
}

fn pod_name(number: usize) -> String {
    format!("web-{number}")
}

fn put(store: &Store, resource: &Resource, namespace: &str, name: &str, mut object: Value) {
    object["apiVersion"] = resource.api_version().into();
    object["kind"] = resource.kind.into();
    let metadata = section(&mut object, "metadata");
    metadata.insert("name".to_owned(), name.into());
    metadata.insert("uid".to_owned(), format!("00000000-0000-4000-8000-{:012x}", store.serial()).into());
    metadata.insert("creationTimestamp".to_owned(), clock::timestamp().into());
    if resource.namespaced {
        metadata.insert("namespace".to_owned(), namespace.into());
    }
    let key = Key::new(resource, namespace, name);
    let stored = store.put(&key, WriteMode::Commit, |_| Ok::<_, Infallible>(object));
    stored.map(drop).unwrap_or_else(|never| match never {});
}

/// Returns a running pod. As in real ones, most of its bytes are managed fields and variables of its container.
fn pod(number: usize, bytes: usize) -> Value {
    let padding = bytes.saturating_sub(POD_BYTES) / 2;
    let fields = (0..padding / FIELD_BYTES).map(|field| (format!("f:field-{field:05}"), json!({})));
    let variables = (0..padding / VARIABLE_BYTES).map(
        |variable| json!({"name": format!("VARIABLE_{variable:05}"), "value": format!("{:0>40}", number)}),
    );
    let condition =
        |kind: &str| json!({"type": kind, "status": "True", "lastTransitionTime": clock::timestamp()});
    let now = clock::timestamp();
    json!({
        "metadata": {
            "labels": {"app": format!("web-{}", number / 10), "pod-template-hash": "7d9c5b6f4"},
            "managedFields": [{
                "manager": "kubelet", "operation": "Update", "apiVersion": "v1", "time": now, "fieldsType": "FieldsV1",
                "fieldsV1": fields.collect::<Map<_, _>>(),
            }],
        },
        "spec": {
            "nodeName": NODE, "serviceAccountName": "default", "restartPolicy": "Always",
            "containers": [{
                "name": "web", "image": "simulated.invalid/web:1.0", "env": variables.collect::<Vec<_>>(),
                "resources": {"requests": {"cpu": "100m", "memory": "64Mi"}},
            }],
        },
        "status": {
            "phase": "Running", "podIP": "10.0.0.1", "startTime": now,
            "conditions": [condition("Initialized"), condition("Ready"), condition("ContainersReady"), condition("PodScheduled")],
            "containerStatuses": [{
                "name": "web", "ready": true, "started": true, "restartCount": 0, "image": "simulated.invalid/web:1.0",
                "imageID": "simulated.invalid/web@sha256:0", "containerID": "simulated://web",
                "state": {"running": {"startedAt": now}},
            }],
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pod_has_about_the_size() {
        let bytes = pod(7, 19_000).to_string().len();
        assert!((17_500..20_500).contains(&bytes), "{bytes}");
    }
}
