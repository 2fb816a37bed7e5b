//! Field managers (`managedFields`): which program has set which field. A list is one field.

use serde_json::{Map, Value, json};

/// A set of fields in the form of `fieldsV1`: a tree whose leaves are empty.
pub(super) type FieldSet = Map<String, Value>;

/// The keys of the metadata that have managers.
const METADATA: [&str; 4] = ["labels", "annotations", "ownerReferences", "finalizers"];

/// Returns the fields of an object, without its status.
pub(super) fn fields_of(object: &Value) -> FieldSet {
    let mut set = FieldSet::new();
    for (key, value) in object.as_object().into_iter().flatten() {
        match &**key {
            "apiVersion" | "kind" | "status" => {}
            "metadata" => {
                let metadata = value.as_object().into_iter().flatten();
                let managed = metadata.filter(|(key, _)| METADATA.contains(&key.as_str()));
                let metadata: FieldSet = managed.map(|(key, value)| (name(key), tree(value))).collect();
                if !metadata.is_empty() {
                    set.insert(name(key), metadata.into());
                }
            }
            _ => drop(set.insert(name(key), tree(value))),
        }
    }
    set
}

/// Returns the status of an object as a set of fields.
pub(super) fn status_of(object: &Value) -> FieldSet {
    object.get("status").map(|status| (name("status"), tree(status))).into_iter().collect()
}

/// Returns the fields of `set` whose values differ between two objects.
pub(super) fn changed(set: &FieldSet, before: &Value, after: &Value) -> FieldSet {
    let mut found = FieldSet::new();
    for (key, children) in set {
        let field = field(key);
        let (before, after) = (before.get(field), after.get(field));
        if before == after {
            continue;
        }
        let children = children.as_object().filter(|children| !children.is_empty());
        let differing = match (children, before, after) {
            (Some(children), before, after) => {
                let null = Value::Null;
                let differing = changed(children, before.unwrap_or(&null), after.unwrap_or(&null));
                if differing.is_empty() {
                    continue;
                }
                differing
            }
            (None, ..) => FieldSet::new(),
        };
        found.insert(key.clone(), differing.into());
    }
    found
}

/// Adds the fields of another set.
pub(super) fn add(into: &mut FieldSet, other: &FieldSet) {
    for (key, children) in other {
        let slot = into.entry(key.clone()).or_insert_with(|| json!({}));
        if let (Some(slot), Some(children)) = (slot.as_object_mut(), children.as_object()) {
            add(slot, children);
        }
    }
}

/// Removes the fields of another set.
pub(super) fn subtract(from: &mut FieldSet, other: &FieldSet) {
    for (key, gone) in other {
        let Some(children) = from.get_mut(key).and_then(Value::as_object_mut) else { continue };
        match gone.as_object().filter(|gone| !gone.is_empty() && !children.is_empty()) {
            Some(gone) => {
                subtract(children, gone);
                if children.is_empty() {
                    from.remove(key);
                }
            }
            None => drop(from.remove(key)),
        }
    }
}

/// Returns the fields that are in both sets.
pub(super) fn common(a: &FieldSet, b: &FieldSet) -> FieldSet {
    let mut found = FieldSet::new();
    for (key, a) in a {
        let (Some(a), Some(b)) = (a.as_object(), b.get(key).and_then(Value::as_object)) else { continue };
        if a.is_empty() || b.is_empty() {
            drop(found.insert(key.clone(), json!({})))
        } else {
            let children = common(a, b);
            if !children.is_empty() {
                found.insert(key.clone(), children.into());
            }
        }
    }
    found
}

/// Removes fields from an object, and maps that become empty.
pub(super) fn remove(object: &mut Value, set: &FieldSet) {
    let Some(object) = object.as_object_mut() else { return };
    for (key, children) in set {
        let field = field(key);
        let is_empty = match (children.as_object(), object.get_mut(field)) {
            (Some(children), Some(value)) if !children.is_empty() => {
                remove(value, children);
                value.as_object().is_some_and(Map::is_empty)
            }
            _ => true,
        };
        if is_empty && !matches!(field, "metadata" | "spec") {
            object.remove(field);
        }
    }
}

/// Returns the paths of the fields, such as `.data.a`.
pub(super) fn paths(set: &FieldSet) -> Vec<String> {
    set.iter()
        .flat_map(|(key, children)| {
            let field = field(key);
            match children.as_object().filter(|children| !children.is_empty()) {
                Some(children) => {
                    paths(children).iter().map(|path| format!(".{field}{path}")).collect::<Vec<_>>()
                }
                None => vec![format!(".{field}")],
            }
        })
        .collect()
}

fn tree(value: &Value) -> Value {
    match value.as_object() {
        Some(object) => object.iter().map(|(key, value)| (name(key), tree(value))).collect(),
        None => json!({}),
    }
}

fn name(key: &str) -> String {
    format!("f:{key}")
}

fn field(key: &str) -> &str {
    key.strip_prefix("f:").unwrap_or(key)
}
