//! Access to fields of JSON objects with an unknown shape.

use serde_json::{Map, Value};

/// Returns the text at a JSON pointer, or an empty text.
pub(crate) fn text<'object>(object: &'object Value, pointer: &str) -> &'object str {
    object.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

/// Returns the number at a JSON pointer.
pub(crate) fn number(object: &Value, pointer: &str) -> Option<i64> {
    object.pointer(pointer).and_then(Value::as_i64)
}

/// Returns the list at a JSON pointer, or an empty one.
pub(crate) fn items<'object>(object: &'object Value, pointer: &str) -> &'object [Value] {
    object.pointer(pointer).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

/// Returns the fields of `object`, which is replaced by an empty object if it is none.
pub(crate) fn fields(object: &mut Value) -> &mut Map<String, Value> {
    if !object.is_object() {
        *object = Value::Object(Map::new());
    }
    object.as_object_mut().expect("made an object above")
}

/// Returns the fields of one field of `object`, which is created if it is missing.
pub(crate) fn section<'object>(object: &'object mut Value, name: &str) -> &'object mut Map<String, Value> {
    fields(fields(object).entry(name).or_insert(Value::Null))
}

/// Returns the nesting depth of lists and objects; that of a plain value is 0.
///
/// This recurses, so the value must come from a parser with a depth limit.
pub(crate) fn depth(value: &Value) -> usize {
    match value {
        Value::Array(items) => 1 + items.iter().map(depth).max().unwrap_or(0),
        Value::Object(fields) => 1 + fields.values().map(depth).max().unwrap_or(0),
        _ => 0,
    }
}

/// The maximum depth of an object, so that recursion over stored objects does not exhaust the stack.
pub(crate) const MAX_DEPTH: usize = 100;
