//! Templates of the objects that belong to an environment: a namespace, a service account, role bindings.
//!
//! ```text
//!   text ─► marks: {{ .project.id }} becomes a mark ─► YAML ─► EnvironmentTemplate ─► render with Values ─► RenderedObject
//! ```
//!
//! The keys and the variables are those of GitLab. An expression names one variable; there are no functions and no conditions. Values
//! replace marks in the texts of the parsed document, and never in YAML, so that no value can add a key or an object.
#![warn(missing_docs)]

mod marks;
mod object;
mod parse;
mod render;
mod variable;

pub use self::{
    object::RenderedObject,
    parse::{ApplyResources, DeleteResources, EnvironmentTemplate, MAX_OBJECTS},
    render::EnvironmentRenderError,
    variable::{Values, Variable},
};

/// The template of agents without one of their own: a namespace, in which the jobs of the environment are administrators.
pub const DEFAULT_TEMPLATE: &str = include_str!("default.yaml");
