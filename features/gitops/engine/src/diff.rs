//! The difference of an object in the cluster and the same object after a sync, field by field.

use std::{collections::HashSet, fmt::Write as _};

use proto::gitops::{FieldDiff, ObjectId};
use serde_json::{Map, Value};

/// The text in place of a value of a Secret.
const MASK: &str = "***";
/// The texts in place of a value of a Secret that changes, as in `kubectl diff`: before and after.
const MASKED_CHANGE: (&str, &str) = ("*** (before)", "*** (after)");
/// The fields of a Secret that are no secret. Annotations may have a copy of the values.
const OPEN: [&str; 7] =
    ["apiVersion", "kind", "type", "immutable", "metadata.name", "metadata.namespace", "metadata.labels"];

/// Returns the fields that differ. Values of Secrets are masked.
pub fn fields(id: &ObjectId, before: Option<&Value>, after: Option<&Value>) -> Vec<FieldDiff> {
    let mut differ = Differ { fields: Vec::new(), secret: is_secret(id) };
    differ.compare("", before, after);
    differ.fields
}

struct Differ {
    fields: Vec<FieldDiff>,
    secret: bool,
}

impl Differ {
    fn compare(&mut self, path: &str, before: Option<&Value>, after: Option<&Value>) {
        match (before, after) {
            _ if before == after => {}
            (Some(Value::Object(before)), Some(Value::Object(after))) => {
                self.compare_maps(path, before, after);
            }
            // Only the names of the keys of a Secret may be seen, so that each key is a difference of its own.
            (None, Some(Value::Object(after))) if self.secret && !path.is_empty() => {
                self.compare_maps(path, &Map::new(), after);
            }
            (Some(Value::Object(before)), None) if self.secret && !path.is_empty() => {
                self.compare_maps(path, before, &Map::new());
            }
            (Some(Value::Array(before_items)), Some(Value::Array(after_items))) => {
                match Pairing::of(before_items, after_items) {
                    Some(pairing) => self.compare_items(path, before_items, after_items, pairing),
                    None => self.push(path, before, after),
                }
            }
            _ => self.push(path, before, after),
        }
    }

    fn compare_maps(&mut self, path: &str, before: &Map<String, Value>, after: &Map<String, Value>) {
        let mut keys: Vec<&String> = before.keys().chain(after.keys()).collect();
        keys.sort_unstable();
        keys.dedup();
        for key in keys {
            self.compare(&join(path, key), before.get(key), after.get(key));
        }
    }

    fn compare_items(&mut self, path: &str, before: &[Value], after: &[Value], pairing: Pairing) {
        match pairing {
            Pairing::Index => {
                for (index, (before, after)) in before.iter().zip(after).enumerate() {
                    self.compare(&format!("{path}[{index}]"), Some(before), Some(after));
                }
            }
            Pairing::Name => {
                let named =
                    |items: &[Value], name: &str| items.iter().find(|item| item["name"] == name).cloned();
                let added = after.iter().filter(|item| !before.iter().any(|old| old["name"] == item["name"]));
                for name in before.iter().chain(added).filter_map(|item| item["name"].as_str()) {
                    let path = format!("{path}[name={name}]");
                    self.compare(&path, named(before, name).as_ref(), named(after, name).as_ref());
                }
            }
        }
    }

    fn push(&mut self, path: &str, before: Option<&Value>, after: Option<&Value>) {
        let path = path.to_owned();
        let (before, after) = match (self.secret && !is_open(&path), before, after) {
            (false, ..) => (before.cloned(), after.cloned()),
            (true, Some(Value::Object(_)) | None, _) | (true, _, Some(Value::Object(_)) | None) => {
                (before.map(|value| masked(&path, value)), after.map(|value| masked(&path, value)))
            }
            (true, ..) => (Some(MASKED_CHANGE.0.into()), Some(MASKED_CHANGE.1.into())),
        };
        self.fields.push(FieldDiff { path, before, after });
    }
}

/// The pairing of the items of two lists.
enum Pairing {
    /// By their names, which are in the same order in both lists.
    Name,
    /// By their places.
    Index,
}

impl Pairing {
    /// Returns `None` if the lists can be compared as a whole only.
    fn of(before: &[Value], after: &[Value]) -> Option<Self> {
        if let (Some(before), Some(after)) = (names(before), names(after)) {
            let common = |of: &[&str], with: &[&str]| -> Vec<String> {
                of.iter().filter(|name| with.contains(name)).map(|name| (*name).to_owned()).collect()
            };
            return (common(&before, &after) == common(&after, &before)).then_some(Self::Name);
        }
        let objects = before.iter().chain(after).all(Value::is_object);
        (objects && before.len() == after.len()).then_some(Self::Index)
    }
}

/// Returns the names of the items, if each has one of its own.
fn names(items: &[Value]) -> Option<Vec<&str>> {
    let names: Vec<&str> = items.iter().map(|item| item.get("name")?.as_str()).collect::<Option<_>>()?;
    let distinct: HashSet<&&str> = names.iter().collect();
    (distinct.len() == names.len()).then_some(names)
}

fn join(path: &str, key: &str) -> String {
    let plain = !key.is_empty() && key.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_'));
    let mut joined = path.to_owned();
    // Writing to a string does not fail.
    let _ = match (plain, path.is_empty()) {
        (true, true) => write!(joined, "{key}"),
        (true, false) => write!(joined, ".{key}"),
        (false, _) => write!(joined, "[{key:?}]"),
    };
    joined
}

fn is_secret(id: &ObjectId) -> bool {
    id.group.is_empty() && id.kind == "Secret"
}

