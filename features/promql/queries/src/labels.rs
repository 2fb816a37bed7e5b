//! The labels to which a caller is restricted.

use promql_parser::{
    label::Matcher,
    parser::token::{T_EQL, T_EQL_REGEX},
};
use request_info::prometheus::SeriesLabels;

use crate::QueryError;

/// The metacharacters of a regular expression (Go's `regexp.QuoteMeta`).
const SPECIAL: &[char] = &['\\', '.', '+', '*', '?', '(', ')', '|', '[', ']', '{', '}', '^', '$'];

/// The matchers that are added to every selector of a caller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Labels(Vec<Matcher>);

impl Labels {
    /// Creates the matchers for the allowed values of each label.
    ///
    /// # Errors
    ///
    /// The reason is `not-enforceable`: the values of a label are too many for a regular expression.
    pub fn new(labels: &SeriesLabels) -> Result<Self, QueryError> {
        labels.iter().map(|(name, values)| matcher(name, values)).collect::<Result<_, _>>().map(Self)
    }

    pub(super) fn matchers(&self) -> &[Matcher] {
        &self.0
    }
}

fn matcher(name: &str, values: &[String]) -> Result<Matcher, QueryError> {
    let (operator, value) = match values {
        [value] => (T_EQL, value.clone()),
        values => (T_EQL_REGEX, values.iter().map(|value| literal(value)).collect::<Vec<_>>().join("|")),
    };
    Matcher::new_matcher(operator, name.to_owned(), value).map_err(QueryError::not_enforceable)
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

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use request_info::prometheus::MAX_VALUE_BYTES;

    use super::*;

    /// The file with the labels was accepted, so that a query must not fail because of their number.
    #[test]
    fn most_values_of_a_label_fit_into_an_expression() {
        let names: Vec<String> = (0..).map(|number| format!("{number:x}")).take(16_000).collect();
        let repeated = vec!["a".to_owned(); MAX_VALUE_BYTES];
        let wide = vec!["é".to_owned(); MAX_VALUE_BYTES / 2];
        for values in [names, repeated, wide] {
            assert!(values.iter().map(String::len).sum::<usize>() > MAX_VALUE_BYTES - 10_000);
            let labels = SeriesLabels::new(BTreeMap::from([("ns".to_owned(), values)])).unwrap();
            assert!(Labels::new(&labels).is_ok());
        }
    }
}
