//! Charts whose renderings differ: their templates have random functions, such as `randAlphaNum` and `genCA`, or the time.
//!
//! Each replica of kas renders by itself, so that such fields would change without a commit: passwords, for example.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    time::{Duration, SystemTime},
};

use proto::agent_configuration::gitops::{FieldPath, IgnoredFields, InvalidFieldPath};
use serde_json::{Map, Value};

use crate::FileTree;

/// The most fields that may differ.
const MAX_FIELDS: usize = 500;
/// The functions whose results depend on the time.
const TIME_FUNCTIONS: [&str; 3] = ["now", "ago", "durationRound"];
/// The end of the name of a chart that is packed into one file.
const PACKED: &str = ".tgz";

/// A field that differs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct UnstableField {
    object: Object,
    path: String,
}

/// The identity of a rendered object.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Object {
    group: String,
    kind: String,
    namespace: String,
    name: String,
}

/// Two renderings of the same files that are not the same objects. The text is the rest of a sentence, and has no value of a field.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ComparisonError {
    #[error("they are not UTF-8")]
    NotUtf8,
    #[error("they differ, and are not valid YAML")]
    InvalidYaml,
    #[error("only one of them has the object {0}")]
    OtherObjects(String),
    #[error("they differ in more than {MAX_FIELDS} fields")]
    TooManyFields,
}

/// A field that differs, and without which its object would not be the same. The text is the rest of a sentence.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{object}: {error}")]
pub(crate) struct IdentityField {
    object: String,
    error: InvalidFieldPath,
}

/// Returns the time until a second rendering shows whether a chart depends on the time. Most charts do not, and need none.
pub(crate) fn pause(tree: &FileTree, values: &Map<String, Value>, now: SystemTime) -> Duration {
    let names_function = |word: &str| {
        let (first, _) = word.split_once('.').unwrap_or((word, ""));
        TIME_FUNCTIONS.contains(&first)
    };
    let has_function = |text: &str| text.split(is_separator).any(names_function);
    let may_have = |(path, content): (&String, &Vec<u8>)| {
        path.ends_with(PACKED) || has_function(&String::from_utf8_lossy(content))
    };
    // `tpl` renders values, too.
    let depends = tree.iter().any(may_have) || has_function(&Value::from(values.clone()).to_string());
    let passed = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().subsec_nanos();
    let second = Duration::from_secs(1);
    if depends { second - Duration::from_nanos(passed.into()) } else { Duration::ZERO }
}

fn is_separator(c: char) -> bool {
    !c.is_ascii_alphanumeric() && !matches!(c, '_' | '.' | '$')
}

/// Returns the fields in which two renderings of the same files differ.
///
/// # Errors
///
/// They have other objects, or too many differences.
pub(crate) fn compare(first: &[u8], second: &[u8]) -> Result<Vec<UnstableField>, ComparisonError> {
    if first == second {
        return Ok(Vec::new());
    }
    let (first, second) = (objects(first)?, objects(second)?);
    let only = |these: &BTreeMap<Object, Value>, others: &BTreeMap<Object, Value>| {
        these.keys().find(|object| !others.contains_key(*object)).cloned()
    };
    if let Some(object) = only(&first, &second).or_else(|| only(&second, &first)) {
        return Err(ComparisonError::OtherObjects(object.to_string()));
    }
    let mut fields = Vec::new();
    for (object, value) in &first {
        let mut add =
            |path: &str| fields.push(UnstableField { object: object.clone(), path: path.to_owned() });
        walk("", value, &second[object], &mut add);
    }
    if fields.len() > MAX_FIELDS { Err(ComparisonError::TooManyFields) } else { Ok(fields) }
}

/// Returns settings that leave fields to the cluster once they are written.
///
/// # Errors
///
/// An object would not be the same without one of them.
pub(crate) fn written_once(fields: &[UnstableField]) -> Result<Vec<IgnoredFields>, IdentityField> {
    let mut paths: BTreeMap<&Object, BTreeSet<FieldPath>> = BTreeMap::new();
    for UnstableField { object, path } in fields {
        let parsed =
            FieldPath::parse(path).map_err(|error| IdentityField { object: object.to_string(), error })?;
        paths.entry(object).or_default().insert(parsed);
    }
    let entries = paths.into_iter().map(|(object, paths)| IgnoredFields {
        kinds: vec![object.group_kind()],
        names: vec![object.name.clone()],
        paths: paths.into_iter().collect(),
    });
    Ok(entries.collect())
}

