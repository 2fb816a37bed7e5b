//! Answers with a JSON body.

use serde_json::{Value, json};

/// A status with a JSON body; the body is empty if it is null.
pub(crate) type Answer = (u16, Value);

pub(crate) fn unauthorized() -> Answer {
    (401, message("401 Unauthorized"))
}

pub(crate) fn message(text: &str) -> Value {
    json!({"message": text})
}
