//! The labels of the series that a caller may see.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// The label with the name of a metric.
const METRIC_NAME: &str = "__name__";
/// The most bytes of all values of a label: they become one regular expression, whose size is limited.
pub const MAX_VALUE_BYTES: usize = 64 << 10;

/// The values that each label of a series has, if a caller may see the series. There is at least one label, and each has a value.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "BTreeMap<String, Vec<String>>")]
pub struct SeriesLabels(BTreeMap<String, Vec<String>>);

/// The error of labels that cannot be enforced.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct SeriesLabelsError(String);

impl SeriesLabels {
    /// Checks the allowed values of each label.
    ///
    /// # Errors
    ///
    /// There is no label, or the name or a value of a label cannot be enforced.
    pub fn new(labels: BTreeMap<String, Vec<String>>) -> Result<Self, SeriesLabelsError> {
        if labels.is_empty() {
            return Err(SeriesLabelsError(
                "at least one label is required; to restrict nothing, remove the key".to_owned(),
            ));
        }

        for (name, values) in &labels {
            check(name, values).map_err(SeriesLabelsError)?;
        }
        Ok(Self(labels))
    }

    /// Returns the bytes of all names and values.
    pub fn size(&self) -> usize {
        let size =
            |(name, values): (&str, &[String])| name.len() + values.iter().map(String::len).sum::<usize>();
        self.iter().map(size).sum()
    }

    /// Returns the number of the values of all labels.
    pub fn value_count(&self) -> usize {
        self.0.values().map(Vec::len).sum()
    }

    /// Iterates over the labels and their allowed values, in order of the names.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &[String])> {
        self.0.iter().map(|(name, values)| (&**name, &**values))
    }
}

impl TryFrom<BTreeMap<String, Vec<String>>> for SeriesLabels {
    type Error = SeriesLabelsError;

    fn try_from(labels: BTreeMap<String, Vec<String>>) -> Result<Self, SeriesLabelsError> {
        Self::new(labels)
    }
}

fn check(name: &str, values: &[String]) -> Result<(), String> {
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '_';
    if name.is_empty() || !name.chars().all(plain) || name.starts_with(|c: char| c.is_ascii_digit()) {
        return Err(format!("{name:?} is not a label name: [a-zA-Z_][a-zA-Z0-9_]*"));
    }
    if name == METRIC_NAME {
        return Err(format!("{METRIC_NAME} is the metric's name: it cannot be enforced"));
    }
    if values.is_empty() {
        return Err(format!("the label {name} has no values, so that the caller could see no series"));
    }
    if values.iter().map(String::len).sum::<usize>() > MAX_VALUE_BYTES {
        return Err(format!("the values of {name} have more than {MAX_VALUE_BYTES} bytes together"));
    }
    // A matcher for the empty value also matches series without the label.
    if values.iter().any(|value| value.is_empty() || value.contains(char::is_control)) {
        return Err(format!("a value of {name} is empty or has control characters"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_labels_are_refused() {
        let refused = |name: &str, values: &[&str]| {
            let values = values.iter().map(|value| (*value).to_owned()).collect();
            SeriesLabels::new(BTreeMap::from([(name.to_owned(), values)])).unwrap_err().to_string()
        };
        assert!(refused("a.b", &["x"]).contains("not a label name"));
        assert!(refused("1a", &["x"]).contains("not a label name"));
        assert!(refused("", &["x"]).contains("not a label name"));
        assert!(refused("__name__", &["x"]).contains("metric's name"));
        assert!(refused("ns", &[]).contains("has no values"));
        assert!(refused("ns", &["a", ""]).contains("empty"));
        assert!(refused("ns", &["a\nb"]).contains("control"));
        assert!(refused("ns", &["a"; MAX_VALUE_BYTES + 1]).contains("65536 bytes together"));
        assert!(SeriesLabels::new(BTreeMap::new()).is_err());
    }
}
