//! Objects with the values of an environment.

use std::fmt;

use serde_json::{Map, Value};

/// An object of an environment.
#[derive(Clone, Debug, PartialEq)]
pub struct RenderedObject {
    /// The API group; empty for the core group.
    pub group: String,
    /// The version.
    pub version: String,
    /// The kind.
    pub kind: String,
    /// The namespace; empty if the template names none.
    pub namespace: String,
    /// The name.
    pub name: String,
    /// The first line in the template, from 1.
    pub line: u64,
    /// The object as JSON.
    pub object: Value,
}

/// The longest name of an object (RFC 1123 subdomain).
const MAX_NAME: usize = 253;

/// An object that has no path at the API server. Its names are shown as texts in quotes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum InvalidObject {
    #[error("apiVersion or kind is not one of Kubernetes")]
    Kind,
    #[error("metadata.name: {0} cannot be the name of an object")]
    Name(String),
    #[error("{0} cannot be the name of a namespace: it has lower-case letters, digits and '-', at most 63")]
    Namespace(String),
}

impl RenderedObject {
    /// Reads group, version, kind, namespace and name of an object.
    ///
    /// # Errors
    ///
    /// One of them cannot be a segment of a path of the API server.
    pub(crate) fn new(line: u64, object: Map<String, Value>) -> Result<Self, InvalidObject> {
        let text = |value: Option<&Value>| value.and_then(Value::as_str).unwrap_or_default().to_owned();
        let metadata = object.get("metadata");
        let of_metadata = |key: &str| text(metadata.and_then(|metadata| metadata.get(key)));
        let (api_version, kind) = (text(object.get("apiVersion")), text(object.get("kind")));
        let (group, version) = api_version.split_once('/').unwrap_or(("", &api_version));
        if !is_segment(version) || (api_version.contains('/') && !is_segment(group)) || !is_segment(&kind) {
            return Err(InvalidObject::Kind);
        }
        let (group, version) = (group.to_owned(), version.to_owned());
        let (name, namespace) = (of_metadata("name"), of_metadata("namespace"));
        if !is_segment(&name) || name.len() > MAX_NAME {
            return Err(InvalidObject::Name(shown(&name)));
        }
        // RBAC of a cluster is by namespace, so that its name must be exactly what the API server takes.
        let is_namespace = group.is_empty() && kind == "Namespace";
        for label in [is_namespace.then_some(&name), Some(&namespace)].into_iter().flatten() {
            if !label.is_empty() && !is_label(label) {
                return Err(InvalidObject::Namespace(shown(label)));
            }
        }
        Ok(Self { group, version, kind, namespace, name, line, object: Value::Object(object) })
    }
}

/// `RoleBinding review-1-30-7/deployers`.
impl fmt::Display for RenderedObject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &*self.namespace {
            "" => write!(f, "{} {}", self.kind, self.name),
            namespace => write!(f, "{} {namespace}/{}", self.kind, self.name),
        }
    }
}

/// Returns a text of a template or of GitLab for a message: it may be long, and have any character.
fn shown(text: &str) -> String {
    let short: String = text.chars().take(80).collect();
    format!("{short:?}")
}

/// Returns whether a text is one segment of a path, and needs no encoding. Names of RBAC may have colons and capitals.
fn is_segment(text: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b':');
    !text.is_empty() && text != "." && text != ".." && text.bytes().all(plain)
}

/// Returns whether a text is a label of RFC 1123.
fn is_label(text: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    text.len() <= 63 && text.bytes().all(plain) && !text.starts_with('-') && !text.ends_with('-')
}
