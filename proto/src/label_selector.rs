//! Selectors of labels, as `spec.selector` of objects and as `kubectl --selector` writes them.

use std::{collections::BTreeMap, str::FromStr};

use serde_json::{Map, Value};

/// The most requirements of one selector.
const MAX_REQUIREMENTS: usize = 64;

/// Selects labels. Without requirements, it selects all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LabelSelector(Vec<Requirement>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Requirement {
    In(String, Vec<String>),
    NotIn(String, Vec<String>),
    Exists(String),
    DoesNotExist(String),
    /// The API server would refuse the requirement, so that nothing is selected.
    Never,
}

/// A text that is no selector.
#[derive(Debug, thiserror::Error)]
#[error(
    "{0:?} is no requirement for labels: write key=value, key!=value, key in (a,b), key notin (a,b), key or !key"
)]
pub struct InvalidSelector(String);

impl LabelSelector {
    /// Returns a selector of objects that have all these labels.
    pub fn of_labels(labels: &BTreeMap<String, String>) -> Self {
        let equals = |(key, value): (&String, &String)| Requirement::In(key.clone(), vec![value.clone()]);
        Self(labels.iter().map(equals).collect())
    }

    /// Returns the same for labels as an object has them.
    pub fn of_match_labels(labels: &Map<String, Value>) -> Self {
        let equals = |(key, value): (&String, &Value)| match value.as_str() {
            Some(value) => Requirement::In(key.clone(), vec![value.to_owned()]),
            None => Requirement::Never,
        };
        Self(labels.iter().take(MAX_REQUIREMENTS).map(equals).collect())
    }

    /// Reads a LabelSelector of Kubernetes.
    pub fn of_json(selector: &Value) -> Self {
        let labels = selector["matchLabels"].as_object();
        let mut requirements = labels.map(Self::of_match_labels).unwrap_or_default().0;
        let expressions = selector["matchExpressions"].as_array().into_iter().flatten();
        for expression in expressions.take(MAX_REQUIREMENTS) {
            let key = expression["key"].as_str().unwrap_or_default().to_owned();
            let values = || {
                let values = expression["values"].as_array().into_iter().flatten();
                values.filter_map(Value::as_str).map(str::to_owned).collect()
            };
            requirements.push(match expression["operator"].as_str().unwrap_or_default() {
                "In" => Requirement::In(key, values()),
                "NotIn" => Requirement::NotIn(key, values()),
                "Exists" => Requirement::Exists(key),
                "DoesNotExist" => Requirement::DoesNotExist(key),
                _ => Requirement::Never,
            });
        }
        Self(requirements)
    }

    /// Returns whether an object with these labels is selected. `label` returns the value of a label.
    pub fn matches<'a>(&self, label: impl Fn(&str) -> Option<&'a str>) -> bool {
        self.0.iter().all(|requirement| match requirement {
            Requirement::In(key, values) => {
                label(key).is_some_and(|value| values.iter().any(|one| one == value))
            }
            Requirement::NotIn(key, values) => {
                label(key).is_none_or(|value| values.iter().all(|one| one != value))
            }
            Requirement::Exists(key) => label(key).is_some(),
            Requirement::DoesNotExist(key) => label(key).is_none(),
            Requirement::Never => false,
        })
    }

    /// Returns an estimate of the memory on the heap in bytes. 16 bytes of each allocation are those of the allocator.
    pub fn size(&self) -> usize {
        let text = |text: &String| size_of::<String>() + 16 + text.len();
        let size = |requirement: &Requirement| match requirement {
            Requirement::In(key, values) | Requirement::NotIn(key, values) => {
                text(key) + values.iter().map(text).sum::<usize>()
            }
            Requirement::Exists(key) | Requirement::DoesNotExist(key) => text(key),
            Requirement::Never => 0,
        };
        self.0.iter().map(|requirement| size_of::<Requirement>() + size(requirement)).sum()
    }

    /// Adds the requirements of another selector.
    pub fn and(mut self, other: Self) -> Self {
        self.0.extend(other.0);
        self
    }
}

impl FromStr for LabelSelector {
    type Err = InvalidSelector;

    fn from_str(text: &str) -> Result<Self, InvalidSelector> {
        let parts = split(text);
        if parts.len() > MAX_REQUIREMENTS {
            return Err(InvalidSelector(format!("{} requirements", parts.len())));
        }
        parts.into_iter().map(requirement).collect::<Result<_, _>>().map(Self)
    }
}

