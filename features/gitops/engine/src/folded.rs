//! Fields that the API server folds into others.
//!
//! A server-side apply removes the fields that leave a manifest, but not what the API server has made of them: a key that leaves
//! `stringData` of a Secret would stay in its `data`, and `serviceAccount` of a pod would bring `serviceAccountName` back. So each object is
//! applied in the form in which the API server keeps it.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use kube_cluster::FIELD_MANAGER;
use proto::gitops::ObjectId;
use serde_json::{Map, Value};

use crate::manifest::pod_spec;

/// The two names of the service account of a pod. The API server keeps both, and the second one is stronger.
const SERVICE_ACCOUNT: [&str; 2] = ["serviceAccount", "serviceAccountName"];

/// A Secret that cannot be applied in the form in which the API server keeps it. The values of the Secret are not in the error.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum FoldError {
    #[error("stringData of the Secret {secret} is not a mapping")]
    StringDataNotMapping { secret: String },
    #[error("stringData.{key} of the Secret {secret} is not a text: write it in quotes")]
    StringDataNotText { key: String, secret: String },
}

/// Gives an object the form in which the API server keeps it.
///
/// # Errors
///
/// A value of `stringData` is not a text.
pub(crate) fn unfold(id: &ObjectId, object: &mut Value) -> Result<(), FoldError> {
    if is_secret(id) {
        return move_string_data(id, object);
    }
    let Some(pod) = pod_spec(id).and_then(|pod| object.pointer_mut(pod)?.as_object_mut()) else {
        return Ok(());
    };
    let name = |key: &&str| pod.get(*key).filter(|name| name.as_str().is_some_and(|name| !name.is_empty()));
    if let Some(name) = SERVICE_ACCOUNT.iter().rev().find_map(name).cloned() {
        pod.extend(SERVICE_ACCOUNT.map(|key| (key.to_owned(), name.clone())));
    }
    Ok(())
}

/// Returns whether agentk manages the same of these fields in two versions of an object. An older agentk applied them as they are in Git,
/// so that the values may be those of Git already.
pub(crate) fn has_same_owner(id: &ObjectId, before: &Value, after: &Value) -> bool {
    let place = match (is_secret(id), pod_spec(id)) {
        (true, _) => "/f:data".to_owned(),
        (false, Some(pod)) => format!("{}/f:{}", pod.replace('/', "/f:"), SERVICE_ACCOUNT[0]),
        (false, None) => return true,
    };
    let managed = |object: &Value| {
        let entries = object["metadata"]["managedFields"].as_array().into_iter().flatten();
        let mut ours =
            entries.filter(|entry| entry["manager"] == FIELD_MANAGER && entry["operation"] == "Apply");
        ours.find_map(|entry| entry["fieldsV1"].pointer(&place).cloned())
    };
    managed(before) == managed(after)
}

fn is_secret(id: &ObjectId) -> bool {
    id.group.is_empty() && id.kind == "Secret"
}

/// Moves `stringData` of a Secret to its `data`, where it is stronger.
fn move_string_data(id: &ObjectId, object: &mut Value) -> Result<(), FoldError> {
    let Some(secret) = object.as_object_mut() else { return Ok(()) };
    let texts = match secret.remove("stringData") {
        None | Some(Value::Null) => return Ok(()),
        Some(Value::Object(texts)) => texts,
        Some(_) => return Err(FoldError::StringDataNotMapping { secret: id.name.clone() }),
    };
    let encode = |(key, value): (String, Value)| match value {
        Value::String(text) => Ok((key, STANDARD.encode(text).into())),
        Value::Null => Ok((key, "".into())),
        _ => Err(FoldError::StringDataNotText { key, secret: id.name.clone() }),
    };
    let encoded = texts.into_iter().map(encode).collect::<Result<Map<_, Value>, _>>()?;
    match secret.get_mut("data") {
        Some(Value::Object(data)) => data.extend(encoded),
        _ => drop(secret.insert("data".to_owned(), encoded.into())),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn unfolded(group: &str, kind: &str, mut object: Value) -> Result<Value, FoldError> {
        let text = str::to_owned;
        let id = ObjectId { group: text(group), kind: text(kind), name: text("s"), ..ObjectId::default() };
        unfold(&id, &mut object).map(|()| object)
    }

    #[test]
    fn string_data_of_a_secret_becomes_data() {
        let secret = |object| unfolded("", "Secret", object);
        let both = json!({"data": {"a": "b2xk", "b": "Yg=="}, "stringData": {"a": "new", "c": null}});
        assert_eq!(secret(both).unwrap(), json!({"data": {"a": "bmV3", "b": "Yg==", "c": ""}}));
        assert_eq!(
            secret(json!({"data": null, "stringData": {"a": "x"}})).unwrap(),
            json!({"data": {"a": "eA=="}})
        );
        assert_eq!(secret(json!({"stringData": null})).unwrap(), json!({}));
        let error = secret(json!({"stringData": {"port": 5432}})).unwrap_err();
        assert_eq!(error.to_string(), "stringData.port of the Secret s is not a text: write it in quotes");
        let other = json!({"stringData": {"a": "x"}});
        assert_eq!(unfolded("example.com", "Secret", other.clone()).unwrap(), other);
    }

    #[test]
    fn service_account_of_a_pod_has_both_names() {
        let deployment = |pod: Value| {
            let object =
                unfolded("apps", "Deployment", json!({"spec": {"template": {"spec": pod}}})).unwrap();
            object["spec"]["template"]["spec"].clone()
        };
        let both = json!({"serviceAccount": "x", "serviceAccountName": "x"});
        assert_eq!(deployment(json!({"serviceAccount": "x"})), both);
        assert_eq!(deployment(json!({"serviceAccountName": "x"})), both);
        assert_eq!(deployment(json!({"serviceAccount": "y", "serviceAccountName": "x"})), both);
        assert_eq!(deployment(json!({"serviceAccountName": ""})), json!({"serviceAccountName": ""}));
    }

    #[test]
    fn values_that_an_older_agentk_has_applied_get_their_owner() {
        let secret = |fields: Value| {
            let entry = json!({"manager": "agentk", "operation": "Apply", "fieldsV1": fields});
            json!({"metadata": {"managedFields": [{"manager": "kubectl"}, entry]}})
        };
        let (old, new) = (json!({"f:stringData": {"f:a": {}}}), json!({"f:data": {"f:a": {}}}));
        let id = ObjectId { kind: "Secret".to_owned(), ..ObjectId::default() };
        assert!(!has_same_owner(&id, &secret(old.clone()), &secret(new.clone())));
        assert!(has_same_owner(&id, &secret(new.clone()), &secret(new.clone())));
        let map = ObjectId { kind: "ConfigMap".to_owned(), ..ObjectId::default() };
        assert!(has_same_owner(&map, &secret(old), &secret(new)));
    }
}
