//! Paths of fields of objects, in the form of `kas gitops diff`: `spec.containers[name=web].image`, `data["tls.crt"]`, `webhooks[*]`.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// The longest path, in bytes.
const MAX_BYTES: usize = 500;

/// The path of fields of an object.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FieldPath {
    text: String,
    segments: Vec<PathSegment>,
}

/// A step of a path.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum PathSegment {
    /// The value of a key.
    Key(String),
    /// All items of a list.
    Items,
    /// The item of a list with this `name`.
    Named(String),
    /// The item of a list at this place.
    Index(usize),
}

/// A text that is not the path of fields that may be left to others. The author of the configuration mends it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidFieldPath {
    /// The text has more than 500 bytes.
    #[error("a path has at most {MAX_BYTES} bytes")]
    TooLong,
    /// The text has another form.
    #[error("{0:?} is not a path such as spec.replicas, webhooks[*].clientConfig or data[\"a.b\"]")]
    Form(String),
    /// The field is a part of the identity of an object.
    #[error("{0}: an object is not the same without it")]
    Identity(String),
    /// The field is in the metadata, and no label or annotation.
    #[error("{0}: of metadata, only single labels and annotations can be ignored")]
    Metadata(String),
}

impl FieldPath {
    /// Returns the steps from the object to the fields. There is at least one.
    pub fn segments(&self) -> &[PathSegment] {
        &self.segments
    }

    /// Reads a path.
    ///
    /// # Errors
    ///
    /// It has another form, or names fields that belong to Git in any case.
    pub fn parse(text: &str) -> Result<Self, InvalidFieldPath> {
        let wrong = || InvalidFieldPath::Form(text.to_owned());
        if text.len() > MAX_BYTES {
            return Err(InvalidFieldPath::TooLong);
        }
        let (mut segments, mut rest) = (Vec::new(), text);
        while !rest.is_empty() {
            let (segment, after) = match rest.strip_prefix('[') {
                Some(rest) => bracket(rest).ok_or_else(wrong)?,
                None => {
                    let rest =
                        if segments.is_empty() { rest } else { rest.strip_prefix('.').ok_or_else(wrong)? };
                    let end = rest.find(['.', '[']).unwrap_or(rest.len());
                    let (key, after) = rest.split_at(end);
                    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
                    if key.is_empty() || !key.chars().all(plain) {
                        return Err(wrong());
                    }
                    (PathSegment::Key(key.to_owned()), after)
                }
            };
            segments.push(segment);
            rest = after;
        }
        match segments.first() {
            Some(PathSegment::Key(key)) if ["apiVersion", "kind"].contains(&&**key) => {
                Err(InvalidFieldPath::Identity(text.to_owned()))
            }
            Some(PathSegment::Key(key)) if key == "metadata" => match segments.get(1) {
                Some(PathSegment::Key(inner))
                    if ["labels", "annotations"].contains(&&**inner) && segments.len() > 2 =>
                {
                    Ok(Self { text: text.to_owned(), segments })
                }
                _ => Err(InvalidFieldPath::Metadata(text.to_owned())),
            },
            Some(PathSegment::Key(_)) => Ok(Self { text: text.to_owned(), segments }),
            _ => Err(wrong()),
        }
    }
}

/// Reads what follows `[`. Returns the step and the text after `]`.
fn bracket(rest: &str) -> Option<(PathSegment, &str)> {
    if let Some(quoted) = rest.strip_prefix('"') {
        // The form of a text of JSON.
        let mut values = serde_json::Deserializer::from_str(rest).into_iter::<String>();
        let key = values.next()?.ok()?;
        let after = quoted.get(values.byte_offset() - 1..)?;
        return Some((PathSegment::Key(key), after.strip_prefix(']')?));
    }
    let (inner, after) = rest.split_once(']')?;
    let segment = match (inner, inner.strip_prefix("name=")) {
        ("*", _) => PathSegment::Items,
        (_, Some(name)) if !name.is_empty() => PathSegment::Named(name.to_owned()),
        _ => PathSegment::Index(inner.parse().ok()?),
    };
    Some((segment, after))
}

impl fmt::Display for FieldPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl Serialize for FieldPath {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.text)
    }
}

impl<'de> Deserialize<'de> for FieldPath {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::parse(&String::deserialize(deserializer)?).map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::{PathSegment::*, *};

    #[test]
    fn path_of_a_diff_is_parsed() {
        let key = |key: &str| Key(key.to_owned());
        for (text, expected) in [
            ("spec.replicas", vec![key("spec"), key("replicas")]),
            (
                "webhooks[*].clientConfig.caBundle",
                vec![key("webhooks"), Items, key("clientConfig"), key("caBundle")],
            ),
            ("data[\"tls.crt\"]", vec![key("data"), key("tls.crt")]),
            ("data[\"a\\\"]b\"]", vec![key("data"), key("a\"]b")]),
            ("spec.c[name=web].image", vec![key("spec"), key("c"), Named("web".to_owned()), key("image")]),
            ("rules[0]", vec![key("rules"), Index(0)]),
            (
                "metadata.annotations[\"deployment.kubernetes.io/revision\"]",
                vec![key("metadata"), key("annotations"), key("deployment.kubernetes.io/revision")],
            ),
        ] {
            let path = FieldPath::parse(text).unwrap();
            assert_eq!(path.segments(), expected);
            assert_eq!(path.to_string(), text);
        }
    }

    #[test]
    fn text_that_is_no_path_is_refused() {
        for text in [
            "",
            ".",
            ".spec",
            "spec.",
            "spec..a",
            "spec a",
            "[0]",
            "a[",
            "a[x]",
            "a[\"b]",
            "a[\"b\"",
            "a[-1]",
            "a[name=]",
            "a[0]b",
            "kind",
            "metadata.name",
            "metadata.labels",
            "metadata",
            "/spec/replicas",
        ] {
            assert!(FieldPath::parse(text).is_err(), "{text}");
        }
        assert_eq!(FieldPath::parse(&"a".repeat(501)), Err(InvalidFieldPath::TooLong));
    }
}
