//! Reading and writing parts of objects whose shape callers decide.

use serde_json::{Map, Value};

/// The text at a JSON pointer, or nothing.
pub(crate) fn text<'object>(object: &'object Value, pointer: &str) -> &'object str {
    object.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

/// The number at a JSON pointer.
pub(crate) fn number(object: &Value, pointer: &str) -> Option<i64> {
    object.pointer(pointer).and_then(Value::as_i64)
}

/// The list at a JSON pointer, or an empty one.
pub(crate) fn items<'object>(object: &'object Value, pointer: &str) -> &'object [Value] {
    object.pointer(pointer).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

/// The fields of `object`, which becomes an object if it is something else.
pub(crate) fn fields(object: &mut Value) -> &mut Map<String, Value> {
    if !object.is_object() {
        *object = Value::Object(Map::new());
    }
    object.as_object_mut().expect("made an object above")
}

/// The fields of one part of `object`, which appears if it was missing.
pub(crate) fn section<'object>(object: &'object mut Value, name: &str) -> &'object mut Map<String, Value> {
    fields(fields(object).entry(name).or_insert(Value::Null))
}

/// How deeply lists and objects are nested, a plain value being 0.
///
/// Only for values that a parser with a limit of its own has read: this recurses.
pub(crate) fn depth(value: &Value) -> usize {
    match value {
        Value::Array(items) => 1 + items.iter().map(depth).max().unwrap_or(0),
        Value::Object(fields) => 1 + fields.values().map(depth).max().unwrap_or(0),
        _ => 0,
    }
}

/// Deeper objects are refused: recursion over what is stored must never exhaust the stack.
pub(crate) const MAX_DEPTH: usize = 100;
