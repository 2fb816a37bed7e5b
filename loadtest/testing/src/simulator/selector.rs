//! Label selectors and field selectors of lists and watches, and access to fields of JSON objects with an unknown shape.

use serde_json::{Map, Value};

use crate::simulator::{query::Query, response::StatusError};

/// A condition on objects. Without requirements every object matches.
#[derive(Debug, Default)]
pub(crate) struct Selector {
    requirements: Vec<Requirement>,
}

impl Selector {
    /// Parses `labelSelector` and `fieldSelector`.
    pub(crate) fn from_query(query: &Query) -> Result<Self, StatusError> {
        let labels = query.get("labelSelector").unwrap_or_default();
        let fields = query.get("fieldSelector").unwrap_or_default();
        let labels = terms(labels).map(|term| label(term).ok_or_else(|| unreadable("label", term)));
        let fields = terms(fields).map(|term| field(term).ok_or_else(|| unreadable("field", term)));
        Ok(Self { requirements: labels.chain(fields).collect::<Result<_, _>>()? })
    }

    pub(crate) fn matches(&self, object: &Value) -> bool {
        self.requirements.iter().all(|requirement| requirement.matches(object))
    }
}

#[derive(Debug)]
struct Requirement {
    subject: Subject,
    condition: Condition,
}

#[derive(Debug)]
enum Subject {
    Label(String),
    /// A JSON pointer. Real servers support a few fields per kind; this one supports all.
    Field(String),
}

#[derive(Debug)]
enum Condition {
    In(Vec<String>),
    /// Also matches objects without the label.
    NotIn(Vec<String>),
    Exists,
    Absent,
}

impl Requirement {
    fn matches(&self, object: &Value) -> bool {
        let value = match &self.subject {
            Subject::Label(key) => object["metadata"]["labels"][key.as_str()].as_str(),
            // An absent field equals the empty text, as on a real server.
            Subject::Field(pointer) => {
                Some(object.pointer(pointer).and_then(Value::as_str).unwrap_or_default())
            }
        };
        match (&self.condition, value) {
            (Condition::In(wanted), Some(value)) => wanted.iter().any(|wanted| wanted == value),
            (Condition::NotIn(unwanted), Some(value)) => unwanted.iter().all(|unwanted| unwanted != value),
            (Condition::Exists, value) => value.is_some(),
            (Condition::Absent, value) => value.is_none(),
            (Condition::In(_), None) => false,
            (Condition::NotIn(_), None) => true,
        }
    }
}

/// Splits at commas outside of parentheses.
fn terms(selector: &str) -> impl Iterator<Item = &str> {
    let mut nested = false;
    let terms = selector.split(move |character| {
        match character {
            '(' => nested = true,
            ')' => nested = false,
            _ => {}
        }
        character == ',' && !nested
    });
    terms.map(str::trim).filter(|term| !term.is_empty())
}

fn label(term: &str) -> Option<Requirement> {
    let (key, condition) = if let Some(term) = term.strip_suffix(')') {
        let (left, values) = term.split_once('(')?;
        let (key, operator) = left.trim().rsplit_once(char::is_whitespace)?;
        let values = values.split(',').map(|value| value.trim().to_owned()).collect();
        match operator {
            "in" => (key, Condition::In(values)),
            "notin" => (key, Condition::NotIn(values)),
            _ => return None,
        }
    } else if let Some(compared) = comparison(term) {
        compared
    } else if let Some(key) = term.strip_prefix('!') {
        (key, Condition::Absent)
    } else {
        (term, Condition::Exists)
    };
    let key = key.trim();
    let plausible = !key.is_empty() && !key.contains(['(', ')', '!', '=', ' ']);
    plausible.then(|| Requirement { subject: Subject::Label(key.to_owned()), condition })
}

fn field(term: &str) -> Option<Requirement> {
    let (path, condition) = comparison(term)?;
    let pointer = format!("/{}", path.trim().replace('.', "/"));
    Some(Requirement { subject: Subject::Field(pointer), condition })
}

/// Parses `key=value`, `key==value` or `key!=value`.
fn comparison(term: &str) -> Option<(&str, Condition)> {
    let (key, value) = term.split_once('=')?;
    let value = value.strip_prefix('=').unwrap_or(value).trim();
    Some(match key.strip_suffix('!') {
        Some(key) => (key, Condition::NotIn(vec![value.to_owned()])),
        None => (key, Condition::In(vec![value.to_owned()])),
    })
}

fn unreadable(what: &str, term: &str) -> StatusError {
    StatusError::bad_request(format!("unable to parse the {what} selector at \"{term}\""))
}

/// Returns the text at a JSON pointer, or an empty text.
pub(crate) fn text<'object>(object: &'object Value, pointer: &str) -> &'object str {
    object.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

/// Returns the number at a JSON pointer.
pub(crate) fn number(object: &Value, pointer: &str) -> Option<i64> {
    object.pointer(pointer).and_then(Value::as_i64)
}

/// Returns the list at a JSON pointer, or an empty one.
pub(crate) fn items<'object>(object: &'object Value, pointer: &str) -> &'object [Value] {
    object.pointer(pointer).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

/// Returns the fields of `object`, which is replaced by an empty object if it is none.
pub(crate) fn fields(object: &mut Value) -> &mut Map<String, Value> {
    if !object.is_object() {
        *object = Value::Object(Map::new());
    }
    object.as_object_mut().expect("made an object above")
}

/// Returns the fields of one field of `object`, which is created if it is missing.
pub(crate) fn section<'object>(object: &'object mut Value, name: &str) -> &'object mut Map<String, Value> {
    fields(fields(object).entry(name).or_insert(Value::Null))
}

/// Returns the nesting depth of lists and objects; that of a plain value is 0.
///
/// This recurses, so the value must come from a parser with a depth limit.
pub(crate) fn depth(value: &Value) -> usize {
    match value {
        Value::Array(items) => 1 + items.iter().map(depth).max().unwrap_or(0),
        Value::Object(fields) => 1 + fields.values().map(depth).max().unwrap_or(0),
        _ => 0,
    }
}

/// The maximum depth of an object, so that recursion over stored objects does not exhaust the stack.
pub(crate) const MAX_DEPTH: usize = 100;

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn matches(query: &str) -> bool {
        let object = json!({
            "metadata": { "name": "web", "labels": { "app": "web", "tier": "front" } },
            "spec": { "nodeName": "here" },
        });
        Selector::from_query(&Query::parse(query)).expect("readable").matches(&object)
    }

    #[test]
    fn labels_select() {
        for yes in ["app=web", "app==web,tier!=back", "app in (api, web)", "other notin (x),!none", "app", ""]
        {
            assert!(matches(&format!("labelSelector={yes}")), "{yes}");
        }
        for no in ["app=api", "app!=web", "app notin (web)", "!app", "none", "none in (a)", "app=web,none=x"]
        {
            assert!(!matches(&format!("labelSelector={no}")), "{no}");
        }
    }

    #[test]
    fn fields_select() {
        assert!(matches("fieldSelector=metadata.name=web,spec.nodeName=here,status.phase!=Failed"));
        assert!(!matches("fieldSelector=metadata.name=api"));
    }

    #[test]
    fn invalid_selector_is_refused() {
        for query in ["labelSelector=app near (x)", "labelSelector==", "fieldSelector=metadata.name"] {
            assert!(Selector::from_query(&Query::parse(query)).is_err(), "{query}");
        }
    }
}
