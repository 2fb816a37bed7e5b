//! A template of environments with any content, and a value of its variables: the first line is the value, and the rest the template.
//!
//! * The template is accepted or rejected quickly and in little memory: aliases do not multiply.
//! * An error begins with the file's name, and is one line.
//! * No value adds an object or a key: the objects have the same shape with each value.
//! * A name or a namespace is one segment of a path.

use std::path::Path;

use environment_templates::{EnvironmentTemplate, RenderedObject, Values, Variable};
use serde_json::Value;

/// Checks one input.
pub fn run(data: &[u8]) {
    let Ok(text) = str::from_utf8(data) else { return };
    let (value, text) = text.split_once('\n').unwrap_or(("x", text));
    let template = match EnvironmentTemplate::parse(Path::new("default.yaml"), text) {
        Ok(template) => template,
        Err(error) => return check_error(&error.to_string()),
    };
    let plain = render(&template, "x");
    let Some(objects) = render(&template, value) else { return };
    for object in &objects {
        for part in [&object.name, &object.namespace] {
            assert!(!part.contains(['/', '?', '%', '#', '\n', ' ']) && part != "..", "{part:?}");
        }
    }
    if let Some(plain) = plain {
        let shapes = |objects: &[RenderedObject]| -> Vec<usize> {
            objects.iter().map(|object| nodes(&object.object)).collect()
        };
        assert_eq!(shapes(&objects), shapes(&plain), "the value changes the shape");
    }
}

fn render(template: &EnvironmentTemplate, value: &str) -> Option<Vec<RenderedObject>> {
    let values =
        Variable::ALL.iter().fold(Values::default(), |values, &variable| values.with(variable, value));
    match template.render(&values) {
        Ok(objects) => Some(objects),
        Err(error) => {
            check_error(&error.to_string());
            None
        }
    }
}

fn check_error(error: &str) {
    assert!(error.starts_with("default.yaml"), "{error:?}");
    assert!(!error.contains('\n'), "{error:?}");
}

/// Returns the number of values, of which a mapping has one for each key.
fn nodes(value: &Value) -> usize {
    match value {
        Value::Array(items) => 1 + items.iter().map(nodes).sum::<usize>(),
        Value::Object(object) => 1 + object.values().map(nodes).sum::<usize>(),
        _ => 1,
    }
}
