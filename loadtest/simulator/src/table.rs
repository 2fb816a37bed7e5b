//! The columns that `kubectl get` prints for each kind.

use serde_json::{Value, json};

use super::clock;
use super::fields::{items, number, text};
use super::resources::Resource;

/// A column in the table of a kind.
#[derive(Debug)]
pub(crate) struct Column {
    name: &'static str,
    /// True if the column is shown only with `-o wide`.
    wide: bool,
    cell: fn(&Value) -> Value,
}

/// Returns the columns of a kind. The default is name and age.
pub(crate) fn columns(resource: &Resource) -> &'static [Column] {
    match resource.plural {
        "configmaps" => const { &[NAME, column("Data", data), AGE] },
        "deployments" => DEPLOYMENTS,
        "events" => EVENTS,
        "namespaces" => const { &[NAME, column("Status", |object| at(object, "/status/phase")), AGE] },
        "nodes" => NODES,
        "pods" => PODS,
        "services" => SERVICES,
        _ => &[NAME, AGE],
    }
}

impl Column {
    /// Returns its `columnDefinitions` entry.
    pub(crate) fn definition(&self) -> Value {
        let format = if self.name == NAME.name { "name" } else { "" };
        json!({
            "name": self.name,
            "type": "string",
            "format": format,
            "description": "",
            "priority": u8::from(self.wide),
        })
    }

    pub(crate) fn cell(&self, object: &Value) -> Value {
        (self.cell)(object)
    }
}

const NAME: Column = column("Name", |object| at(object, "/metadata/name"));
const AGE: Column = column("Age", |object| age(text(object, "/metadata/creationTimestamp")));

const PODS: &[Column] = &[
    NAME,
    column("Ready", |pod| {
        let containers = items(pod, "/status/containerStatuses");
        let ready = containers.iter().filter(|container| container["ready"] == true).count();
        format!("{ready}/{}", items(pod, "/spec/containers").len()).into()
    }),
    column("Status", |pod| {
        let containers = items(pod, "/status/containerStatuses").iter();
        let waiting = containers.map(|container| text(container, "/state/waiting/reason"));
        let phase = text(pod, "/status/phase");
        waiting.chain([phase]).find(|reason| !reason.is_empty()).unwrap_or_default().into()
    }),
    column("Restarts", |_| "0".into()),
    AGE,
    wide("IP", |pod| at(pod, "/status/podIP")),
    wide("Node", |pod| at(pod, "/spec/nodeName")),
];

const DEPLOYMENTS: &[Column] = &[
    NAME,
    column("Ready", |object| {
        format!("{}/{}", count(object, "/status/readyReplicas"), count(object, "/spec/replicas")).into()
    }),
    column("Up-to-date", |object| count(object, "/status/updatedReplicas").into()),
    column("Available", |object| count(object, "/status/availableReplicas").into()),
    AGE,
    wide("Containers", |object| join(items(object, "/spec/template/spec/containers"), "/name")),
    wide("Images", |object| join(items(object, "/spec/template/spec/containers"), "/image")),
];

const SERVICES: &[Column] = &[
    NAME,
    column("Type", |object| at(object, "/spec/type")),
    column("Cluster-IP", |object| at(object, "/spec/clusterIP")),
    column("External-IP", |_| "<none>".into()),
    column("Port(s)", |object| {
        let ports = items(object, "/spec/ports").iter();
        let ports = ports.map(|port| {
            let protocol = port["protocol"].as_str().unwrap_or("TCP");
            format!("{}/{protocol}", number(port, "/port").unwrap_or_default())
        });
        ports.collect::<Vec<_>>().join(",").into()
    }),
    AGE,
];

const NODES: &[Column] = &[
    NAME,
    column("Status", |_| "Ready".into()),
    column("Roles", |_| "<none>".into()),
    AGE,
    column("Version", |node| at(node, "/status/nodeInfo/kubeletVersion")),
];

const EVENTS: &[Column] = &[
    column("Last Seen", |event| age(text(event, "/lastTimestamp"))),
    column("Type", |event| at(event, "/type")),
    column("Reason", |event| at(event, "/reason")),
    column("Object", |event| {
        let kind = text(event, "/involvedObject/kind").to_lowercase();
        format!("{kind}/{}", text(event, "/involvedObject/name")).into()
    }),
    column("Message", |event| at(event, "/message")),
];

const fn column(name: &'static str, cell: fn(&Value) -> Value) -> Column {
    Column { name, wide: false, cell }
}

const fn wide(name: &'static str, cell: fn(&Value) -> Value) -> Column {
    Column { name, wide: true, cell }
}

fn at(object: &Value, pointer: &str) -> Value {
    let text = text(object, pointer);
    if text.is_empty() { "<none>".into() } else { text.into() }
}

fn count(object: &Value, pointer: &str) -> String {
    number(object, pointer).unwrap_or_default().to_string()
}

fn data(object: &Value) -> Value {
    let entries = |field: &str| object[field].as_object().map_or(0, serde_json::Map::len);
    (entries("data") + entries("binaryData")).to_string().into()
}

fn join(objects: &[Value], pointer: &str) -> Value {
    objects.iter().map(|object| text(object, pointer)).collect::<Vec<_>>().join(",").into()
}

fn age(since: &str) -> Value {
    clock::parse(since).map_or_else(|| "<unknown>".into(), |since| clock::age(clock::now() - since).into())
}