impl UnstableField {
    /// Returns the field as people read it, without its value.
    pub(crate) fn describe(&self) -> String {
        format!("{} of {}", self.path, self.object)
    }
}

impl Object {
    fn of(value: &Value) -> Self {
        let text =
            |pointer: &str| value.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned();
        let (group, _) = value["apiVersion"].as_str().and_then(|api| api.split_once('/')).unwrap_or_default();
        Self {
            group: group.to_owned(),
            kind: text("/kind"),
            namespace: text("/metadata/namespace"),
            name: text("/metadata/name"),
        }
    }

    fn is_secret(&self) -> bool {
        self.group.is_empty() && self.kind == "Secret"
    }

    /// `Deployment.apps`; with the dot also in the core group, in which `Secret` alone would be a kind of any group.
    fn group_kind(&self) -> String {
        format!("{}.{}", self.kind, self.group)
    }
}

impl std::fmt::Display for Object {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let dot = if self.group.is_empty() { "" } else { "." };
        let slash = if self.namespace.is_empty() { "" } else { "/" };
        write!(f, "{}{dot}{} {}{slash}{}", self.kind, self.group, self.namespace, self.name)
    }
}

/// Parses a rendering. An object that is there twice is refused by agentk.
fn objects(rendering: &[u8]) -> Result<BTreeMap<Object, Value>, ComparisonError> {
    let text = std::str::from_utf8(rendering).map_err(|_| ComparisonError::NotUtf8)?;
    let documents: Vec<Value> =
        serde_saphyr::from_multiple(text).map_err(|_| ComparisonError::InvalidYaml)?;
    let items = documents.into_iter().flat_map(|mut document| match document.get_mut("items") {
        Some(Value::Array(items)) => std::mem::take(items),
        _ => vec![document],
    });
    let items = items.filter(Value::is_object).map(|mut item| {
        let object = Object::of(&item);
        if object.is_secret() {
            // agentk applies both as `data`.
            let texts = item.as_object_mut().and_then(|item| item.remove("stringData"));
            if let Some(Value::Object(texts)) = texts {
                match item.get_mut("data") {
                    Some(Value::Object(data)) => data.extend(texts),
                    _ => item["data"] = texts.into(),
                }
            }
        }
        (object, item)
    });
    Ok(items.collect())
}

fn walk(path: &str, first: &Value, second: &Value, add: &mut impl FnMut(&str)) {
    match (first, second) {
        _ if first == second => {}
        (Value::Object(one), Value::Object(two)) => {
            let keys: BTreeSet<&String> = one.keys().chain(two.keys()).collect();
            for key in keys {
                let at = |map: &Map<String, Value>| map.get(key).cloned().unwrap_or_default();
                walk(&join(path, key), &at(one), &at(two), add);
            }
        }
        (Value::Array(one), Value::Array(two)) if has_pairs(one, two) => {
            for (index, (one, two)) in one.iter().zip(two).enumerate() {
                let at = match one.get("name").and_then(Value::as_str) {
                    Some(name) if !name.contains(']') => format!("{path}[name={name}]"),
                    _ => format!("{path}[{index}]"),
                };
                walk(&at, one, two, add);
            }
        }
        _ => add(path),
    }
}

/// Returns whether the items of two lists are the same ones in the same order.
fn has_pairs(one: &[Value], two: &[Value]) -> bool {
    one.len() == two.len()
        && one
            .iter()
            .zip(two)
            .all(|(one, two)| one.is_object() && two.is_object() && one.get("name") == two.get("name"))
}

