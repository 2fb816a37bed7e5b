//! The file of a template.

use std::path::Path;

use proto::agent_configuration;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use settings::{Budget, ConfigError, Spanned, parse_with_budget};

use crate::marks::{has_marks, mark};

/// The most objects of a template.
pub const MAX_OBJECTS: usize = 50;

/// A template whose expressions all name a variable.
#[derive(Clone, Debug, PartialEq)]
pub struct EnvironmentTemplate {
    /// The path, for messages.
    pub(crate) file: String,
    pub(crate) objects: Vec<TemplateObject>,
    /// When the objects are applied.
    pub apply_resources: ApplyResources,
    /// When the objects are deleted.
    pub delete_resources: DeleteResources,
}

/// An object with marks in its texts.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct TemplateObject {
    /// The first line of the object in the file, from 1.
    pub(crate) line: u64,
    pub(crate) object: Map<String, Value>,
}

/// The time at which the objects are applied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ApplyResources {
    /// When a job of the environment starts.
    #[default]
    OnStart,
}

/// The time at which the objects are deleted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DeleteResources {
    /// When the environment stops.
    #[default]
    OnStop,
    /// Never: they stay until someone deletes them in the cluster.
    Never,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TemplateFile {
    objects: Spanned<Vec<Spanned<Map<String, Value>>>>,
    #[serde(default)]
    apply_resources: ApplyResources,
    #[serde(default)]
    delete_resources: DeleteResources,
}

impl EnvironmentTemplate {
    /// Parses the text of a template. `file` is for errors.
    ///
    /// # Errors
    ///
    /// The text is not YAML, has an unknown key, an expression that is no variable, no object, or too many of them. The error names
    /// file and line.
    pub fn parse(file: &Path, text: &str) -> Result<Self, ConfigError> {
        let max = agent_configuration::TemplateFile::MAX_BYTES;
        if text.len() > max {
            return Err(ConfigError::whole(file, format!("a template has at most {max} bytes")));
        }
        let text = text.trim_start_matches('\u{feff}');
        let parsed: TemplateFile = parse_with_budget(file, &mark(file, text)?, budget())?;
        let objects = parsed.objects;
        let error = |what: String| ConfigError::new(file, objects.referenced, "objects", what);
        if objects.value.is_empty() {
            return Err(error(
                "the template has no object: an environment needs a namespace at least".to_owned(),
            ));
        }
        if objects.value.len() > MAX_OBJECTS {
            return Err(error(format!("a template has at most {MAX_OBJECTS} objects")));
        }
        for (index, object) in objects.value.iter().enumerate() {
            check(&object.value).map_err(|(key, what)| {
                ConfigError::new(file, object.referenced, format!("objects[{index}].{key}"), what)
            })?;
        }
        let objects = objects
            .value
            .into_iter()
            .map(|object| TemplateObject { line: object.referenced.line().max(1), object: object.value });
        Ok(Self {
            file: file.display().to_string(),
            objects: objects.collect(),
            apply_resources: parsed.apply_resources,
            delete_resources: parsed.delete_resources,
        })
    }

    /// Returns the path of the template, for messages.
    pub fn file(&self) -> &str {
        &self.file
    }
}

/// Returns the limits of the YAML parser, against documents that expand.
fn budget() -> Budget {
    let mut budget = Budget::default();
    budget.max_nodes = 10_000;
    budget.max_events = 40_000;
    budget.max_total_scalar_bytes = 256 << 10;
    budget.max_aliases = 100;
    budget
}

/// Checks what does not depend on values. The error has a key and the problem.
fn check(object: &Map<String, Value>) -> Result<(), (String, String)> {
    for key in ["apiVersion", "kind"] {
        let text = object.get(key).and_then(Value::as_str).unwrap_or_default();
        if text.is_empty() || has_marks(text) {
            return Err((
                key.to_owned(),
                format!("each object has {key}, which is a text without a variable"),
            ));
        }
    }
    let Some(metadata) = object.get("metadata").and_then(Value::as_object) else {
        return Err(("metadata".to_owned(), "each object has metadata with a name".to_owned()));
    };
    if !metadata.get("name").is_some_and(Value::is_string) {
        return Err(("metadata.name".to_owned(), "each object has a name, which is a text".to_owned()));
    }
    if metadata.get("namespace").is_some_and(|namespace| !namespace.is_string()) {
        return Err(("metadata.namespace".to_owned(), "the namespace is a text".to_owned()));
    }
    for key in ["labels", "annotations"] {
        let Some(texts) = metadata.get(key) else { continue };
        if !texts.as_object().is_some_and(|texts| texts.values().all(Value::is_string)) {
            let what = "it is a mapping of texts: write numbers and true in quotes";
            return Err((format!("metadata.{key}"), what.to_owned()));
        }
    }
    // The API server sets them, and an object with them cannot be applied again.
    for key in ["generateName", "uid", "resourceVersion", "generation", "creationTimestamp", "managedFields"]
    {
        if metadata.contains_key(key) {
            return Err((format!("metadata.{key}"), "an object of a template cannot have it".to_owned()));
        }
    }
    if object.contains_key("status") {
        Err(("status".to_owned(), "an object of a template cannot have it".to_owned()))
    } else {
        Ok(())
    }
}
