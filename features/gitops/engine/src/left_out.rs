//! Fields of manifests that agentk does not apply, because the cluster owns them.

use proto::gitops::ObjectId;
use serde_json::Value;

/// Metadata that the API server sets. `kubectl get --output yaml` prints it.
const METADATA: [&str; 8] = [
    "creationTimestamp",
    "deletionGracePeriodSeconds",
    "deletionTimestamp",
    "generation",
    "managedFields",
    "resourceVersion",
    "selfLink",
    "uid",
];
/// Annotations that programs write for themselves.
const ANNOTATIONS: [&str; 2] =
    ["deployment.kubernetes.io/revision", "kubectl.kubernetes.io/last-applied-configuration"];
/// Values of certificates that stand for one that a controller injects: nothing, and an empty line in base64.
const NO_CERTIFICATE: [&str; 3] = ["", "Cg==", "\n"];

/// Removes the fields that the cluster owns.
pub(crate) fn leave_out(id: &ObjectId, object: &mut Value) {
    let Some(fields) = object.as_object_mut() else { return };
    fields.remove("status");
    if let Some(metadata) = fields.get_mut("metadata").and_then(Value::as_object_mut) {
        METADATA.iter().for_each(|key| drop(metadata.remove(*key)));
        let annotations = metadata.get_mut("annotations").and_then(Value::as_object_mut);
        if let Some(annotations) = annotations {
            ANNOTATIONS.iter().for_each(|key| drop(annotations.remove(*key)));
        }
    }
    match (&*id.group, &*id.kind) {
        // The controller for aggregation writes them.
        ("rbac.authorization.k8s.io", "ClusterRole")
            if fields.get("aggregationRule").is_some_and(|rule| !rule.is_null()) =>
        {
            fields.remove("rules");
        }
        (
            "admissionregistration.k8s.io",
            "MutatingWebhookConfiguration" | "ValidatingWebhookConfiguration",
        ) => {
            let webhooks = fields.get_mut("webhooks").and_then(Value::as_array_mut);
            for webhook in webhooks.into_iter().flatten() {
                remove_if(webhook, "/clientConfig", "caBundle", &NO_CERTIFICATE);
            }
        }
        ("apiregistration.k8s.io", "APIService") => remove_if(object, "/spec", "caBundle", &NO_CERTIFICATE),
        ("apiextensions.k8s.io", "CustomResourceDefinition") => {
            remove_if(object, "/spec/conversion/webhook/clientConfig", "caBundle", &NO_CERTIFICATE);
        }
        // The cluster chooses a volume.
        ("", "PersistentVolumeClaim") => remove_if(object, "/spec", "volumeName", &[""]),
        _ => {}
    }
}

fn remove_if(object: &mut Value, place: &str, key: &str, values: &[&str]) {
    let Some(fields) = object.pointer_mut(place).and_then(Value::as_object_mut) else { return };
    if fields.get(key).and_then(Value::as_str).is_some_and(|value| values.contains(&value)) {
        fields.remove(key);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn applied(group: &str, kind: &str, mut object: Value) -> Value {
        let text = str::to_owned;
        leave_out(&ObjectId { group: text(group), kind: text(kind), ..ObjectId::default() }, &mut object);
        object
    }

    #[test]
    fn exported_object_is_applied_without_what_the_api_server_has_set() {
        let exported = json!({
            "metadata": {
                "name": "web", "resourceVersion": "12", "uid": "u", "creationTimestamp": null, "generation": 3, "managedFields": [],
                "annotations": {"deployment.kubernetes.io/revision": "4", "team": "a"},
            },
            "spec": {"replicas": 1},
            "status": {"replicas": 1},
        });
        let expected =
            json!({"metadata": {"name": "web", "annotations": {"team": "a"}}, "spec": {"replicas": 1}});
        assert_eq!(applied("apps", "Deployment", exported), expected);
    }

    #[test]
    fn field_of_a_controller_is_left_to_it() {
        let role = |rule: Value| {
            applied("rbac.authorization.k8s.io", "ClusterRole", json!({"aggregationRule": rule, "rules": []}))
        };
        assert_eq!(role(json!({"a": 1})), json!({"aggregationRule": {"a": 1}}));
        assert_eq!(role(Value::Null), json!({"aggregationRule": null, "rules": []}));

        let webhook = |bundle: &str| {
            let object = json!({"webhooks": [{"name": "a", "clientConfig": {"caBundle": bundle}}]});
            applied("admissionregistration.k8s.io", "ValidatingWebhookConfiguration", object)["webhooks"][0]["clientConfig"].clone()
        };
        assert_eq!((webhook("Cg=="), webhook("")), (json!({}), json!({})));
        assert_eq!(webhook("abc"), json!({"caBundle": "abc"}), "it is in Git");
        let service = json!({"spec": {"caBundle": ""}});
        assert_eq!(applied("apiregistration.k8s.io", "APIService", service), json!({"spec": {}}));
        let claim = |name: &str| applied("", "PersistentVolumeClaim", json!({"spec": {"volumeName": name}}));
        assert_eq!(claim(""), json!({"spec": {}}));
        assert_eq!(claim("pv-1"), json!({"spec": {"volumeName": "pv-1"}}));
    }
}
