//! Selectors of labels, as `spec.selector` of objects and as `kubectl --selector` writes them.

use std::{collections::BTreeMap, str::FromStr};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// The most requirements of one selector.
const MAX_REQUIREMENTS: usize = 64;
/// The most values of one requirement.
const MAX_VALUES: usize = 100;

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

/// The operator of a requirement, as Kubernetes names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum LabelOperator {
    /// The label has one of the values.
    In,
    /// The label has none of the values, or does not exist.
    NotIn,
    /// The label exists.
    Exists,
    /// The label does not exist.
    DoesNotExist,
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

    /// Adds a requirement, as a file has it.
    ///
    /// # Errors
    ///
    /// The API server would refuse the requirement, or there are too many. The text says what to write.
    pub fn require(&mut self, key: &str, operator: LabelOperator, values: &[String]) -> Result<(), String> {
        if self.0.len() == MAX_REQUIREMENTS {
            return Err(format!("a selector has at most {MAX_REQUIREMENTS} requirements"));
        }
        check_key(key)?;
        check_values(operator, values)?;
        let (key, values) = (key.to_owned(), values.to_vec());
        self.0.push(match operator {
            LabelOperator::In => Requirement::In(key, values),
            LabelOperator::NotIn => Requirement::NotIn(key, values),
            LabelOperator::Exists => Requirement::Exists(key),
            LabelOperator::DoesNotExist => Requirement::DoesNotExist(key),
        });
        Ok(())
    }

    /// Returns whether the selector has no requirement.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the key, the operator and the values of each requirement. One that selects nothing has no value to be in.
    pub fn requirements(&self) -> impl Iterator<Item = (&str, LabelOperator, &[String])> {
        self.0.iter().map(|requirement| match requirement {
            Requirement::In(key, values) => (key.as_str(), LabelOperator::In, values.as_slice()),
            Requirement::NotIn(key, values) => (key.as_str(), LabelOperator::NotIn, values.as_slice()),
            Requirement::Exists(key) => (key.as_str(), LabelOperator::Exists, [].as_slice()),
            Requirement::DoesNotExist(key) => (key.as_str(), LabelOperator::DoesNotExist, [].as_slice()),
            Requirement::Never => ("", LabelOperator::In, [].as_slice()),
        })
    }

    /// Adds the requirements of another selector.
    pub fn and(mut self, other: Self) -> Self {
        self.0.extend(other.0);
        self
    }
}

/// Checks the key of a label: a name, after a DNS name and a slash if it has a prefix.
fn check_key(key: &str) -> Result<(), String> {
    let (prefix, name) = match key.split_once('/') {
        Some((prefix, name)) => (Some(prefix), name),
        None => (None, key),
    };
    let is_dns_name = |prefix: &str| prefix.len() <= 253 && prefix.split('.').all(is_dns_label);
    if name.is_empty() || !is_label_text(name) || !prefix.is_none_or(is_dns_name) {
        return Err(format!("{key:?} is not the key of a label: write it like team, or example.com/team"));
    }
    Ok(())
}

/// Returns whether a text may be between the dots of a DNS name. A key with another one is a mistake, which every namespace lacks.
fn is_dns_label(text: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    !text.is_empty() && text.bytes().all(is_plain) && !text.starts_with('-') && !text.ends_with('-')
}

/// Checks the values of a requirement.
fn check_values(operator: LabelOperator, values: &[String]) -> Result<(), String> {
    let needs_values = matches!(operator, LabelOperator::In | LabelOperator::NotIn);
    if needs_values == values.is_empty() {
        return Err(if needs_values {
            format!("the operator {operator:?} needs values")
        } else {
            format!("the operator {operator:?} has no values: remove them, or write In or NotIn")
        });
    }
    if values.len() > MAX_VALUES {
        return Err(format!("a requirement has at most {MAX_VALUES} values"));
    }
    match values.iter().find(|value| !is_label_text(value)) {
        Some(value) => Err(format!(
            "{value:?} is not the value of a label: it has at most 63 letters, digits, '-', '_' and '.'; there are no patterns here"
        )),
        None => Ok(()),
    }
}

/// Returns whether a text may be the value of a label, or a name in its key if it is not empty.
fn is_label_text(text: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    let is_end = |byte: Option<u8>| byte.is_none_or(|byte| byte.is_ascii_alphanumeric());
    text.len() <= 63
        && text.bytes().all(is_plain)
        && is_end(text.bytes().next())
        && is_end(text.bytes().next_back())
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

    #[test]
    fn requirement_of_a_file_is_one_that_the_api_server_accepts() {
        use LabelOperator::{DoesNotExist, Exists, In, NotIn};
        let add = |key: &str, operator, values: &[&str]| {
            let values: Vec<_> = values.iter().map(|&value| value.to_owned()).collect();
            let mut selector = LabelSelector::default();
            selector.require(key, operator, &values).map(|()| selector)
        };
        for (key, operator, values, expected) in [
            ("app", In, &["web", "db"][..], true),
            ("app", NotIn, &["web"], false),
            ("example.com/none", NotIn, &["web"], true),
            ("a-b.1.example.com/none", DoesNotExist, &[], true),
            ("empty", In, &[""], true),
            ("tier", Exists, &[], true),
            ("tier", DoesNotExist, &[], false),
        ] {
            let selector = add(key, operator, values).unwrap();
            assert_eq!(selector.matches(label), expected, "{key} {operator:?} {values:?}");
            let read: Vec<_> = selector.requirements().collect();
            assert_eq!((read[0].0, read[0].1, read[0].2.len()), (key, operator, values.len()));
        }
        let long = "a".repeat(64);
        for (key, operator, values, expected) in [
            ("", Exists, &[][..], "not the key"),
            ("-a", Exists, &[], "not the key"),
            ("a b", Exists, &[], "not the key"),
            ("/a", Exists, &[], "not the key"),
            ("A.com/a", Exists, &[], "not the key"),
            ("exa..mple.com/open", DoesNotExist, &[], "not the key"),
            ("-a/open", DoesNotExist, &[], "not the key"),
            ("a-.com/open", NotIn, &["x"], "not the key"),
            (".com/open", Exists, &[], "not the key"),
            ("com./open", Exists, &[], "not the key"),
            ("a_b.com/open", Exists, &[], "not the key"),
            ("a/b/c", Exists, &[], "not the key"),
            (&*long, Exists, &[], "not the key"),
            ("a", In, &[], "needs values"),
            ("a", DoesNotExist, &["b"], "has no values"),
            ("a", In, &["shop-*"], "there are no patterns"),
            ("a", In, &["b."], "not the value"),
            ("a", NotIn, &[&*long], "not the value"),
        ] {
            let error = add(key, operator, values).unwrap_err();
            assert!(error.contains(expected), "{key:?} {values:?}: {error}");
        }
        assert!(add("a", In, &["b"; MAX_VALUES + 1]).is_err());
        let mut full = LabelSelector::default();
        (0..MAX_REQUIREMENTS).for_each(|_| full.require("a", Exists, &[]).unwrap());
        assert!(full.require("a", Exists, &[]).is_err());
    }
}
