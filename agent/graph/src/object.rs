//! Objects as the API server sends them, trimmed to the fields that are needed.

use std::borrow::Cow;

use kube::{
    Resource,
    core::{ApiResource, DynamicResourceScope, ObjectMeta},
};
use serde::{Deserialize, Deserializer};
use serde_json::Value;

use crate::mask;

/// An object of any kind, with the fields that nodes are made of.
#[derive(Clone, Debug)]
pub(crate) struct TrimmedObject {
    /// What kube-rs needs of the metadata: names, UID and version.
    metadata: ObjectMeta,
    /// The object, its metadata included.
    pub(crate) object: Value,
}

impl<'de> Deserialize<'de> for TrimmedObject {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut object = mask::read(deserializer)?;
        let version = object.pointer_mut("/metadata/resourceVersion").map(Value::take);
        let resource_version = version.and_then(|version| version.as_str().map(str::to_owned));
        Ok(Self { metadata: ObjectMeta { resource_version, ..ObjectMeta::default() }, object })
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
