//! Section `graph`: what agentk loads into the graph of the cluster, how it judges objects, and the views that it computes.

mod expression;

use std::collections::{BTreeMap, HashSet};

use serde::{Deserialize, Serialize};

pub use self::expression::{EvaluationError, Expression, ExpressionError};
use super::InvalidValue;
use crate::graph::{HealthState, KindName};

/// The most rules of health.
const MAX_RULES: usize = 50;
/// The most views.
const MAX_VIEWS: usize = 20;
/// The most columns of a view.
const MAX_COLUMNS: usize = 10;
/// The most namespaces, labels or states by which a view selects.
const MAX_SELECTED: usize = 100;
/// Kinds that the graph never has: they change all the time, or have contents that nobody should see.
const NEVER: [&str; 10] = [
    "lease",
    "leases",
    "event",
    "events",
    "certificatesigningrequest",
    "certificatesigningrequests",
    "tokenreview",
    "subjectaccessreview",
    "localsubjectaccessreview",
    "selfsubjectaccessreview",
];

/// Section `graph`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct GraphSection {
    /// The limits of the graph.
    pub limits: GraphLimits,
    /// The part of Secrets that is loaded.
    pub secrets: Secrets,
    /// The rules for the health of kinds, in place of the rules of agentk. The first rule of a kind applies.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub health_rules: Vec<HealthRule>,
    /// Counts and tables that agentk computes all the time.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub views: Vec<ViewDefinition>,
}

/// The limits of the graph. Objects beyond are counted only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct GraphLimits {
    /// Objects of all resources.
    pub objects: u32,
    /// Objects of one resource.
    pub objects_per_resource: u32,
    /// The estimated memory, in MiB.
    pub memory_mib: u32,
}

impl Default for GraphLimits {
    fn default() -> Self {
        Self { objects: 200_000, objects_per_resource: 50_000, memory_mib: 256 }
    }
}

/// The part of Secrets that is loaded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Secrets {
    /// No Secret is loaded: a Secret is known only by the objects that name it.
    #[default]
    None,
    /// The names, labels and owners of Secrets are loaded, but not their contents.
    Metadata,
}

/// A rule for the health of the objects of a kind.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HealthRule {
    /// The kind, with its group. agentk loads its objects.
    pub kind: KindName,
    /// The name of the health: `healthy`, `suspended`, `progressing`, `degraded` or `unknown`.
    pub health: Expression,
    /// The reason in one sentence, for objects that are not healthy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<Expression>,
}

/// A count or a table that agentk computes. Exactly one of `count` and `table` is set.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ViewDefinition {
    /// The name, which is unique: a label of RFC 1123.
    pub name: String,
    /// The kind whose objects are counted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub count: Option<KindName>,
    /// The kind whose objects are the rows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub table: Option<KindName>,
    /// The columns of a table. For a count: objects with the same values are counted together.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub columns: Vec<Column>,
    /// The namespaces; none for all.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub namespaces: Vec<String>,
    /// The labels that the objects have.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// The health; none for any.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub health: Vec<HealthState>,
}

/// A fact of an object: the name of a field of [`Node`](crate::graph::Node), or `label:<key>` or `detail:<key>`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
#[allow(missing_docs, reason = "the names say it")]
pub enum Column {
    Namespace,
    Name,
    Status,
    Ready,
    Restarts,
    Health,
    Message,
    Created,
    Images,
    Label(String),
    Detail(String),
}

/// A text that is not the name of a column.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a column: use {names}, label:<key> or detail:<key>", names = COLUMNS.map(|(name, _)| name).join(", "))]
pub struct UnknownColumn(String);

/// A kind that is not in the graph.
#[derive(Debug, thiserror::Error)]
enum ExcludedKind {
    #[error("{0} is not in the graph: it changes all the time")]
    Volatile(KindName),
    #[error("{0} is not in the graph without secrets: metadata")]
    Secrets(KindName),
}

