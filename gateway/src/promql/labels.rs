//! Which labels, and which values of them, a caller may see.

use std::collections::BTreeMap;

use promql_parser::{
    label::{METRIC_NAME, Matcher},
    parser::token::{T_EQL, T_EQL_REGEX},
};

/// What is special in a regular expression (Go's `regexp.QuoteMeta`).
const SPECIAL: &[char] = &['\\', '.', '+', '*', '?', '(', ')', '|', '[', ']', '{', '}', '^', '$'];

/// The matchers that every selector of a caller gets. All of them hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Labels(Vec<Matcher>);

/// Labels that cannot be enforced, or cannot be meant.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct InvalidLabels(String);

impl Labels {
    /// The values that each label may have.
    pub fn new(labels: &BTreeMap<String, Vec<String>>) -> Result<Self, InvalidLabels> {
        if labels.is_empty() {
            return Err(InvalidLabels("name at least one label, or leave the key out".to_owned()));
        }

        labels.iter().map(|(name, values)| matcher(name, values)).collect::<Result<_, _>>().map(Self)
    }

    pub(super) fn matchers(&self) -> &[Matcher] {
        &self.0
    }
}

fn matcher(name: &str, values: &[String]) -> Result<Matcher, InvalidLabels> {
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '_';
    if name.is_empty() || !name.chars().all(plain) || name.starts_with(|c: char| c.is_ascii_digit()) {
        return Err(InvalidLabels(format!("{name:?} is no name of a label: [a-zA-Z_][a-zA-Z0-9_]*")));
    }
    if name == METRIC_NAME {
        return Err(InvalidLabels(format!("{METRIC_NAME} is the metric's name: it cannot be enforced")));
    }
    if values.is_empty() {
        return Err(InvalidLabels(format!("the label {name} has no values: nothing could be seen")));
    }
    // A matcher for the empty value also finds the series that have no such label.
    if values.iter().any(|value| value.is_empty() || value.contains(char::is_control)) {
        return Err(InvalidLabels(format!("a value of {name} is empty or has control characters")));
    }

    let (operator, value) = match values {
        [value] => (T_EQL, value.clone()),
        values => (T_EQL_REGEX, values.iter().map(|value| literal(value)).collect::<Vec<_>>().join("|")),
    };
    Matcher::new_matcher(operator, name.to_owned(), value).map_err(InvalidLabels)
}

/// A regular expression that matches this text. Prometheus anchors the whole alternation.
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
