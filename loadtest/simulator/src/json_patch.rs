//! JSON Patch (RFC 6902). The result is limited to the size and depth of a request.

use serde::Deserialize;
use serde_json::Value;

use super::error::StatusError;
use super::fields::{MAX_DEPTH, depth};
use super::request::MAX_BODY;
use super::response::encode;

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
pub(crate) fn apply(document: &mut Value, operations: Vec<Operation>) -> Result<(), StatusError> {
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
    use serde_json::json;

    use super::*;

    fn patched(mut document: Value, patch: Value) -> Result<Value, StatusError> {
        apply(&mut document, serde_json::from_value(patch).expect("a patch"))?;
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
