//! The descriptions of the API that clients read first: discovery, OpenAPI and SelfSubjectReview.
//!
//! Discovery is only in the unaggregated form, which every client falls back to. OpenAPI v3 is the minimum for `kubectl
//! apply`: each kind can be patched with `fieldValidation` and `dryRun`, so the client leaves validation to the server; there
//! are no schemas. SelfSubjectReview is for `kubectl auth whoami`: the simulator accepts every caller and every impersonation.

use http::{HeaderMap, HeaderName, Method, StatusCode};
use serde_json::{Map, Value, json};

use crate::simulator::{
    query::decode,
    request::ApiRequest,
    resources::{RESOURCES, Resource},
    response::{self, ApiResponse, StatusError},
    selector::section,
};

/// The version of Kubernetes that the simulator resembles, marked as simulated.
pub(crate) const VERSION: &str = "v1.32.0-simulated";

pub(crate) fn answer(path: &[&str]) -> Result<ApiResponse, StatusError> {
    let document = match path {
        ["version"] => version(),
        ["api"] => json!({ "kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": [] }),
        ["apis"] => json!({ "kind": "APIGroupList", "apiVersion": "v1", "groups": GROUPS.map(group) }),
        ["api", version] => resources("", version)?,
        ["apis", name] => {
            let name =
                GROUPS.into_iter().find(|group| group == name).ok_or_else(StatusError::no_such_path)?;
            let mut group = group(name);
            group["kind"] = "APIGroup".into();
            group["apiVersion"] = "v1".into();
            group
        }
        ["apis", group, version] => resources(group, version)?,
        _ => return Err(StatusError::no_such_path()),
    };
    Ok(response::json(StatusCode::OK, &document))
}

const AUTHENTICATION: &str = "authentication.k8s.io";
const GROUPS: [&str; 5] = ["app.k8s.io", "apps", AUTHENTICATION, "cert-manager.io", "coordination.k8s.io"];

fn version() -> Value {
    json!({
        "major": "1",
        "minor": "32",
        "gitVersion": VERSION,
        "gitCommit": "simulated",
        "gitTreeState": "simulated",
        "buildDate": "1970-01-01T00:00:00Z",
        "goVersion": "none: a simulation written in Rust",
        "compiler": "rustc",
        "platform": "simulated",
    })
}

fn group(name: &str) -> Value {
    let version = json!({ "groupVersion": format!("{name}/v1"), "version": "v1" });
    json!({ "name": name, "versions": [version], "preferredVersion": version })
}

fn resources(group: &str, version: &str) -> Result<Value, StatusError> {
    let of_group = RESOURCES.iter().filter(|kind| (kind.group, kind.version) == (group, version));
    let mut list: Vec<Value> = of_group.flat_map(|resource| describe(resource)).collect();
    if (group, version) == (AUTHENTICATION, "v1") {
        list.push(json!({
            "name": "selfsubjectreviews",
            "singularName": "selfsubjectreview",
            "namespaced": false,
            "kind": "SelfSubjectReview",
            "verbs": ["create"],
        }));
    }
    if list.is_empty() {
        return Err(StatusError::no_such_path());
    }
    let group_version = if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") };
    Ok(json!({
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": group_version,
        "resources": list,
    }))
}

fn describe(resource: &Resource) -> Vec<Value> {
    let mut own = json!({
        "name": resource.plural,
        "singularName": resource.singular,
        "namespaced": resource.namespaced,
        "kind": resource.kind,
        "verbs": ["create", "delete", "get", "list", "patch", "update", "watch"],
        "shortNames": resource.short_names,
    });
    if resource.in_all {
        own["categories"] = json!(["all"]);
    }
    let below = resource.subresources.iter().map(|below| {
        json!({
            "name": format!("{}/{}", resource.plural, below.name),
            "singularName": "",
            "namespaced": resource.namespaced,
            "group": below.group,
            "version": below.version,
            "kind": below.kind,
            "verbs": below.verbs,
        })
    });
    std::iter::once(own).chain(below).collect()
}

/// Responds to a request for the OpenAPI documents.
pub(crate) fn open_api(path: &[&str]) -> Result<ApiResponse, StatusError> {
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

/// The user of a request without impersonation.
const AGENT: &str = "system:serviceaccount:simulated:agentk";

const USER: HeaderName = HeaderName::from_static("impersonate-user");
const UID: HeaderName = HeaderName::from_static("impersonate-uid");
const GROUP: HeaderName = HeaderName::from_static("impersonate-group");
const EXTRA: &str = "impersonate-extra-";

pub(crate) async fn review(mut call: ApiRequest) -> Result<ApiResponse, StatusError> {
    if call.request.method() != Method::POST {
        return Err(StatusError::method_not_allowed());
    }
    let mut review = call.object().await?;
    section(&mut review, "status").insert("userInfo".to_owned(), user(call.request.headers()));
    Ok(response::json(StatusCode::CREATED, &review))
}

fn user(headers: &HeaderMap) -> Value {
    let Some(name) = text(headers, &USER) else {
        return json!({
            "username": AGENT,
            "groups": ["system:serviceaccounts", "system:serviceaccounts:simulated", "system:authenticated"],
        });
    };
    let groups = headers.get_all(GROUP).iter().filter_map(|group| group.to_str().ok());
    let groups: Vec<&str> = groups.chain(["system:authenticated"]).collect();
    let mut user = json!({ "username": name, "groups": groups });
    if let Some(uid) = text(headers, &UID) {
        user["uid"] = uid.into();
    }
    let extra = extra(headers);
    if !extra.is_empty() {
        user["extra"] = Value::Object(extra);
    }
    user
}

/// Collects the headers `Impersonate-Extra-<key>`, which may be repeated.
fn extra(headers: &HeaderMap) -> Map<String, Value> {
    let mut extra = Map::new();
    for name in headers.keys() {
        let Some(key) = name.as_str().strip_prefix(EXTRA) else { continue };
        let values: Vec<&str> =
            headers.get_all(name).iter().filter_map(|value| value.to_str().ok()).collect();
        extra.insert(decode(key).into_owned(), json!(values));
    }
    extra
}

fn text<'headers>(headers: &'headers HeaderMap, name: &HeaderName) -> Option<&'headers str> {
    headers.get(name).and_then(|value| value.to_str().ok())
}
