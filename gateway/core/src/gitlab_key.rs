//! Keys of GitLab's kas without a meaning here.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, de::IgnoredAny};

/// The presence of a key of GitLab's kas in the file. Its value is not read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GitLabKey(bool);

/// A section of GitLab's kas with the path of an HTTP endpoint.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct EndpointConfig {
    /// The path, which cannot be changed.
    url_path: Option<String>,
}

impl GitLabKey {
    /// Returns whether the file has the key.
    pub fn is_set(self) -> bool {
        self.0
    }
}

impl EndpointConfig {
    /// Returns whether the section names another path.
    pub fn differs_from(&self, path: &str) -> bool {
        self.url_path.as_ref().is_some_and(|configured| configured != path)
    }
}

impl<'de> Deserialize<'de> for GitLabKey {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        IgnoredAny::deserialize(deserializer)?;
        Ok(Self(true))
    }
}

impl JsonSchema for GitLabKey {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "GitLabKey".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({"description": "A key of GitLab's kas, which is ignored."})
    }
}
