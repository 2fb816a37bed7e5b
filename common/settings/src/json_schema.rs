//! JSON Schemas of files, from the types that read them.

use schemars::{JsonSchema, Schema, generate::SchemaSettings, transform::RecursiveTransform};
use serde_json::Value;

/// Returns the schema of a file as JSON text.
///
/// Its dialect is draft 07 without references, which every version of helm reads, and which can be a part of another schema.
pub fn json_schema<T: JsonSchema>(title: &str) -> String {
    let mut settings = SchemaSettings::draft07();
    settings.inline_subschemas = true;
    let settings = settings.with_transform(RecursiveTransform(remove_null_default));
    let mut schema = settings.into_generator().into_root_schema_for::<T>();
    schema.insert("title".to_owned(), title.into());
    serde_json::to_string_pretty(&schema).expect("it is JSON already") + "\n"
}

/// Removes `default: null`, which is no value that a user would write.
fn remove_null_default(schema: &mut Schema) {
    if schema.get("default") == Some(&Value::Null) {
        schema.remove("default");
    }
}
