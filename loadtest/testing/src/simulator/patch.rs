//! Patches: JSON Patch (RFC 6902), JSON merge patches (RFC 7396), and the part of strategic merge patches that `kubectl` uses.
//!
//! The result of a JSON Patch is limited to the size and depth of a request.

use serde::Deserialize;
use serde_json::{Map, Value};

use crate::simulator::{
    request::MAX_BODY,
    response::{StatusError, encode},
    selector::{MAX_DEPTH, depth},
};

/// The handling of lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lists {
    /// A list in the patch replaces the existing one (JSON merge patch).
    Replace,
    /// Lists whose elements have a well-known key are merged by that key (strategic merge patch and
    /// server-side apply).
    MergeByKey,
}

/// Applies `patch` to `target`.
pub(crate) fn merge(target: &mut Value, patch: Value, lists: Lists) {
    match patch {
        Value::Object(patch) => merge_fields(target, patch, lists),
        Value::Array(patch) if lists == Lists::MergeByKey => merge_lists(target, patch),
        patch => *target = patch,
    }
}

/// Lists that strategic merge patches merge, with the keys of their elements. Ports have one key in a
/// container and another in a service.
const KEYS: [(&str, &[&str]); 11] = [
    ("conditions", &["type"]),
    ("containers", &["name"]),
    ("env", &["name"]),
    ("ephemeralContainers", &["name"]),
    ("hostAliases", &["ip"]),
    ("imagePullSecrets", &["name"]),
    ("initContainers", &["name"]),
    ("ownerReferences", &["uid"]),
    ("ports", &["containerPort", "port"]),
    ("volumeMounts", &["mountPath"]),
    ("volumes", &["name"]),
];

fn merge_fields(target: &mut Value, mut patch: Map<String, Value>, lists: Lists) {
    if !target.is_object() {
        *target = Value::Object(Map::new());
    }
    let Some(fields) = target.as_object_mut() else { return };
    if lists == Lists::MergeByKey {
        if patch.remove("$patch").is_some_and(|directive| directive == "replace") {
            fields.clear();
        }
        if let Some(Value::Array(kept)) = patch.remove("$retainKeys") {
            fields.retain(|name, _| kept.iter().any(|kept| kept == name));
        }
    }
    for (name, value) in patch {
        if lists == Lists::MergeByKey && name.starts_with('$') {
            // `$setElementOrder/…` only sorts, and the simulator keeps the existing order.
            if let Some(list) = name.strip_prefix("$deleteFromPrimitiveList/") {
                remove_elements(fields.get_mut(list), &value);
            }
            continue;
        }
        if value.is_null() {
            fields.remove(&name);
            continue;
        }
        let keys = KEYS.iter().find(|(list, _)| *list == name).map_or(&[] as &[&str], |(_, keys)| keys);
        let present = fields.entry(name).or_insert(Value::Null);
        match value {
            Value::Array(patch) if lists == Lists::MergeByKey => merge_list(present, patch, keys),
            value => merge(present, value, lists),
        }
    }
}

/// Merges a list without a field name, which therefore is replaced.
fn merge_lists(target: &mut Value, patch: Vec<Value>) {
    merge_list(target, patch, &[]);
}

fn merge_list(target: &mut Value, patch: Vec<Value>, keys: &[&str]) {
    let key = keys.iter().find(|key| patch.iter().all(|element| !element[**key].is_null()));
    let replaces = patch.iter().any(|element| element["$patch"] == "replace");
    let (Some(key), false) = (key, replaces) else {
        let kept = patch.into_iter().filter(|element| element["$patch"].is_null());
        *target = Value::Array(kept.map(without_directives).collect());
        return;
    };
    if !target.is_array() {
        *target = Value::Array(Vec::new());
    }
    let Some(list) = target.as_array_mut() else { return };
    for element in patch {
        let position = list.iter().position(|present| present[*key] == element[*key]);
        match (position, element["$patch"] == "delete") {
            (Some(position), true) => {
                list.remove(position);
            }
            (Some(position), false) => merge(&mut list[position], element, Lists::MergeByKey),
            (None, true) => {}
            (None, false) => list.push(without_directives(element)),
        }
    }
}