fn join(path: &str, key: &str) -> String {
    let plain = !key.is_empty() && key.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_'));
    let mut joined = path.to_owned();
    // Writing to a string does not fail.
    let _ = match (plain, path.is_empty()) {
        (true, true) => write!(joined, "{key}"),
        (true, false) => write!(joined, ".{key}"),
        (false, _) => write!(joined, "[{}]", Value::from(key)),
    };
    joined
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(first: &str, second: &str) -> Result<Vec<String>, ComparisonError> {
        let fields = compare(first.as_bytes(), second.as_bytes())?;
        Ok(fields.iter().map(UnstableField::describe).collect())
    }

    #[test]
    fn fields_that_differ_are_found_by_object() {
        let rendering = |password: &str, roll: &str| {
            format!(
                "---\napiVersion: v1\nkind: Secret\nmetadata: {{name: pw}}\nstringData: {{a.b: {password}, c: same}}\n---\n# nothing\n---\n\
                 apiVersion: apps/v1\nkind: Deployment\nmetadata: {{name: web, namespace: shop}}\nspec:\n  template:\n    \
                 metadata: {{annotations: {{rollme: {roll}}}}}\n    spec: {{containers: [{{name: c, env: [{{name: A, value: {roll}}}]}}]}}\n"
            )
        };
        assert_eq!(shown(&rendering("x", "1"), &rendering("x", "1")).unwrap(), [""; 0]);
        assert_eq!(
            shown(&rendering("x", "1"), &rendering("y", "2")).unwrap(),
            [
                "data[\"a.b\"] of Secret pw",
                "spec.template.metadata.annotations.rollme of Deployment.apps shop/web",
                "spec.template.spec.containers[name=c].env[name=A].value of Deployment.apps shop/web",
            ]
        );
    }

    #[test]
    fn order_of_a_list_and_other_objects_are_differences() {
        let list =
            |items: &str| format!("apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: a}}\nx: {items}\n");
        assert_eq!(shown(&list("[a, b]"), &list("[b, a]")).unwrap(), ["x of ConfigMap a"]);
        let moved = shown(&list("[{name: a}, {name: b}]"), &list("[{name: b}, {name: a}]"));
        assert_eq!(moved.unwrap(), ["x of ConfigMap a"]);
        assert_eq!(shown(&list("[{a: 1}]"), &list("[{a: 2}]")).unwrap(), ["x[0].a of ConfigMap a"]);
        let of_list =
            |value: u8| format!("kind: List\nitems: [{{kind: A, metadata: {{name: b}}, x: {value}}}]\n");
        assert_eq!(shown(&of_list(1), &of_list(2)).unwrap(), ["x of A b"]);
        let named = |name: &str| format!("kind: Job\nmetadata: {{name: {name}}}\n");
        assert_eq!(
            shown(&named("x1"), &named("x2")).unwrap_err().to_string(),
            "only one of them has the object Job x1"
        );
        assert_eq!(shown("a: [", "a: ]"), Err(ComparisonError::InvalidYaml));
    }

    #[test]
    fn fields_are_written_once_for_their_object_alone() {
        let secret = |value: u8| {
            format!(
                "apiVersion: v1\nkind: Secret\nmetadata: {{name: pw}}\ndata: {{a: {value}, b: {value}}}\n"
            )
        };
        let fields = compare(secret(1).as_bytes(), secret(2).as_bytes()).unwrap();
        let settings = serde_json::to_value(written_once(&fields).unwrap()).unwrap();
        assert_eq!(
            settings,
            serde_json::json!([{"kinds": ["Secret."], "names": ["pw"], "paths": ["data.a", "data.b"]}])
        );
        let labels = |value: u8| format!("kind: A\nmetadata: {{name: a, generateName: x{value}}}\n");
        let fields = compare(labels(1).as_bytes(), labels(2).as_bytes()).unwrap();
        assert!(written_once(&fields).unwrap_err().to_string().starts_with("A a: metadata.generateName: "));
    }

    #[test]
    fn chart_with_the_time_is_rendered_again_in_another_second() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_millis(7_250);
        let pause = |path: &str, content: &str, values: Value| {
            let tree = FileTree::from([(path.to_owned(), content.into())]);
            pause(&tree, values.as_object().unwrap(), now)
        };
        let (none, rest) = (Duration::ZERO, Duration::from_millis(750));
        let empty = || serde_json::json!({});
        assert_eq!(pause("a/templates/a.yaml", "{{ now | unixEpoch }}", empty()), rest);
        assert_eq!(pause("a/templates/a.yaml", "{{now.Unix}}{{(ago .x)}}", empty()), rest);
        assert_eq!(pause("a/templates/a.yaml", "known: {{ .Values.now }} {{ $now }} agony", empty()), none);
        assert_eq!(pause("a/charts/db-1.0.0.tgz", "", empty()), rest);
        assert_eq!(pause("a/x", "", serde_json::json!({"a": "{{ now }}"})), rest);
    }
}
