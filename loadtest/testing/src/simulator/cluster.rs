//! The state that all parts of the simulator share: the store with its initial objects, the stop token and the number of open
//! streams.

use std::sync::Arc;

use serde_json::{Value, json};
use tokio::sync::watch;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::simulator::{
    admission, clock,
    discovery::VERSION,
    pods::{NODE, NODE_ADDRESS},
    resources::{CONFIG_MAPS, DEPLOYMENTS, EVENTS, NAMESPACES, NODES, Resource, SECRETS, SERVICES},
    response::StatusError,
    store::{Store, WriteMode},
};

/// The simulated cluster.
#[derive(Debug, Default)]
pub(crate) struct Cluster {
    pub store: Store,
    pub stop: CancellationToken,
    pub tasks: TaskTracker,
    streams: watch::Sender<usize>,
}

impl Cluster {
    /// Counts a stream as open until the returned guard is dropped.
    pub(crate) fn open_stream(self: &Arc<Self>) -> OpenStream {
        self.streams.send_modify(|open| *open += 1);
        OpenStream(Arc::clone(self))
    }

    pub(crate) fn open_streams(&self) -> watch::Receiver<usize> {
        self.streams.subscribe()
    }
}

/// The guard of an open watch, followed log, exec session or forwarded port.
#[derive(Debug)]
pub(crate) struct OpenStream(Arc<Cluster>);

impl Drop for OpenStream {
    fn drop(&mut self) {
        self.0.streams.send_modify(|open| *open -= 1);
    }
}

/// Creates the initial objects. The controller creates their pods.
pub(crate) fn plant(store: &Store) -> Result<(), StatusError> {
    for namespace in ["default", "kube-system", "demo"] {
        let namespace = object(&NAMESPACES, namespace, json!({}));
        create(store, &NAMESPACES, None, namespace)?;
    }
    create(store, &NODES, None, node())?;
    create(store, &EVENTS, Some("default"), event())?;
    for (namespace, name, replicas, image, port) in [
        ("demo", "web", 3, "simulated.invalid/web:1.0", 8080),
        ("demo", "api", 2, "simulated.invalid/api:1.0", 8081),
        ("kube-system", "coredns", 2, "simulated.invalid/coredns:1.0", 53),
    ] {
        create(store, &DEPLOYMENTS, Some(namespace), deployment(name, replicas, image, port))?;
        create(store, &SERVICES, Some(namespace), service(name, port))?;
    }
    let settings =
        object(&CONFIG_MAPS, "web-config", json!({ "data": { "greeting": "hello, simulated world" } }));
    create(store, &CONFIG_MAPS, Some("demo"), settings)?;
    // "simulated" in base64.
    let secret = json!({ "type": "Opaque", "data": { "password": "c2ltdWxhdGVk" } });
    create(store, &SECRETS, Some("demo"), object(&SECRETS, "web-secret", secret))
}

pub(super) fn create(
    store: &Store,
    resource: &Resource,
    namespace: Option<&str>,
    object: Value,
) -> Result<(), StatusError> {
    let (key, object) = admission::create(store, resource, namespace, object)?;
    store.put(&key, WriteMode::Commit, |_| Ok(object)).map(drop)
}

pub(super) fn object(resource: &Resource, name: &str, mut rest: Value) -> Value {
    rest["apiVersion"] = resource.api_version().into();
    rest["kind"] = resource.kind.into();
    rest["metadata"] = json!({
        "name": name,
        "labels": { "app": name },
        "annotations": { "kas-simulator": "this is not a real cluster" },
    });
    rest
}

pub(super) fn deployment(name: &str, replicas: u64, image: &str, port: u16) -> Value {
    let labels = json!({ "app": name });
    let container =
        json!({ "name": name, "image": image, "ports": [{ "containerPort": port, "protocol": "TCP" }] });
    let spec = json!({
        "replicas": replicas,
        "selector": { "matchLabels": labels },
        "template": { "metadata": { "labels": labels }, "spec": { "containers": [container] } },
    });
    object(&DEPLOYMENTS, name, json!({ "spec": spec }))
}

fn service(name: &str, port: u16) -> Value {
    let ports = json!([{ "name": "main", "port": port, "targetPort": port, "protocol": "TCP" }]);
    object(&SERVICES, name, json!({ "spec": { "selector": { "app": name }, "ports": ports } }))
}

fn node() -> Value {
    let capacity = json!({ "cpu": "4", "memory": "8Gi", "pods": "1000" });
    let status = json!({
        "capacity": capacity,
        "allocatable": capacity,
        "addresses": [
            { "type": "InternalIP", "address": NODE_ADDRESS },
            { "type": "Hostname", "address": NODE },
        ],
        "conditions": [{
            "type": "Ready",
            "status": "True",
            "reason": "Simulated",
            "message": "this node does not exist",
            "lastHeartbeatTime": clock::timestamp(),
            "lastTransitionTime": clock::timestamp(),
        }],
        "nodeInfo": {
            "kubeletVersion": VERSION,
            "kubeProxyVersion": VERSION,
            "containerRuntimeVersion": "simulated://1",
            "kernelVersion": "simulated",
            "osImage": "simulated",
            "operatingSystem": "linux",
            "architecture": "simulated",
            "machineID": "",
            "systemUUID": "",
            "bootID": "",
        },
    });
    object(&NODES, NODE, json!({ "spec": { "podCIDR": "10.244.0.0/16" }, "status": status }))
}

fn event() -> Value {
    let now = clock::timestamp();
    object(
        &EVENTS,
        "simulated-node.simulated",
        json!({
            "type": "Normal",
            "reason": "Simulated",
            "message": "this is not a real cluster: the node and its pods do not exist",
            "involvedObject": { "apiVersion": "v1", "kind": "Node", "name": NODE },
            "source": { "component": "kas-simulator" },
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
        }),
    )
}
