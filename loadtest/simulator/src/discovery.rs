//! Discovery of groups, versions and kinds, only in the unaggregated form, which every client
//! falls back to.

use http::StatusCode;
use serde_json::{Value, json};

use super::error::StatusError;
use super::resources::{RESOURCES, Resource};
use super::response::{self, ApiResponse};

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
const GROUPS: [&str; 2] = ["apps", AUTHENTICATION];

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
