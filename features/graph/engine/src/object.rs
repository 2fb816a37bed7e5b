//! Objects as the API server sends them, trimmed to the fields that are needed.

use std::borrow::Cow;

use kube::{
    Resource,
    core::{ApiResource, DynamicResourceScope, ObjectMeta},
};
use serde::{Deserialize, Deserializer};
use serde_json::{Value, json};

use crate::mask;

/// An object of any kind, with the fields that nodes are made of.
#[derive(Clone, Debug)]
pub(crate) struct TrimmedObject {
    /// The metadata for kube-rs, of which only the resource version is set.
    metadata: ObjectMeta,
    /// The object, its metadata included.
    pub(crate) object: Value,
}

/// An object with all of its fields, for a rule of the user.
#[derive(Clone, Debug)]
pub(crate) struct WholeObject(pub(crate) TrimmedObject);

impl TrimmedObject {
    fn new(mut object: Value) -> Self {
        let version = object.pointer_mut("/metadata/resourceVersion").map(Value::take);
        let resource_version = version.and_then(|version| version.as_str().map(str::to_owned));
        Self { metadata: ObjectMeta { resource_version, ..ObjectMeta::default() }, object }
    }
}

impl<'de> Deserialize<'de> for TrimmedObject {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        mask::read(deserializer).map(Self::new)
    }
}

impl<'de> Deserialize<'de> for WholeObject {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut object = Value::deserialize(deserializer)?;
        if let Some(metadata) = object.pointer_mut("/metadata").and_then(Value::as_object_mut) {
            // The longest part of many objects, which says nothing about their health.
            metadata.remove("managedFields");
        }
        Ok(Self(TrimmedObject::new(object)))
    }
}

/// Returns an object of which only the metadata is known.
pub(crate) fn of_metadata(metadata: &ObjectMeta) -> Value {
    let whole = json!({"metadata": metadata});
    // Annotations may have what the object has, such as the manifest that was applied last.
    mask::read(&whole).unwrap_or_default()
}

impl Resource for WholeObject {
    type DynamicType = ApiResource;
    type Scope = DynamicResourceScope;

    fn kind(dt: &ApiResource) -> Cow<'_, str> {
        TrimmedObject::kind(dt)
    }

    fn group(dt: &ApiResource) -> Cow<'_, str> {
        TrimmedObject::group(dt)
    }

    fn version(dt: &ApiResource) -> Cow<'_, str> {
        TrimmedObject::version(dt)
    }

    fn api_version(dt: &ApiResource) -> Cow<'_, str> {
        TrimmedObject::api_version(dt)
    }

    fn plural(dt: &ApiResource) -> Cow<'_, str> {
        TrimmedObject::plural(dt)
    }

    fn meta(&self) -> &ObjectMeta {
        self.0.meta()
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        self.0.meta_mut()
    }
}

impl Resource for TrimmedObject {
    type DynamicType = ApiResource;
    type Scope = DynamicResourceScope;

    fn kind(dt: &ApiResource) -> Cow<'_, str> {
        dt.kind.as_str().into()
    }

    fn group(dt: &ApiResource) -> Cow<'_, str> {
        dt.group.as_str().into()
    }

    fn version(dt: &ApiResource) -> Cow<'_, str> {
        dt.version.as_str().into()
    }

    fn api_version(dt: &ApiResource) -> Cow<'_, str> {
        dt.api_version.as_str().into()
    }

    fn plural(dt: &ApiResource) -> Cow<'_, str> {
        dt.plural.as_str().into()
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metadata_of_a_secret_has_none_of_its_contents() {
        let metadata: ObjectMeta = serde_json::from_value(json!({
            "name": "db", "namespace": "a", "uid": "u", "labels": {"app": "x"},
            "annotations": {
                "kubectl.kubernetes.io/last-applied-configuration": "{\"data\":{\"password\":\"c2VjcmV0\"}}",
                "meta.helm.sh/release-name": "web",
            },
        }))
        .unwrap();
        let expected = json!({"metadata": {
            "name": "db", "namespace": "a", "uid": "u", "labels": {"app": "x"},
            "annotations": {"meta.helm.sh/release-name": "web"},
        }});
        assert_eq!(of_metadata(&metadata), expected);
    }

    #[test]
    fn rule_reads_fields_that_others_do_not() {
        let text = r#"{"metadata": {"name": "db", "resourceVersion": "7"}, "status": {"own": 1}}"#;
        let whole: WholeObject = serde_json::from_str(text).unwrap();
        assert_eq!(whole.meta().resource_version.as_deref(), Some("7"));
        assert_eq!(whole.0.object["status"]["own"], 1);
        let trimmed: TrimmedObject = serde_json::from_str(text).unwrap();
        assert_eq!(trimmed.object["status"], json!({}));
    }
}