fn remove_elements(list: Option<&mut Value>, unwanted: &Value) {
    if let (Some(Value::Array(list)), Some(unwanted)) = (list, unwanted.as_array()) {
        list.retain(|element| !unwanted.contains(element));
    }
}

/// Returns the value of a patch for a missing target.
fn without_directives(value: Value) -> Value {
    let mut target = Value::Null;
    merge(&mut target, value, Lists::MergeByKey);
    target
}

/// One operation of a patch.
#[derive(Debug, Deserialize)]
#[serde(tag = "op", rename_all = "lowercase")]
pub(crate) enum Operation {
    Add { path: String, value: Value },
    Remove { path: String },
    Replace { path: String, value: Value },
    Move { from: String, path: String },
    Copy { from: String, path: String },
    Test { path: String, value: Value },
}

/// Applies the operations in order. After an error the document is in an intermediate state.
pub(crate) fn apply_json_patch(document: &mut Value, operations: Vec<Operation>) -> Result<(), StatusError> {
    let mut copied = 0;
    for operation in operations {
        match operation {
            Operation::Add { path, value } => add(document, &path, value)?,
            Operation::Remove { path } => drop(remove(document, &path)?),
            Operation::Replace { path, value } => {
                bounded(&path, &value)?;
                *document.pointer_mut(&path).ok_or_else(|| missing(&path))? = value;
            }
            Operation::Move { from, path } => {
                let value = remove(document, &from)?;
                add(document, &path, value)?;
            }
            Operation::Copy { from, path } => {
                let value = document.pointer(&from).ok_or_else(|| missing(&from))?.clone();
                // Repeated copies grow exponentially, so their total size is limited.
                copied += encode(&value).len();
                if copied > MAX_BODY {
                    return Err(StatusError::too_large(MAX_BODY));
                }
                add(document, &path, value)?;
            }
            Operation::Test { path, value } => {
                if document.pointer(&path).ok_or_else(|| missing(&path))? != &value {
                    return Err(StatusError::bad_request(format!("the test of \"{path}\" failed")));
                }
            }
        }
    }
    Ok(())
}

fn add(document: &mut Value, path: &str, value: Value) -> Result<(), StatusError> {
    bounded(path, &value)?;
    let Some((parent, name)) = split(path) else {
        *document = value;
        return Ok(());
    };
    match document.pointer_mut(parent) {
        Some(Value::Object(fields)) => {
            fields.insert(name, value);
            Ok(())
        }
        Some(Value::Array(list)) if name == "-" => {
            list.push(value);
            Ok(())
        }
        Some(Value::Array(list)) => match name.parse::<usize>() {
            Ok(index) if index <= list.len() => {
                list.insert(index, value);
                Ok(())
            }
            _ => Err(missing(path)),
        },
        _ => Err(missing(path)),
    }
}

fn remove(document: &mut Value, path: &str) -> Result<Value, StatusError> {
    let (parent, name) = split(path).ok_or_else(|| missing(path))?;
    let removed = match document.pointer_mut(parent) {
        Some(Value::Object(fields)) => fields.remove(&name),
        Some(Value::Array(list)) => {
            let index = name.parse::<usize>().ok().filter(|index| *index < list.len());
            index.map(|index| list.remove(index))
        }
        _ => None,
    };
    removed.ok_or_else(|| missing(path))
}

/// Splits a pointer into that of the container and the name in it.
fn split(path: &str) -> Option<(&str, String)> {
    let (parent, name) = path.rsplit_once('/')?;
    Some((parent, name.replace("~1", "/").replace("~0", "~")))
}

/// The operations could together exceed the depth limit of the parser.
fn bounded(path: &str, value: &Value) -> Result<(), StatusError> {
    if path.matches('/').count() + depth(value) > MAX_DEPTH {
        return Err(StatusError::bad_request(format!("the patch nests more than {MAX_DEPTH} deep")));
    }
    Ok(())
}

