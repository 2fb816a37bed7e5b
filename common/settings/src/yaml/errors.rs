//! All errors of a file. A parser stops at the first one, so the value with the error is removed, and the rest is parsed again.

use std::{fmt::Write as _, path::Path};

use serde::de::DeserializeOwned;
use serde_json::Value;
use serde_path_to_error::{Path as KeyPath, Segment};
use serde_saphyr::{DuplicateKeyPolicy, Options};

use super::{ConfigError, KeyLocations, TrackedError, parse_tracked};

/// The most errors of one file.
const MAX_ERRORS: usize = 20;

/// The place of a value in a file that may have lost some.
type StepPath = Vec<Step>;

#[derive(Clone, Debug, PartialEq, Eq)]
enum Step {
    Key(String),
    Index(usize),
}

/// Returns the error `first` of a text, and all that follow once its value is removed.
pub(super) fn all_errors<T: DeserializeOwned>(
    file: &Path,
    text: &str,
    options: &Options,
    first: ConfigError,
) -> ConfigError {
    let mut lenient = options.clone();
    lenient.duplicate_keys = DuplicateKeyPolicy::LastWins;
    let Ok(mut rest) = serde_saphyr::from_str_with_options::<Value>(text, lenient) else { return first };
    let keys = KeyLocations::parse(text);
    let mut errors = vec![first];
    let mut removed: Vec<StepPath> = Vec::new();
    while errors.len() < MAX_ERRORS {
        // JSON is YAML, so that the values are parsed as before.
        let Err(TrackedError { path, what, .. }) = parse_tracked::<T>(&rest.to_string(), options) else {
            break;
        };
        let Some(found) = remove(&mut rest, &path) else { break };
        let place = original(found, &removed);
        let error = ConfigError::about(file, &keys, super::key(&render(&place)).unwrap_or_default(), what);
        let is_known = errors.iter().any(|known| known.has_problem_of(&error));
        if !is_known && !is_missing(&error, &place, &removed) {
            errors.push(error);
        }
        removed.push(place);
    }
    ConfigError::several(errors).expect("there is a first error")
}

/// Removes the value with the error, and returns its place.
fn remove(tree: &mut Value, path: &KeyPath) -> Option<StepPath> {
    let mut place = StepPath::new();
    let mut node = &*tree;
    for segment in path {
        let (step, next) = match segment {
            Segment::Map { key } | Segment::Enum { variant: key } => (Step::Key(key.clone()), node.get(key)),
            Segment::Seq { index } => (Step::Index(*index), node.get(index)),
            Segment::Unknown => break,
        };
        // The path has names of types, too, which are not in the file.
        if let Some(next) = next {
            node = next;
            place.push(step);
        }
    }
    let (last, section) = place.split_last()?;
    let mut node = tree;
    for step in section {
        node = match step {
            Step::Key(key) => node.get_mut(key)?,
            Step::Index(index) => node.get_mut(index)?,
        };
    }
    match (last, node) {
        (Step::Key(key), Value::Object(entries)) => drop(entries.remove(key)),
        (Step::Index(index), Value::Array(elements)) => drop(elements.remove(*index)),
        _ => return None,
    }
    Some(place)
}

/// Returns the place in the file of a value, before which other elements of its list were removed.
fn original(mut place: StepPath, removed: &[StepPath]) -> StepPath {
    for earlier in removed {
        if let Some((Step::Index(gone), list)) = earlier.split_last()
            && let Some((Step::Index(index), _)) = place.strip_prefix(list).and_then(<[Step]>::split_first)
            && index >= gone
        {
            place[list.len()] = Step::Index(index + 1);
        }
    }
    place
}

/// Returns whether an error says that a key is missing which the file has, with another error.
fn is_missing(error: &ConfigError, section: &[Step], removed: &[StepPath]) -> bool {
    removed.iter().any(|place| match place.split_last() {
        Some((Step::Key(key), parent)) => parent == section && error.what == super::missing(key),
        _ => false,
    })
}

fn render(place: &[Step]) -> String {
    place.iter().fold(String::new(), |mut text, step| {
        match step {
            Step::Key(key) if text.is_empty() => text += key,
            Step::Key(key) => drop(write!(text, ".{key}")),
            Step::Index(index) => drop(write!(text, "[{index}]")),
        }
        text
    })
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use serde::Deserialize;
    use serde_saphyr::Spanned;

    use crate::parse;

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    #[allow(dead_code, reason = "only the errors matter")]
    struct File {
        #[serde(default)]
        of: Vec<Spanned<u8>>,
        #[serde(default)]
        entries: Vec<Entry>,
        #[serde(default)]
        on: bool,
    }

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    #[allow(dead_code, reason = "only the errors matter")]
    struct Entry {
        name: String,
        size: u8,
    }

    fn errors(text: &str) -> Vec<String> {
        let error = parse::<File>(Path::new("f"), text).unwrap_err().to_string();
        error.lines().map(str::to_owned).collect()
    }

    #[test]
    fn all_wrong_keys_are_named_at_once() {
        let found = errors(
            "ofs: 1\non: yes\nof: [1, many, 2, 300]\nor: 2\nentries:\n- {name: a, size: -1, old: 1}\n- {name: b, size: b}\n",
        );
        let expected = [
            "f:1:1: ofs: unknown field `ofs`",
            "f:3:9: of[1]: it must be a whole number",
            "f:3:18: of[3]: it must be a whole number",
            "f:4:1: or: unknown field `or`",
            "f:6:13: entries[0].size: it must be a whole number",
            "f:6:23: entries[0].old: unknown field `old`",
            "f:7:13: entries[1].size: it must be a whole number",
        ];
        assert_eq!(found.len(), expected.len(), "{found:#?}");
        for (found, expected) in found.iter().zip(expected) {
            assert!(found.starts_with(expected), "{found}\n does not start with {expected}");
        }
    }

    #[test]
    fn key_with_an_error_is_not_missing_besides() {
        assert_eq!(errors("entries: [{name: [], size: 1}]").len(), 1);
        let found = errors("entries: [{name: a}, {size: 2}]\non: of course\n");
        assert!(
            found[0].contains("the key size is missing") && found[1].contains("the key name is missing"),
            "{found:?}"
        );
        assert!(found[2].contains("on: it must be true or false"), "{found:?}");
    }

    #[test]
    fn repeated_key_does_not_hide_other_errors() {
        let found = errors("on: true\non: false\nor: 2\n");
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[0].contains("the key on is set twice"), "{found:?}");
        assert!(found[1].starts_with("f:3:1: or: unknown field"), "{found:?}");
    }

    #[test]
    fn number_of_errors_is_limited() {
        let text: String = (0..50).map(|number| format!("a{number}: 1\n")).collect();
        assert_eq!(errors(&text).len(), super::MAX_ERRORS);
    }
}
