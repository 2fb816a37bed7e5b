//! Fields that agentk writes when it creates an object, and leaves to others from then on.
//!
//! They are those of `ignore_differences`, and known ones: the replicas of a workload that an autoscaler in Git scales, and the certificates
//! that a controller injects. What is applied has their values in the cluster, so that no field is lost when agentk stops to manage it.

use std::collections::HashSet;

use proto::{
    agent_configuration::gitops::{FieldPath, PathSegment},
    gitops::ObjectId,
};
use serde_json::Value;

use super::SyncContext;
use crate::{Manifest, validate::DEFINITIONS};

/// Annotations that let a controller inject the certificate of a certificate authority.
const INJECTED: [&str; 5] = [
    "cert-manager.io/inject-ca-from",
    "cert-manager.io/inject-ca-from-secret",
    "cert-manager.io/inject-apiserver-ca",
    "certmanager.k8s.io/inject-ca-from",
    "service.beta.openshift.io/inject-cabundle",
];

impl SyncContext<'_> {
    /// Returns the paths of the fields of an object that are left to others.
    pub(super) fn ignored_fields(&self, manifest: &Manifest) -> Vec<FieldPath> {
        let ObjectId { group, kind, name, .. } = &manifest.id;
        let mut paths: Vec<FieldPath> =
            self.input.settings.ignored_fields(group, kind, name).cloned().collect();
        if self.autoscaled.contains(&manifest.id) {
            paths.extend(FieldPath::parse("spec.replicas"));
        }
        if INJECTED.iter().any(|key| manifest.annotation(key).is_some()) {
            paths.extend(FieldPath::parse(match (&**group, &**kind) {
                DEFINITIONS => "spec.conversion.webhook.clientConfig.caBundle",
                ("apiregistration.k8s.io", _) => "spec.caBundle",
                _ => "webhooks[*].clientConfig.caBundle",
            }));
        }
        paths
    }
}

/// Returns the workloads that autoscalers in Git scale.
pub(super) fn autoscaled(manifests: &[Manifest]) -> HashSet<ObjectId> {
    let scalers = manifests.iter().filter(|manifest| {
        matches!(
            (&*manifest.id.group, &*manifest.id.kind),
            ("autoscaling", "HorizontalPodAutoscaler") | ("keda.sh", "ScaledObject")
        )
    });
    let target = |scaler: &Manifest| {
        let target = scaler.object.pointer("/spec/scaleTargetRef")?;
        let text = |key: &str| target.get(key).and_then(Value::as_str);
        let (group, _) = text("apiVersion").unwrap_or("apps/v1").rsplit_once('/').unwrap_or_default();
        Some(ObjectId {
            group: group.to_owned(),
            kind: text("kind").unwrap_or("Deployment").to_owned(),
            namespace: scaler.id.namespace.clone(),
            name: text("name")?.to_owned(),
        })
    };
    scalers.filter_map(target).collect()
}

/// Gives the fields of an object at these paths the values that they have in the cluster. Fields that the object does not have stay absent.
pub(super) fn with_live_values(object: &Value, live: &Value, paths: &[FieldPath]) -> Value {
    let mut object = object.clone();
    paths.iter().for_each(|path| copy(&mut object, Some(live), path.segments()));
    object
}

fn copy(value: &mut Value, live: Option<&Value>, path: &[PathSegment]) {
    let Some((segment, rest)) = path.split_first() else { return };
    match (segment, value) {
        (PathSegment::Key(key), Value::Object(map)) => {
            let live = live.and_then(|live| live.get(key));
            match (map.get_mut(key), live, rest) {
                (None, ..) => {}
                (Some(value), Some(live), []) => value.clone_from(live),
                (Some(_), None, []) => drop(map.remove(key)),
                (Some(value), live, rest) => copy(value, live, rest),
            }
        }
        (segment, Value::Array(items)) => {
            let is_selected = |(index, item): (usize, &Value)| match segment {
                PathSegment::Key(_) => false,
                PathSegment::Items => true,
                PathSegment::Named(name) => item["name"] == **name,
                PathSegment::Index(selected) => index == *selected,
            };
            let mut index = 0;
            items.retain_mut(|item| {
                let at = index;
                index += 1;
                if !is_selected((at, item)) {
                    return true;
                }
                let live = live.and_then(Value::as_array).and_then(|live| counterpart(item, at, live));
                match (live, rest) {
                    (Some(live), []) => item.clone_from(live),
                    (None, []) => return false,
                    (live, rest) => copy(item, live, rest),
                }
                true
            });
        }
        _ => {}
    }
}

/// Returns the same item in the list of the cluster: that with its name, or without a name the one at its place.
fn counterpart<'a>(item: &Value, index: usize, live: &'a [Value]) -> Option<&'a Value> {
    match item.get("name").and_then(Value::as_str) {
        Some(name) => live.iter().find(|live| live["name"] == name),
        None => live.get(index),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn ignored_field_has_the_value_of_the_cluster() {
        let merged = |path: &str, git: Value, live: Value| {
            with_live_values(&git, &live, &[FieldPath::parse(path).unwrap()])
        };
        for (path, git, live, expected) in [
            (
                "spec.replicas",
                json!({"spec": {"replicas": 1}}),
                json!({"spec": {"replicas": 5}}),
                json!({"spec": {"replicas": 5}}),
            ),
            ("spec.replicas", json!({"spec": {}}), json!({"spec": {"replicas": 5}}), json!({"spec": {}})),
            ("spec.replicas", json!({"spec": {"replicas": 1}}), json!({"spec": {}}), json!({"spec": {}})),
            (
                "spec.a.b",
                json!({"spec": {"a": {"b": 1, "c": 2}}}),
                json!({}),
                json!({"spec": {"a": {"c": 2}}}),
            ),
            (
                "w[*].ca",
                json!({"w": [{"name": "a", "ca": ""}, {"name": "b", "ca": ""}]}),
                json!({"w": [{"name": "b", "ca": "B"}, {"name": "a", "ca": "A"}]}),
                json!({"w": [{"name": "a", "ca": "A"}, {"name": "b", "ca": "B"}]}),
            ),
            (
                "w[name=b]",
                json!({"w": [{"name": "a"}, {"name": "b"}]}),
                json!({"w": [{"name": "a"}]}),
                json!({"w": [{"name": "a"}]}),
            ),
            (
                "w[1].x",
                json!({"w": [{"x": 1}, {"x": 1}]}),
                json!({"w": [{"x": 2}, {"x": 2}]}),
                json!({"w": [{"x": 1}, {"x": 2}]}),
            ),
            ("a.b", json!({"a": "text"}), json!({"a": {"b": 1}}), json!({"a": "text"})),
        ] {
            assert_eq!(merged(path, git.clone(), live), expected, "{path} of {git}");
        }
    }
}
