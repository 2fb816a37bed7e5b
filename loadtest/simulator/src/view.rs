//! The representations of objects: as they are, or as rows of a `Table` for `kubectl get`.

use std::sync::Arc;

use bytes::Bytes;
use http::StatusCode;
use serde::Serialize;
use serde_json::{Value, json};

use super::request::ApiRequest;
use super::resources::Resource;
use super::response::{self, ApiResponse, encode};
use super::table::{Column, columns};

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
