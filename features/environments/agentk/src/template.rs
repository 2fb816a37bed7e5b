//! The template of environments, as the configuration has it.

use std::path::Path;

use environment_templates::{DEFAULT_TEMPLATE, EnvironmentTemplate};
use proto::agent_configuration::TemplateFile;

/// The name of the template of agents without one of their own, for messages.
const BUILT_IN: &str = "the built-in template";

/// The template that applies, or the reason why there is none.
#[derive(Debug)]
pub(super) struct Template(Result<EnvironmentTemplate, String>);

impl Template {
    /// Parses the file of the agent, or the template that is built in.
    pub(super) fn new(file: Option<&TemplateFile>) -> Self {
        let (path, text) = match file {
            Some(TemplateFile { path, text: Ok(text) }) => (&**path, &**text),
            Some(TemplateFile { text: Err(what), .. }) => return Self(Err(what.clone())),
            None => (BUILT_IN, DEFAULT_TEMPLATE),
        };
        Self(EnvironmentTemplate::parse(Path::new(path), text).map_err(|error| error.to_string()))
    }

    /// Returns the template.
    ///
    /// # Errors
    ///
    /// Returns the reason why the file cannot be used, with its path and line.
    pub(super) fn parsed(&self) -> Result<&EnvironmentTemplate, &str> {
        self.0.as_ref().map_err(String::as_str)
    }
}
