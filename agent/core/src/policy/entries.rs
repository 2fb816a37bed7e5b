//! The keys of policy files, from which their JSON Schema is made.

use std::{collections::BTreeMap, path::PathBuf};

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer};
use settings::Spanned;

use super::{PolicyMode, rule::Action};

/// The most rules: each is a label value of a metric, and is tried for every request.
pub(super) const MAX_RULES: usize = 500;
/// The most webhooks.
pub(super) const MAX_WEBHOOKS: usize = 500;
/// The longest name of a rule, in bytes.
pub(super) const MAX_NAME: usize = 63;

/// A list of words.
pub(super) type StringList = Spanned<Vec<Spanned<String>>>;

/// The policy of agentk: the requests that it may send to its cluster.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct PolicyFile {
    /// The consequence for requests that the policy refuses.
    #[serde(default)]
    pub(super) mode: PolicyMode,
    /// The rules, of which the first one that matches a request decides.
    #[schemars(length(max = MAX_RULES))]
    pub(super) rules: Vec<RuleEntry>,
    /// Rules about the objects of writes. Only admission enforces them.
    #[serde(default)]
    #[schemars(length(max = MAX_RULES))]
    pub(super) objects: Vec<ObjectEntry>,
    /// The URLs to which agentk may send events.
    #[serde(default)]
    #[schemars(length(max = MAX_WEBHOOKS))]
    pub(super) webhooks: Vec<WebhookEntry>,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(super) struct WebhookEntry {
    #[schemars(with = "String", regex(pattern = "^https?://."))]
    pub(super) url: Spanned<String>,
    #[serde(default)]
    pub(super) secret_file: Option<PathBuf>,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(super) struct RuleEntry {
    #[schemars(schema_with = "name")]
    pub(super) name: Spanned<String>,
    pub(super) action: Action,
    #[schemars(schema_with = "words")]
    pub(super) services: StringList,
    #[serde(default, deserialize_with = "non_null")]
    #[schemars(schema_with = "words")]
    pub(super) verbs: Option<StringList>,
    #[serde(default, deserialize_with = "non_null")]
    #[schemars(schema_with = "words")]
    pub(super) api_groups: Option<StringList>,
    #[serde(default, deserialize_with = "non_null")]
    #[schemars(schema_with = "words")]
    pub(super) resources: Option<StringList>,
    #[serde(default, deserialize_with = "non_null")]
    #[schemars(schema_with = "words")]
    pub(super) namespaces: Option<StringList>,
    #[serde(default, deserialize_with = "non_null")]
    #[schemars(schema_with = "words")]
    pub(super) resource_names: Option<StringList>,
    #[serde(default, deserialize_with = "non_null", rename = "nonResourceURLs")]
    #[schemars(schema_with = "words")]
    pub(super) non_resource_urls: Option<StringList>,
    #[serde(default, deserialize_with = "non_null")]
    #[schemars(with = "Impersonate")]
    pub(super) impersonate: Option<Spanned<Impersonate>>,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(super) struct ObjectEntry {
    #[schemars(schema_with = "name")]
    pub(super) name: Spanned<String>,
    #[serde(default, deserialize_with = "non_null")]
    #[schemars(schema_with = "words")]
    pub(super) api_groups: Option<StringList>,
    #[serde(default, deserialize_with = "non_null")]
    #[schemars(schema_with = "words")]
    pub(super) resources: Option<StringList>,
    #[serde(default, deserialize_with = "non_null")]
    #[schemars(schema_with = "words")]
    pub(super) namespaces: Option<StringList>,
    #[serde(default, deserialize_with = "non_null")]
    #[schemars(schema_with = "words")]
    pub(super) names: Option<StringList>,
    #[serde(default)]
    #[schemars(with = "BTreeMap<String, Vec<String>>")]
    pub(super) labels: BTreeMap<String, StringList>,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Impersonate {
    #[serde(default, rename = "self")]
    pub(super) agentk: bool,
    #[serde(default, deserialize_with = "non_null")]
    #[schemars(schema_with = "words")]
    pub(super) users: Option<StringList>,
    #[serde(default, deserialize_with = "non_null")]
    #[schemars(schema_with = "words")]
    pub(super) groups: Option<StringList>,
}

/// The schema of a list of words. An empty one would match nothing.
fn words(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "array", "items": {"type": "string"}, "minItems": 1})
}

/// The schema of the name of a rule.
fn name(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "string", "minLength": 1, "maxLength": MAX_NAME, "pattern": "^[A-Za-z0-9._-]+$"})
}

/// Deserializes a key that must have a value if it is present: a key without a value is a mistake, not an absent restriction.
fn non_null<'de, T: Deserialize<'de>, D: Deserializer<'de>>(deserializer: D) -> Result<Option<T>, D::Error> {
    T::deserialize(deserializer).map(Some)
}
