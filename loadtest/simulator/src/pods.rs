//! Pods: creation from a template, scheduling to the only node, and start.

use std::hash::{DefaultHasher, Hash, Hasher};

use serde_json::{Value, json};

use super::clock;
use super::fields::{fields, items, section, text};

/// The name of the only node.
pub(crate) const NODE: &str = "simulated-node";
pub(crate) const NODE_ADDRESS: &str = "192.0.2.1";

/// The label that identifies the template of a pod.
pub(crate) const TEMPLATE_HASH: &str = "pod-template-hash";

/// Returns a new pod of a deployment.
pub(crate) fn from_template(deployment: &Value, hash: &str, serial: u64) -> Value {
    let template = &deployment["spec"]["template"];
    let name = format!("{}-{hash}-{}", text(deployment, "/metadata/name"), suffix(serial));
    let mut pod = json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": template["metadata"],
        "spec": template["spec"],
    });
    let metadata = section(&mut pod, "metadata");
    metadata.insert("name".to_owned(), name.into());
    // There are no replica sets: the deployment owns its pods.
    metadata.insert(
        "ownerReferences".to_owned(),
        json!([{
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "name": deployment["metadata"]["name"],
            "uid": deployment["metadata"]["uid"],
            "controller": true,
            "blockOwnerDeletion": true,
        }]),
    );
    let labels = fields(metadata.entry("labels").or_insert(Value::Null));
    labels.insert(TEMPLATE_HASH.to_owned(), hash.into());
    pod
}

/// Schedules a new pod to the node, where it is pending.
pub(crate) fn schedule(pod: &mut Value) {
    let spec = section(pod, "spec");
    spec.insert("nodeName".to_owned(), NODE.into());
    spec.entry("restartPolicy").or_insert_with(|| "Always".into());
    let waiting = container_statuses(pod, &json!({ "waiting": { "reason": "ContainerCreating" } }), false);
    let now = clock::timestamp();
    fields(pod).insert(
        "status".to_owned(),
        json!({
            "phase": "Pending",
            "hostIP": NODE_ADDRESS,
            "conditions": [
                condition("PodScheduled", "True", &now),
                condition("Initialized", "True", &now),
                condition("ContainersReady", "False", &now),
                condition("Ready", "False", &now),
            ],
            "containerStatuses": waiting,
        }),
    );
}

/// Sets a pending pod to running.
pub(crate) fn start(pod: &mut Value, serial: u64) {
    let now = clock::timestamp();
    let running = container_statuses(pod, &json!({ "running": { "startedAt": now } }), true);
    let address = format!("10.244.{}.{}", serial / 250 % 250, serial % 250 + 1);
    fields(pod).insert(
        "status".to_owned(),
        json!({
            "phase": "Running",
            "hostIP": NODE_ADDRESS,
            "podIP": address,
            "podIPs": [{ "ip": address }],
            "startTime": now,
            "qosClass": "BestEffort",
            "conditions": [
                condition("PodScheduled", "True", &now),
                condition("Initialized", "True", &now),
                condition("ContainersReady", "True", &now),
                condition("Ready", "True", &now),
            ],
            "containerStatuses": running,
        }),
    );
}

/// Returns whether a pod is ready, which every running pod is.
pub(crate) fn is_running(pod: &Value) -> bool {
    text(pod, "/status/phase") == "Running"
}

/// Returns the uid of the deployment that owns a pod.
pub(crate) fn owner(pod: &Value) -> Option<&str> {
    let owner = items(pod, "/metadata/ownerReferences").iter().find(|owner| owner["kind"] == "Deployment")?;
    owner["uid"].as_str()
}

/// Returns the suffix of a generated name.
pub(crate) fn suffix(serial: u64) -> String {
    letters(hash(&serial), 5)
}

/// Returns a hash of a template.
pub(crate) fn template_hash(deployment: &Value) -> String {
    letters(hash(&deployment["spec"]["template"].to_string()), 10)
}

fn hash(value: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

/// The characters of suffixes: without vowels, as in Kubernetes, so that no suffix is a word.
fn letters(mut number: u64, length: usize) -> String {
    const ALPHABET: &[u8; 27] = b"bcdfghjklmnpqrstvwxz2456789";
    let letter = |_| {
        let letter = ALPHABET[(number % 27) as usize];
        number /= 27;
        char::from(letter)
    };
    (0..length).map(letter).collect()
}

fn container_statuses(pod: &Value, state: &Value, ready: bool) -> Vec<Value> {
    let status = |container: &Value| {
        json!({
            "name": container["name"],
            "image": container["image"],
            "imageID": "",
            "containerID": format!("simulated://{}", text(container, "/name")),
            "ready": ready,
            "started": ready,
            "restartCount": 0,
            "state": state,
        })
    };
    items(pod, "/spec/containers").iter().map(status).collect()
}

fn condition(kind: &str, status: &str, since: &str) -> Value {
    json!({ "type": kind, "status": status, "lastTransitionTime": since })
}