/// An invalid value of a view.
#[derive(Debug, thiserror::Error)]
enum InvalidView {
    #[error("name: {0:?} must have 1 to 63 small letters, digits or hyphens")]
    Name(String),
    #[error("name: {0} is used twice")]
    Duplicate(String),
    #[error("{0}: write either count or table, with a kind")]
    Form(String),
    #[error("columns: a table has 1 to {MAX_COLUMNS} columns")]
    Columns,
    #[error("namespaces: {0:?} is not a namespace")]
    Namespace(String),
    #[error("namespaces, labels, health: there are at most {MAX_SELECTED} values")]
    TooManyValues,
    #[error(transparent)]
    Kind(#[from] ExcludedKind),
}

impl GraphSection {
    /// Returns the key and the problem of the first invalid value.
    pub(super) fn validate(&self) -> Result<(), InvalidValue> {
        let error = |key: &str, what: String| InvalidValue::new(format!("graph.{key}"), what);
        let GraphLimits { objects, objects_per_resource, memory_mib } = self.limits;
        for (key, value, max) in [
            ("objects", objects, 2_000_000),
            ("objects_per_resource", objects_per_resource, 2_000_000),
            ("memory_mib", memory_mib, 4096),
        ] {
            if value == 0 || value > max {
                return Err(error(&format!("limits.{key}"), format!("it must be from 1 to {max}")));
            }
        }
        let of = |list: &str, index: usize, what: String| error(list, format!("{list}[{index}].{what}"));
        if self.health_rules.len() > MAX_RULES {
            return Err(error("health_rules", format!("there are at most {MAX_RULES} rules")));
        }
        for (index, rule) in self.health_rules.iter().enumerate() {
            self.validate_kind(&rule.kind)
                .map_err(|excluded| of("health_rules", index, format!("kind: {excluded}")))?;
        }
        if self.views.len() > MAX_VIEWS {
            return Err(error("views", format!("there are at most {MAX_VIEWS} views")));
        }
        let mut names = HashSet::new();
        for (index, view) in self.views.iter().enumerate() {
            let invalid = |invalid: InvalidView| of("views", index, invalid.to_string());
            view.validate().map_err(invalid)?;
            self.validate_kind(view.kind().expect("validated before"))
                .map_err(|excluded| invalid(excluded.into()))?;
            if !names.insert(&*view.name) {
                return Err(invalid(InvalidView::Duplicate(view.name.clone())));
            }
        }
        Ok(())
    }

    fn validate_kind(&self, kind: &KindName) -> Result<(), ExcludedKind> {
        let name = kind.kind().to_ascii_lowercase();
        if NEVER.contains(&&*name) {
            return Err(ExcludedKind::Volatile(kind.clone()));
        }
        if matches!(&*name, "secret" | "secrets") && self.secrets == Secrets::None {
            return Err(ExcludedKind::Secrets(kind.clone()));
        }
        Ok(())
    }

    /// Returns the kinds that rules and views name. agentk loads them beside the well-known ones.
    pub fn kinds(&self) -> impl Iterator<Item = &KindName> {
        let rules = self.health_rules.iter().map(|rule| &rule.kind);
        rules.chain(self.views.iter().filter_map(ViewDefinition::kind))
    }
}

impl ViewDefinition {
    /// Returns the kind of the objects.
    pub fn kind(&self) -> Option<&KindName> {
        self.count.as_ref().or(self.table.as_ref())
    }

    fn validate(&self) -> Result<(), InvalidView> {
        if !super::is_namespace(&self.name) {
            return Err(InvalidView::Name(self.name.clone()));
        }
        if self.count.is_some() == self.table.is_some() {
            return Err(InvalidView::Form(self.name.clone()));
        }
        if self.columns.len() > MAX_COLUMNS || (self.table.is_some() && self.columns.is_empty()) {
            return Err(InvalidView::Columns);
        }
        if let Some(name) = self.namespaces.iter().find(|name| !super::is_namespace(name)) {
            return Err(InvalidView::Namespace(name.clone()));
        }
        if [self.namespaces.len(), self.labels.len(), self.health.len()].iter().any(|it| *it > MAX_SELECTED) {
            return Err(InvalidView::TooManyValues);
        }
        Ok(())
    }
}

const COLUMNS: [(&str, Column); 9] = [
    ("namespace", Column::Namespace),
    ("name", Column::Name),
    ("status", Column::Status),
    ("ready", Column::Ready),
    ("restarts", Column::Restarts),
    ("health", Column::Health),
    ("message", Column::Message),
    ("created", Column::Created),
    ("images", Column::Images),
];

impl TryFrom<String> for Column {
    type Error = UnknownColumn;

