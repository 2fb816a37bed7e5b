//! What the charts render consists of objects that the newest types of Kubernetes have.
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]
#![allow(clippy::disallowed_methods, reason = "there is no runtime")]

use std::{
    fs,
    path::{Path, PathBuf},
};

use k8s_openapi::api::{
    apps::v1::Deployment,
    autoscaling::v2::HorizontalPodAutoscaler,
    core::v1::{ConfigMap, Pod, Secret, Service, ServiceAccount},
    networking::v1::{Ingress, NetworkPolicy},
    policy::v1::PodDisruptionBudget,
    rbac::v1::{ClusterRole, ClusterRoleBinding, Role, RoleBinding},
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;

/// Versions of groups that only old clusters get, and kinds of other projects.
const OTHER_VERSIONS: [&str; 7] = [
    "autoscaling/v2beta2",
    "policy/v1beta1",
    "cert-manager.io/v1",
    "cloud.google.com/v1",
    "gateway.envoyproxy.io/v1alpha1",
    "gateway.networking.k8s.io/v1",
    "monitoring.coreos.com/v1",
];

/// Parses an object as `T`, and writes it again.
fn round_trip<T: DeserializeOwned + Serialize>(object: &Value) -> serde_json::Result<Value> {
    serde_json::to_value(serde_json::from_value::<T>(object.clone())?)
}

fn through_types(object: &Value) -> Option<serde_json::Result<Value>> {
    let parsed = match (object["apiVersion"].as_str()?, object["kind"].as_str()?) {
        ("apps/v1", "Deployment") => round_trip::<Deployment>(object),
        ("autoscaling/v2", "HorizontalPodAutoscaler") => round_trip::<HorizontalPodAutoscaler>(object),
        ("networking.k8s.io/v1", "Ingress") => round_trip::<Ingress>(object),
        ("networking.k8s.io/v1", "NetworkPolicy") => round_trip::<NetworkPolicy>(object),
        ("policy/v1", "PodDisruptionBudget") => round_trip::<PodDisruptionBudget>(object),
        ("rbac.authorization.k8s.io/v1", "ClusterRole") => round_trip::<ClusterRole>(object),
        ("rbac.authorization.k8s.io/v1", "ClusterRoleBinding") => round_trip::<ClusterRoleBinding>(object),
        ("rbac.authorization.k8s.io/v1", "Role") => round_trip::<Role>(object),
        ("rbac.authorization.k8s.io/v1", "RoleBinding") => round_trip::<RoleBinding>(object),
        ("v1", "ConfigMap") => round_trip::<ConfigMap>(object),
        ("v1", "Pod") => round_trip::<Pod>(object),
        ("v1", "Secret") => round_trip::<Secret>(object),
        ("v1", "Service") => round_trip::<Service>(object),
        ("v1", "ServiceAccount") => round_trip::<ServiceAccount>(object),
        _ => return None,
    };
    Some(parsed)
}

/// Collects the paths of values that `after` does not have as `before` has them.
fn collect_lost(before: &Value, after: &Value, path: &str, lost: &mut Vec<String>) {
    match (before, after) {
        (Value::Object(before), Value::Object(after)) => {
            for (key, value) in before {
                let path = format!("{path}.{key}");
                match after.get(key) {
                    Some(after) => collect_lost(value, after, &path, lost),
                    // An empty list is as good as none.
                    None if value.is_null() || value.as_array().is_some_and(Vec::is_empty) => {}
                    None => lost.push(path),
                }
            }
        }
        (Value::Array(before), Value::Array(after)) if before.len() == after.len() => {
            for (index, (before, after)) in before.iter().zip(after).enumerate() {
                collect_lost(before, after, &format!("{path}[{index}]"), lost);
            }
        }
        _ if before == after => {}
        _ => lost.push(path.to_owned()),
    }
}

fn manifests() -> Vec<PathBuf> {
    let deploy = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().join("deploy");
    let directories = ["charts/kas/ci/rendered", "charts/agentk/ci/rendered", "kubernetes"];
    let files = directories.iter().flat_map(|name| fs::read_dir(deploy.join(name)).unwrap());
    let files = files.map(|file| file.unwrap().path());
    let is_manifest = |path: &PathBuf| {
        let name = path.file_name().unwrap().to_str().unwrap();
        name.ends_with(".yaml") && !name.ends_with(".values.yaml")
    };
    files.filter(is_manifest).collect()
}

#[test]
fn rendered_objects_lose_no_field_in_the_newest_types() {
    let (mut errors, mut objects) = (Vec::new(), 0);
    for file in manifests() {
        let text = fs::read_to_string(&file).unwrap().replace("<generated>", "AAAA");
        let name = file.file_name().unwrap().to_string_lossy();
        for object in serde_saphyr::from_multiple::<Value>(&text).unwrap() {
            let Value::Object(_) = object else { continue };
            let kind = format!("{name}: {}", object["kind"]);
            match through_types(&object) {
                Some(Ok(after)) => {
                    objects += 1;
                    collect_lost(&object, &after, &kind, &mut errors);
                }
                Some(Err(error)) => errors.push(format!("{kind}: {error}")),
                None if OTHER_VERSIONS.contains(&object["apiVersion"].as_str().unwrap()) => {}
                None => errors.push(format!("{kind}: the test has no type for {}", object["apiVersion"])),
            }
        }
    }
    assert_eq!(errors, Vec::<String>::new());
    assert!(objects > 200, "{objects} objects were tested");
}
