//! The charts render only objects whose fields are in the newest types of Kubernetes.
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]
#![allow(clippy::disallowed_methods, reason = "there is no runtime")]

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use k8s_openapi::api::{
    admissionregistration::v1::ValidatingWebhookConfiguration,
    apps::v1::Deployment,
    autoscaling::v2::HorizontalPodAutoscaler,
    core::v1::{ConfigMap, PersistentVolumeClaim, Pod, Secret, Service, ServiceAccount},
    networking::v1::{Ingress, NetworkPolicy},
    policy::v1::PodDisruptionBudget,
    rbac::v1::{ClusterRole, ClusterRoleBinding, Role, RoleBinding},
};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;
use testing::skip::{helm, skipped};

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
        ("admissionregistration.k8s.io/v1", "ValidatingWebhookConfiguration") => {
            round_trip::<ValidatingWebhookConfiguration>(object)
        }
        ("apiextensions.k8s.io/v1", "CustomResourceDefinition") => {
            round_trip::<CustomResourceDefinition>(object)
        }
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
        ("v1", "PersistentVolumeClaim") => round_trip::<PersistentVolumeClaim>(object),
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

fn deploy() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy")
}

fn files(directory: &Path) -> impl Iterator<Item = PathBuf> {
    fs::read_dir(directory).unwrap().map(|file| file.unwrap().path())
}

/// Renders a chart with a values file, for the version of Kubernetes that its comment names or for a recent one.
fn render(helm: &Path, chart: &str, values: &Path) -> String {
    let text = fs::read_to_string(values).unwrap();
    let version = text.lines().find_map(|line| line.strip_prefix("# kube-version: ")).unwrap_or("1.34.0");
    let mut command = Command::new(helm);
    command.args(["template", chart]).arg(deploy().join("charts").join(chart)).arg("--values").arg(values);
    let output = command.args(["--namespace", chart, "--kube-version", version]).output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {error}", values.display());
    String::from_utf8(output.stdout).unwrap()
}

/// Returns how many objects of `text` the types have, and fails if one has a field that the types do not have.
fn check_objects(name: &str, text: &str) -> usize {
    let (mut errors, mut objects) = (Vec::new(), 0);
    for object in serde_saphyr::from_multiple::<Value>(text).unwrap() {
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
    assert_eq!(errors, Vec::<String>::new());
    objects
}

#[test]
fn committed_objects_lose_no_field_in_the_newest_types() {
    let mut objects = 0;
    for file in files(&deploy().join("kubernetes")) {
        let name = file.file_name().unwrap().to_str().unwrap();
        if name.ends_with(".yaml") && !name.ends_with(".values.yaml") {
            objects += check_objects(name, &fs::read_to_string(&file).unwrap());
        }
    }
    assert!(objects > 20, "{objects} objects were tested");
}

#[test]
fn rendered_objects_lose_no_field_in_the_newest_types() {
    let Some(helm) = helm() else { return skipped("there is no helm") };
    let mut objects = 0;
    for chart in ["kas", "agentk"] {
        for values in files(&deploy().join("charts").join(chart).join("ci")) {
            let name = values.file_name().unwrap().to_str().unwrap();
            if name.ends_with("-values.yaml") {
                objects += check_objects(&format!("{chart} {name}"), &render(&helm, chart, &values));
            }
        }
    }
    assert!(objects > 200, "{objects} objects were tested");
}
