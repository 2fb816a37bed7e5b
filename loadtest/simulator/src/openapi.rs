//! The minimal OpenAPI v3 for `kubectl apply`: each kind can be patched with `fieldValidation` and
//! `dryRun`, so the client leaves validation to the server. There are no schemas.

use http::StatusCode;
use serde_json::{Map, Value, json};

use super::discovery::VERSION;
use super::error::StatusError;
use super::resources::{RESOURCES, Resource};
use super::response::{self, ApiResponse};

pub(crate) fn answer(path: &[&str]) -> Result<ApiResponse, StatusError> {
    let document = match path {
        [] => json!({ "paths": {
            "api/v1": { "serverRelativeURL": "/openapi/v3/api/v1" },
            "apis/apps/v1": { "serverRelativeURL": "/openapi/v3/apis/apps/v1" },
        } }),
        ["api", "v1"] => document(""),
        ["apis", "apps", "v1"] => document("apps"),
        _ => return Err(StatusError::no_such_path()),
    };
    Ok(response::json(StatusCode::OK, &document))
}

fn document(group: &str) -> Value {
    let paths: Map<String, Value> =
        RESOURCES.iter().filter(|resource| resource.group == group).map(|resource| path(resource)).collect();
    json!({
        "openapi": "3.0.0",
        "info": { "title": "Kubernetes, simulated", "version": VERSION },
        "paths": paths,
        // `kubectl explain` requests it.
        "components": { "schemas": {} },
    })
}

fn path(resource: &Resource) -> (String, Value) {
    let root = if resource.group.is_empty() { "/api/v1" } else { "/apis/apps/v1" };
    let namespace = if resource.namespaced { "/namespaces/{namespace}" } else { "" };
    let patch = json!({ "patch": {
        "parameters": [
            { "name": "dryRun", "in": "query", "schema": { "type": "string" } },
            { "name": "fieldValidation", "in": "query", "schema": { "type": "string" } },
        ],
        "responses": {},
        "x-kubernetes-action": "patch",
        "x-kubernetes-group-version-kind":
            { "group": resource.group, "version": resource.version, "kind": resource.kind },
    } });
    (format!("{root}{namespace}/{}/{{name}}", resource.plural), patch)
}
