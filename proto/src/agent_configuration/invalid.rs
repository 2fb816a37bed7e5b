//! The invalid values of a configuration. Its author mends them.

use std::fmt;

use super::MAX_NAMESPACES;

/// An invalid value, with its key.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{key}: {what}")]
pub struct InvalidValue {
    /// The key, such as `gitops.manifest_projects`.
    pub key: String,
    /// The problem, in words that may begin with the place below the key.
    pub what: String,
}

/// A scope that cannot be enforced.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidScope {
    /// There is no namespace.
    #[error("name at least one namespace, or remove scope to allow all of them")]
    Empty,
    /// There are more than 1000 namespaces.
    #[error("a scope has at most {MAX_NAMESPACES} namespaces")]
    TooManyNamespaces,
    /// The text is not the name of a namespace.
    #[error("{0:?} is not a namespace: write its exact name; there are no patterns here")]
    Namespace(String),
}

impl InvalidValue {
    pub(super) fn new(key: impl Into<String>, what: impl fmt::Display) -> Self {
        Self { key: key.into(), what: what.to_string() }
    }
}