/// Returns whether a field of a Secret may be seen.
fn is_open(path: &str) -> bool {
    OPEN.iter().any(|open| {
        path.strip_prefix(open).is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
    })
}

/// Replaces the values of a part of a Secret.
fn masked(path: &str, value: &Value) -> Value {
    match value {
        Value::Object(map) => {
            let masked = map.iter().map(|(key, value)| (key.clone(), masked(&join(path, key), value)));
            Value::Object(masked.collect())
        }
        value if is_open(path) => value.clone(),
        _ => Value::from(MASK),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// The difference of two objects of a kind, a line for each field.
    fn diff(kind: &str, before: Option<&Value>, after: Option<&Value>) -> Vec<String> {
        let id = ObjectId { kind: kind.to_owned(), ..ObjectId::default() };
        let shown = |value: Option<Value>| value.map_or_else(|| "-".to_owned(), |value| value.to_string());
        let line =
            |field: FieldDiff| format!("{}: {} → {}", field.path, shown(field.before), shown(field.after));
        fields(&id, before, after).into_iter().map(line).collect()
    }

    #[test]
    fn each_field_that_differs_is_named() {
        let before = json!({
            "metadata": {"annotations": {"example.com/a": "1", "gone": "x"}},
            "spec": {"replicas": 2, "args": ["a", "b"], "same": {"deep": [1, 2]}, "nothing": null},
        });
        let after = json!({
            "metadata": {"annotations": {"example.com/a": "2"}},
            "spec": {"replicas": 3, "args": ["a", "c"], "same": {"deep": [1, 2]}, "nothing": null, "new": {"a": 1}},
        });
        assert_eq!(
            diff("Toy", Some(&before), Some(&after)),
            [
                r#"metadata.annotations["example.com/a"]: "1" → "2""#,
                r#"metadata.annotations.gone: "x" → -"#,
                r#"spec.args: ["a","b"] → ["a","c"]"#,
                r#"spec.new: - → {"a":1}"#,
                "spec.replicas: 2 → 3",
            ]
        );
        assert_eq!(diff("Toy", Some(&before), Some(&before)), [""; 0]);
        assert_eq!(diff("Toy", None, Some(&json!({"a": 1}))), [r#": - → {"a":1}"#]);
    }

    #[test]
    fn items_of_lists_are_paired_by_name_or_by_place() {
        let of = |before: Value, after: Value| {
            diff("Toy", Some(&json!({"l": before})), Some(&json!({"l": after})))
        };
        let item = |name: &str, value: i64| json!({"name": name, "value": value});
        // One is inserted in front of another that changes.
        assert_eq!(
            of(
                json!([item("web", 1), item("log", 1)]),
                json!([item("new", 1), item("web", 2), item("log", 1)])
            ),
            ["l[name=web].value: 1 → 2", r#"l[name=new]: - → {"name":"new","value":1}"#]
        );
        assert_eq!(
            of(json!([item("a", 1), item("b", 1)]), json!([item("b", 1)])),
            [r#"l[name=a]: {"name":"a","value":1} → -"#]
        );
        // An order may matter.
        assert_eq!(of(json!([item("a", 1), item("b", 1)]), json!([item("b", 1), item("a", 1)])).len(), 1);
        // Names that occur twice say nothing.
        assert_eq!(
            of(json!([item("a", 1), item("a", 2)]), json!([item("a", 1), item("a", 3)])),
            ["l[1].value: 2 → 3"]
        );
        assert_eq!(of(json!([{"port": 1}]), json!([{"port": 2}])), ["l[0].port: 1 → 2"]);
        assert_eq!(of(json!([{"port": 1}]), json!([{"port": 1}, {"port": 2}])).len(), 1);
    }

    #[test]
    fn values_of_secrets_are_never_shown() {
        let secret = |value: &str| {
            json!({
                "apiVersion": "v1", "kind": "Secret", "type": "Opaque",
                "metadata": {
                    "name": "s", "labels": {"app": "a"},
                    "annotations": {"kubectl.kubernetes.io/last-applied-configuration": value},
                },
                "data": {"password": value, "same": "hunter0"},
                "stringData": {"nested": {"list": [value]}},
            })
        };
        let mut other = secret("hunter3");
        other["metadata"]["labels"]["app"] = "b".into();
        let mut fewer = secret("hunter2");
        fewer.as_object_mut().unwrap().remove("data");
        let cases = [
            (Some(secret("hunter2")), Some(other)),
            (None, Some(secret("hunter2"))),
            (Some(secret("hunter2")), None),
            (Some(fewer.clone()), Some(secret("hunter2"))),
            (Some(secret("hunter2")), Some(fewer)),
        ];
        for (before, after) in &cases {
            let lines = diff("Secret", before.as_ref(), after.as_ref());
            assert!(!lines.is_empty() && !lines.concat().contains("hunter"), "{lines:?}");
        }
        let lines = diff("Secret", cases[0].0.as_ref(), cases[0].1.as_ref());
        assert!(lines.contains(&r#"data.password: "*** (before)" → "*** (after)""#.to_owned()), "{lines:?}");
        assert!(lines.contains(&r#"metadata.labels.app: "a" → "b""#.to_owned()), "{lines:?}");
        let lines = diff("Secret", cases[3].0.as_ref(), cases[3].1.as_ref());
        assert_eq!(lines, [r#"data.password: - → "***""#, r#"data.same: - → "***""#]);
        // A kind of another group that is named like it has its own rules.
        let id =
            ObjectId { group: "example.com".to_owned(), kind: "Secret".to_owned(), ..ObjectId::default() };
        assert_eq!(fields(&id, None, Some(&json!({"a": "b"})))[0].after, Some(json!({"a": "b"})));
    }
}
