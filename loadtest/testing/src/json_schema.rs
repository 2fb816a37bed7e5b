//! Validation of values against JSON Schemas.

use boon::{Compiler, SchemaIndex, Schemas};
use serde_json::Value;

/// A JSON Schema.
pub struct Validator {
    schemas: Schemas,
    schema: SchemaIndex,
}

impl Validator {
    /// Compiles a schema, in the draft that it names.
    ///
    /// # Panics
    ///
    /// The schema is invalid.
    pub fn new(schema: Value) -> Self {
        const LOCATION: &str = "schema.json";
        let (mut compiler, mut schemas) = (Compiler::new(), Schemas::new());
        compiler.add_resource(LOCATION, schema).expect("a location of a schema");
        let schema = compiler.compile(LOCATION, &mut schemas).expect("a valid schema");
        Self { schemas, schema }
    }

    /// Returns whether a value is valid.
    pub fn is_valid(&self, value: &Value) -> bool {
        self.schemas.validate(value, self.schema).is_ok()
    }

    /// Validates a value.
    ///
    /// # Errors
    ///
    /// The value is invalid. The text has each of its faults.
    pub fn validate(&self, value: &Value) -> Result<(), String> {
        self.schemas.validate(value, self.schema).map_err(|error| format!("{error:#}"))
    }
}