fn missing(path: &str) -> StatusError {
    StatusError::bad_request(format!("the patch does not apply: nothing at \"{path}\""))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn merged(mut target: Value, patch: Value, lists: Lists) -> Value {
        merge(&mut target, patch, lists);
        target
    }

    #[test]
    fn merge_patches_set_remove_and_replace() {
        let target = json!({ "a": 1, "b": { "c": [1, 2], "d": 3 } });
        let patch = json!({ "a": null, "b": { "c": [3] }, "e": { "f": null, "g": 1 } });
        let expected = json!({ "b": { "c": [3], "d": 3 }, "e": { "g": 1 } });
        assert_eq!(merged(target, patch, Lists::Replace), expected);
    }

    #[test]
    fn strategic_patches_merge_containers_by_name() {
        let target = json!({ "containers": [
        { "name": "a", "image": "1", "ports": [{ "containerPort": 80 }] },
        { "name": "b" },
    ] });
        let patch = json!({
            "$setElementOrder/containers": [{ "name": "a" }, { "name": "c" }],
            "containers": [
                { "name": "a", "image": "2" },
                { "name": "b", "$patch": "delete" },
                { "name": "c", "args": ["x"] },
            ],
        });
        let expected = json!({ "containers": [
        { "name": "a", "image": "2", "ports": [{ "containerPort": 80 }] },
        { "name": "c", "args": ["x"] },
    ] });
        assert_eq!(merged(target, patch, Lists::MergeByKey), expected);
    }

    #[test]
    fn strategic_directives_are_removed() {
        let target = json!({ "volumes": [{ "name": "v", "emptyDir": {} }], "finalizers": ["a", "b"] });
        let patch = json!({
            "volumes": [{ "$retainKeys": ["name", "secret"], "name": "v", "secret": { "$patch": "replace" } }],
            "$deleteFromPrimitiveList/finalizers": ["a"],
        });
        let expected = json!({ "volumes": [{ "name": "v", "secret": {} }], "finalizers": ["b"] });
        assert_eq!(merged(target, patch, Lists::MergeByKey), expected);
    }

    fn patched(mut document: Value, patch: Value) -> Result<Value, StatusError> {
        apply_json_patch(&mut document, serde_json::from_value(patch).expect("a patch"))?;
        Ok(document)
    }

    #[test]
    fn operations_are_applied() {
        let document = json!({ "a": [1, 2], "b": { "c/d": 1 } });
        let patch = json!([
            { "op": "test", "path": "/a/0", "value": 1 },
            { "op": "add", "path": "/a/1", "value": 9 },
            { "op": "add", "path": "/a/-", "value": 3 },
            { "op": "remove", "path": "/a/0" },
            { "op": "replace", "path": "/b/c~1d", "value": 2 },
            { "op": "move", "from": "/b/c~1d", "path": "/e" },
            { "op": "copy", "from": "/e", "path": "/b/f" },
        ]);
        assert_eq!(
            patched(document, patch).expect("applies"),
            json!({ "a": [9, 2, 3], "b": { "f": 2 }, "e": 2 })
        );
    }

    #[test]
    fn inapplicable_operation_is_refused() {
        for patch in [
            json!([{ "op": "test", "path": "/a", "value": 2 }]),
            json!([{ "op": "remove", "path": "/b" }]),
            json!([{ "op": "remove", "path": "" }]),
            json!([{ "op": "add", "path": "/list/2", "value": 1 }]),
            json!([{ "op": "add", "path": "/a/b", "value": 1 }]),
            json!([{ "op": "replace", "path": "/b", "value": 1 }]),
        ] {
            assert!(patched(json!({ "a": 1, "list": [] }), patch.clone()).is_err(), "{patch}");
        }
    }

    #[test]
    fn repeated_copies_are_limited() {
        let double = json!({ "op": "copy", "from": "", "path": "/a" });
        let failure = patched(json!({}), json!(vec![double; 1000])).expect_err("too deep");
        assert_eq!(failure.code, 400);
        let double = json!({ "op": "copy", "from": "/a", "path": "/a/-" });
        let wide = json!({ "a": vec!["x".repeat(1000); 1000] });
        let failure = patched(wide, json!(vec![double; 10])).expect_err("too large");
        assert_eq!(failure.code, 413);
    }
}
