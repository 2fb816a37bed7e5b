//! The labels to which a caller is restricted.

use std::collections::BTreeMap;

use promql_parser::{
    label::{METRIC_NAME, Matcher},
    parser::token::{T_EQL, T_EQL_REGEX},
};

/// The metacharacters of a regular expression (Go's `regexp.QuoteMeta`).
const SPECIAL: &[char] = &['\\', '.', '+', '*', '?', '(', ')', '|', '[', ']', '{', '}', '^', '$'];

/// The matchers that are added to every selector of a caller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Labels(Vec<Matcher>);

/// The error of labels that cannot be enforced.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct LabelsError(String);

impl Labels {
    /// Creates the matchers for the allowed values of each label.
    pub fn new(labels: &BTreeMap<String, Vec<String>>) -> Result<Self, LabelsError> {
        if labels.is_empty() {
            return Err(LabelsError(
                "at least one label is required; to restrict nothing, remove the key".to_owned(),
            ));
        }

        labels.iter().map(|(name, values)| matcher(name, values)).collect::<Result<_, _>>().map(Self)
    }

    pub(super) fn matchers(&self) -> &[Matcher] {
        &self.0
    }
}

fn matcher(name: &str, values: &[String]) -> Result<Matcher, LabelsError> {
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '_';
    if name.is_empty() || !name.chars().all(plain) || name.starts_with(|c: char| c.is_ascii_digit()) {
        return Err(LabelsError(format!("{name:?} is not a label name: [a-zA-Z_][a-zA-Z0-9_]*")));
    }
    if name == METRIC_NAME {
        return Err(LabelsError(format!("{METRIC_NAME} is the metric's name: it cannot be enforced")));
    }
    if values.is_empty() {
        return Err(LabelsError(format!(
            "the label {name} has no values, so that the caller could see no series"
        )));
    }
    // A matcher for the empty value also matches series without the label.
    if values.iter().any(|value| value.is_empty() || value.contains(char::is_control)) {
        return Err(LabelsError(format!("a value of {name} is empty or has control characters")));
    }

    let (operator, value) = match values {
        [value] => (T_EQL, value.clone()),
        values => (T_EQL_REGEX, values.iter().map(|value| literal(value)).collect::<Vec<_>>().join("|")),
    };
    Matcher::new_matcher(operator, name.to_owned(), value).map_err(LabelsError)
}

/// Returns a regular expression that matches exactly this text. Prometheus anchors the whole alternation.
fn literal(text: &str) -> String {
    let mut literal = String::with_capacity(text.len());
    for c in text.chars() {
        if SPECIAL.contains(&c) {
            literal.push('\\');
        }
        literal.push(c);
    }
    literal
}
