//! JSON merge patches (RFC 7396), and the part of strategic merge patches that `kubectl` uses.

use serde_json::{Map, Value};

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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

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
}