/// Splits a text at the commas outside of parentheses.
fn split(text: &str) -> Vec<&str> {
    let (mut parts, mut begin, mut depth) = (Vec::new(), 0, 0_usize);
    for (place, byte) in text.bytes().enumerate() {
        match byte {
            b'(' => depth += 1,
            b')' => depth = depth.saturating_sub(1),
            b',' if depth == 0 => {
                parts.push(&text[begin..place]);
                begin = place + 1;
            }
            _ => {}
        }
    }
    if !text.trim().is_empty() {
        parts.push(&text[begin..]);
    }
    parts
}

fn requirement(text: &str) -> Result<Requirement, InvalidSelector> {
    let error = || InvalidSelector(text.chars().take(100).collect());
    let text = text.trim();
    let key = |text: &str| {
        let key = text.trim();
        let valid = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b'/');
        (!key.is_empty() && key.bytes().all(valid)).then(|| key.to_owned()).ok_or_else(error)
    };
    let value = |text: &str| {
        let value = text.trim();
        let valid = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
        value.bytes().all(valid).then(|| value.to_owned()).ok_or_else(error)
    };
    if let Some((before, list)) = text.strip_suffix(')').and_then(|text| text.split_once('(')) {
        let values = list.split(',').map(value).collect::<Result<Vec<_>, _>>()?;
        let (name, operator) = before.trim_end().rsplit_once(char::is_whitespace).ok_or_else(error)?;
        return match operator {
            "in" => Ok(Requirement::In(key(name)?, values)),
            "notin" => Ok(Requirement::NotIn(key(name)?, values)),
            _ => Err(error()),
        };
    }
    if let Some((name, unequal)) = text.split_once("!=") {
        return Ok(Requirement::NotIn(key(name)?, vec![value(unequal)?]));
    }
    if let Some((name, equal)) = text.split_once('=') {
        // `key=` selects the empty value. After two signs, a value was forgotten.
        let equal = match equal.strip_prefix('=').map(str::trim) {
            Some("") => return Err(error()),
            Some(equal) => equal,
            None => equal,
        };
        return Ok(Requirement::In(key(name)?, vec![value(equal)?]));
    }
    match text.strip_prefix('!') {
        Some(name) => Ok(Requirement::DoesNotExist(key(name)?)),
        None => Ok(Requirement::Exists(key(text)?)),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn label(key: &str) -> Option<&'static str> {
        [("app", "web"), ("tier", "front"), ("empty", "")]
            .into_iter()
            .find(|label| label.0 == key)
            .map(|label| label.1)
    }

    #[test]
    fn text_of_kubectl_is_understood() {
        for (text, expected) in [
            ("", true),
            ("app=web", true),
            ("app==web", true),
            (" app = web , tier = front ", true),
            ("app=web,tier=back", false),
            ("app!=web", false),
            ("other!=web", true),
            ("app in (web, x)", true),
            ("app notin (web,x)", false),
            ("app in (x),tier", false),
            ("tier", true),
            ("!tier", false),
            ("!other", true),
            ("empty=", true),
            ("app=", false),
        ] {
            let selector: LabelSelector = text.parse().unwrap();
            assert_eq!(selector.matches(label), expected, "{text}");
        }
    }

    #[test]
    fn wrong_text_is_an_error_that_quotes_it() {
        for text in [
            "=a",
            "a b",
            "app in web",
            "app within (a)",
            "(a)",
            "a=b=c",
            "a==",
            "a== ",
            ",",
            "a,,b",
            "a=é",
            "a in (b",
            "!",
        ] {
            let error = text.parse::<LabelSelector>().unwrap_err().to_string();
            assert!(error.contains("write key=value"), "{text}: {error}");
        }
        assert!(vec!["a=b"; MAX_REQUIREMENTS + 1].join(",").parse::<LabelSelector>().is_err());
    }

    #[test]
    fn selector_of_an_object_is_understood() {
        let matches = |selector: Value| LabelSelector::of_json(&selector).matches(label);
        assert!(matches(json!({})));
        assert!(matches(json!({"matchLabels": {"app": "web"}})));
        assert!(!matches(json!({"matchLabels": {"app": 1}})));
        for (expression, expected) in [
            (json!({"key": "app", "operator": "In", "values": ["web", "x"]}), true),
            (json!({"key": "app", "operator": "NotIn", "values": ["web"]}), false),
            (json!({"key": "other", "operator": "NotIn", "values": ["web"]}), true),
            (json!({"key": "tier", "operator": "Exists"}), true),
            (json!({"key": "tier", "operator": "DoesNotExist"}), false),
            (json!({"key": "tier", "operator": "Like"}), false),
        ] {
            assert_eq!(matches(json!({"matchExpressions": [expression]})), expected, "{expression}");
        }
    }
}
