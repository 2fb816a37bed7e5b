//! The keys of policy files, from which their JSON Schema is made.

use std::{collections::BTreeMap, path::PathBuf};

use proto::LabelOperator;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer};
use settings::Spanned;

use super::{PolicyMode, rule::Action, validate::TargetKind};

/// The most rules: each is a label value of a metric, and is tried for every request.
pub(crate) const MAX_RULES: usize = 500;
/// The most webhooks.
pub(crate) const MAX_WEBHOOKS: usize = 500;
/// The longest name of a rule, in bytes.
pub(crate) const MAX_NAME: usize = 63;

/// A list of words.
pub(crate) type StringList = Spanned<Vec<Spanned<String>>>;

/// The policy of agentk: the requests that it may send to its cluster.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct PolicyFile {
    /// The consequence for requests that the policy refuses.
    #[serde(default)]
    pub(crate) mode: PolicyMode,
    /// The rules, of which the first one that matches a request decides.
    #[schemars(length(max = MAX_RULES))]
    pub(crate) rules: Vec<RuleEntry>,
    /// Rules about the objects of writes. Only admission enforces them.
    #[serde(default)]
    #[schemars(length(max = MAX_RULES))]
    pub(crate) objects: Vec<ObjectEntry>,
    /// The URLs to which agentk may send events.
    #[serde(default)]
    #[schemars(length(max = MAX_WEBHOOKS))]
    pub(crate) webhooks: Vec<WebhookEntry>,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(crate) struct WebhookEntry {
    #[schemars(with = "String", regex(pattern = "^https?://."))]
    pub(crate) url: Spanned<String>,
    #[serde(default)]
    pub(crate) secret_file: Option<PathBuf>,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(crate) struct RuleEntry {
    #[schemars(schema_with = "name")]
    pub(crate) name: Spanned<String>,
    pub(crate) action: Action,
    #[schemars(schema_with = "words")]
    pub(crate) services: StringList,
    #[serde(default, deserialize_with = "non_null")]
    #[schemars(schema_with = "words")]
    pub(crate) verbs: Option<StringList>,
    #[serde(default, deserialize_with = "non_null")]
    #[schemars(schema_with = "words")]
    pub(crate) api_groups: Option<StringList>,
    #[serde(default, deserialize_with = "non_null")]
    #[schemars(schema_with = "words")]
    pub(crate) resources: Option<StringList>,
    #[serde(default, deserialize_with = "non_null")]
    #[schemars(schema_with = "words")]
    pub(crate) namespaces: Option<StringList>,
    #[serde(default, deserialize_with = "non_null")]
    #[schemars(with = "SelectorEntry")]
    pub(crate) namespace_selector: Option<Spanned<SelectorEntry>>,
    #[serde(default, deserialize_with = "non_null")]
    #[schemars(schema_with = "words")]
    pub(crate) resource_names: Option<StringList>,
    #[serde(default, deserialize_with = "non_null", rename = "nonResourceURLs")]
    #[schemars(schema_with = "words")]
    pub(crate) non_resource_urls: Option<StringList>,
    #[serde(default, deserialize_with = "non_null")]
    #[schemars(with = "Impersonate")]
    pub(crate) impersonate: Option<Spanned<Impersonate>>,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(crate) struct ObjectEntry {
    #[schemars(schema_with = "name")]
    pub(crate) name: Spanned<String>,
    #[serde(default, deserialize_with = "non_null")]
    #[schemars(schema_with = "words")]
    pub(crate) api_groups: Option<StringList>,
    #[serde(default, deserialize_with = "non_null")]
    #[schemars(schema_with = "words")]
    pub(crate) resources: Option<StringList>,
    #[serde(default, deserialize_with = "non_null")]
    #[schemars(schema_with = "words")]
    pub(crate) namespaces: Option<StringList>,
    #[serde(default, deserialize_with = "non_null")]
    #[schemars(with = "SelectorEntry")]
    pub(crate) namespace_selector: Option<Spanned<SelectorEntry>>,
    #[serde(default, deserialize_with = "non_null")]
    #[schemars(schema_with = "words")]
    pub(crate) names: Option<StringList>,
    #[serde(default)]
    #[schemars(with = "BTreeMap<String, Vec<String>>")]
    pub(crate) labels: BTreeMap<String, StringList>,
}

/// A LabelSelector of Kubernetes. One without requirements would select everything.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
#[schemars(extend("minProperties" = 1))]
pub(crate) struct SelectorEntry {
    #[serde(default)]
    #[schemars(with = "BTreeMap<String, String>", extend("minProperties" = 1))]
    pub(crate) match_labels: BTreeMap<String, Spanned<String>>,
    #[serde(default)]
    #[schemars(length(min = 1))]
    pub(crate) match_expressions: Vec<ExpressionEntry>,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ExpressionEntry {
    #[schemars(with = "String")]
    pub(crate) key: Spanned<String>,
    #[schemars(schema_with = "operator")]
    pub(crate) operator: LabelOperator,
    #[serde(default)]
    pub(crate) values: Vec<String>,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Impersonate {
    #[serde(default, rename = "self")]
    pub(crate) agentk: bool,
    #[serde(default, deserialize_with = "non_null")]
    #[schemars(schema_with = "words")]
    pub(crate) users: Option<StringList>,
    #[serde(default, deserialize_with = "non_null")]
    #[schemars(schema_with = "words")]
    pub(crate) groups: Option<StringList>,
}

impl RuleEntry {
    /// Returns the kind of requests that the keys restrict the rule to.
    pub(crate) fn target_kind(&self) -> TargetKind {
        let of_resources = [&self.api_groups, &self.resources, &self.namespaces, &self.resource_names];
        let resources = self.namespace_selector.is_some() || of_resources.into_iter().any(Option::is_some);
        match (resources, self.non_resource_urls.is_some()) {
            (true, false) => TargetKind::Resources,
            (false, true) => TargetKind::Paths,
            _ => TargetKind::Both,
        }
    }
}

/// The schema of an operator, whose names are those of Kubernetes.
fn operator(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"enum": ["In", "NotIn", "Exists", "DoesNotExist"]})
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
