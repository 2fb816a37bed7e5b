//! The representations of objects: as they are, or as rows of a `Table` for `kubectl get`, with the columns of each kind.

use std::sync::Arc;

use bytes::Bytes;
use http::StatusCode;
use serde::Serialize;
use serde_json::{Value, json};

use crate::simulator::{
    clock,
    request::ApiRequest,
    resources::Resource,
    response::{self, ApiResponse, encode},
    selector::{items, number, text},
};

/// The representation that the caller accepts.
#[derive(Clone, Copy, Debug)]
pub(crate) enum View {
    Plain,
    Table(RowObject),
}

/// The part of the object in its row.
#[derive(Clone, Copy, Debug)]
pub(crate) enum RowObject {
    Nothing,
    Metadata,
    Everything,
}

impl View {
    pub(crate) fn of(call: &ApiRequest) -> Self {
        let table = call.accept().split(',').any(|range| {
            let mut parameters = range.split(';').map(str::trim);
            parameters.next() == Some("application/json")
                && parameters.clone().any(|parameter| parameter == "as=Table")
                && parameters.any(|parameter| parameter == "v=v1")
        });
        match call.query.get("includeObject") {
            _ if !table => Self::Plain,
            Some("None") => Self::Table(RowObject::Nothing),
            Some("Object") => Self::Table(RowObject::Everything),
            _ => Self::Table(RowObject::Metadata),
        }
    }

    /// Returns a list with its `metadata`.
    pub(crate) fn list(self, resource: &Resource, metadata: &Value, objects: &[Arc<Value>]) -> ApiResponse {
        let Self::Table(row_object) = self else {
            let list = List {
                kind: format!("{}List", resource.kind),
                api_version: resource.api_version(),
                metadata,
                items: objects.iter().map(AsRef::as_ref).collect(),
            };
            return response::json(StatusCode::OK, &list);
        };
        let rows = objects.iter().map(|object| row(columns(resource), row_object, object)).collect();
        response::json(StatusCode::OK, &table(resource, metadata, rows))
    }

    /// Returns one object.
    pub(crate) fn one(self, code: StatusCode, resource: &Resource, object: &Value) -> ApiResponse {
        match self {
            Self::Plain => response::json(code, object),
            Self::Table(row_object) => response::json(code, &one_row(resource, row_object, object)),
        }
    }

    /// Returns one line of a watch.
    pub(crate) fn event(self, resource: &Resource, kind: &str, object: &Value) -> Bytes {
        let line = match self {
            Self::Plain => encode(&json!({ "type": kind, "object": object })),
            Self::Table(row_object) => {
                encode(&json!({ "type": kind, "object": one_row(resource, row_object, object) }))
            }
        };
        [&line, b"\n".as_slice()].concat().into()
    }

    /// Returns a bookmark line of a watch with its revision. At the end of the initial events it
    /// carries their annotation.
    pub(crate) fn bookmark(self, resource: &Resource, revision: u64, initial_end: bool) -> Bytes {
        let mut metadata = json!({ "resourceVersion": revision.to_string() });
        if initial_end {
            metadata["annotations"] = json!({ "k8s.io/initial-events-end": "true" });
        }
        let object = match self {
            Self::Plain => {
                json!({ "kind": resource.kind, "apiVersion": resource.api_version(), "metadata": metadata })
            }
            Self::Table(_) => table(resource, &metadata, Vec::new()),
        };
        Self::Plain.event(resource, "BOOKMARK", &object)
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct List<'list> {
    kind: String,
    api_version: String,
    metadata: &'list Value,
    items: Vec<&'list Value>,
}

fn one_row(resource: &Resource, row_object: RowObject, object: &Value) -> Value {
    let metadata = json!({ "resourceVersion": object["metadata"]["resourceVersion"] });
    table(resource, &metadata, vec![row(columns(resource), row_object, object)])
}

fn table(resource: &Resource, metadata: &Value, rows: Vec<Value>) -> Value {
    let definitions: Vec<Value> = columns(resource).iter().map(Column::definition).collect();
    json!({
        "kind": "Table",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": metadata,
        "columnDefinitions": definitions,
        "rows": rows,
    })
}

fn row(columns: &[Column], row_object: RowObject, object: &Value) -> Value {
    let cells: Vec<Value> = columns.iter().map(|column| column.cell(object)).collect();
    match row_object {
        RowObject::Nothing => json!({ "cells": cells }),
        RowObject::Everything => json!({ "cells": cells, "object": object }),
        RowObject::Metadata => json!({ "cells": cells, "object": {
            "kind": "PartialObjectMetadata",
            "apiVersion": "meta.k8s.io/v1",
            "metadata": object["metadata"],
        } }),
    }
}

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