    fn try_from(text: String) -> Result<Self, UnknownColumn> {
        if let Some((_, column)) = COLUMNS.iter().find(|(name, _)| *name == text) {
            return Ok(column.clone());
        }
        match text.split_once(':') {
            Some(("label", key)) if !key.is_empty() => Ok(Self::Label(key.to_owned())),
            Some(("detail", key)) if !key.is_empty() => Ok(Self::Detail(key.to_owned())),
            _ => Err(UnknownColumn(text)),
        }
    }
}

impl From<Column> for String {
    fn from(column: Column) -> Self {
        match column {
            Column::Label(key) => format!("label:{key}"),
            Column::Detail(key) => format!("detail:{key}"),
            column => {
                let known = COLUMNS.iter().find(|(_, known)| *known == column);
                known.map_or_else(Self::new, |(name, _)| (*name).to_owned())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::AgentConfiguration;
    use super::*;

    fn parse(text: &str) -> Result<GraphSection, String> {
        let configuration = AgentConfiguration::parse(Path::new("config.yaml"), text);
        configuration.map(|it| it.graph.unwrap_or_default()).map_err(|error| error.to_string())
    }

    #[test]
    fn section_is_parsed_and_sent_as_json() {
        let section = parse(
            "graph:
  limits: {objects: 1000, objects_per_resource: 500, memory_mib: 16}
  secrets: metadata
  health_rules:
  - {kind: Database.example.com, health: \"object.status.ok ? 'healthy' : 'degraded'\", message: object.status.text}
  views:
  - {name: nodes, count: v1/nodes}
  - {name: broken, table: pods, columns: [namespace, name, 'label:app', 'detail:node'], health: [degraded], labels: {a: b}}
",
        );
        let section = section.unwrap();
        assert_eq!(section.limits.objects, 1000);
        let kinds: Vec<String> = section.kinds().map(KindName::to_string).collect();
        assert_eq!(kinds, ["Database.example.com", "v1/nodes", "pods"]);
        let json = serde_json::to_value(&section).unwrap();
        assert_eq!(json["views"][1]["columns"][2], "label:app");
        assert_eq!(serde_json::from_value::<GraphSection>(json).unwrap(), section);
        assert_eq!(parse("graph: {}").unwrap(), GraphSection::default());
    }

    #[test]
    fn invalid_section_is_refused_with_its_key() {
        for (text, expected) in [
            ("graph: {limit: {}}", "config.yaml:1:9: graph.limit: unknown field `limit`"),
            (
                "graph:\n  limits:\n    objects: 0\n",
                "config.yaml:3:5: graph.limits.objects: it must be from 1",
            ),
            ("graph: {limits: {memory_mib: 5000}}", "from 1 to 4096"),
            ("graph: {secrets: all}", "unknown variant `all`"),
            (
                "graph: {health_rules: [{kind: A.b.c, health: 'pod.name'}]}",
                "graph.health_rules[0].health: there is no variable pod",
            ),
            (
                "graph: {health_rules: [{kind: leases, health: \"'healthy'\"}]}",
                "health_rules[0].kind: leases is not in",
            ),
            ("graph: {views: [{name: a, count: secrets}]}", "without secrets: metadata"),
            ("graph: {views: [{name: a}]}", "views[0].a: write either count or table"),
            ("graph: {views: [{name: A, count: pods}]}", "views[0].name: \"A\" must have"),
            ("graph: {views: [{name: a, table: pods}]}", "columns: a table has 1 to 10 columns"),
            ("graph: {views: [{name: a, table: pods, columns: [age]}]}", "\"age\" is not a column"),
            (
                "graph: {views: [{name: a, count: pods}, {name: a, count: nodes}]}",
                "views[1].name: a is used twice",
            ),
            ("graph: {views: [{name: a, count: 'a b'}]}", "write a kind or a plural"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(expected), "{text}\n gave {error}");
        }
    }
}
