//! Parses YAML text. Errors name file, line, column and key.

mod errors;
mod keys;

use std::{
    borrow::Cow,
    fmt,
    path::{Path, PathBuf},
};

use serde::de::DeserializeOwned;
use serde_path_to_error::Path as KeyPath;
pub use serde_saphyr::{Budget, DuplicateKeyPolicy, Location, Options, Spanned, options};
use serde_saphyr::{Error, MessageFormatter, UserMessageFormatter};

pub use self::keys::KeyLocations;

/// The reason why a configuration file cannot be used. A file with several errors has all of them, each on a line of its own.
#[derive(Debug, thiserror::Error)]
pub struct ConfigError {
    file: PathBuf,
    /// Line and column, from 1.
    at: Option<(u64, u64)>,
    key: Option<String>,
    what: String,
    /// The other errors.
    others: Vec<Self>,
}

/// An error with the path of its value.
struct TrackedError {
    path: KeyPath,
    at: Option<(u64, u64)>,
    what: String,
}

impl ConfigError {
    /// Creates an error about the value at a location.
    pub fn new(file: &Path, at: Location, key: impl Into<String>, what: impl Into<String>) -> Self {
        let at = Some((at.line(), at.column()));
        Self { file: file.to_owned(), at, key: Some(key.into()), what: what.into(), others: Vec::new() }
    }

    /// Creates an error about a key. If the file does not set the key, the location is that of its section.
    pub fn about(file: &Path, keys: &KeyLocations, key: impl Into<String>, what: impl Into<String>) -> Self {
        let key = key.into();
        Self {
            file: file.to_owned(),
            at: keys.locate(&key),
            key: Some(key),
            what: what.into(),
            others: Vec::new(),
        }
    }

    /// Creates an error about a place that has no key: its line and column, from 1.
    pub fn at(file: &Path, place: (u64, u64), what: impl Into<String>) -> Self {
        Self { file: file.to_owned(), at: Some(place), key: None, what: what.into(), others: Vec::new() }
    }

    /// Creates an error about the file as a whole.
    pub fn whole(file: &Path, what: impl Into<String>) -> Self {
        Self { file: file.to_owned(), at: None, key: None, what: what.into(), others: Vec::new() }
    }

    /// Combines errors, in the order of their lines.
    pub fn several(errors: impl IntoIterator<Item = Self>) -> Option<Self> {
        let mut errors: Vec<Self> = errors.into_iter().flat_map(Self::into_parts).collect();
        errors.sort_by_key(|error| error.at);
        let mut errors = errors.into_iter();
        let first = errors.next()?;
        Some(Self { others: errors.collect(), ..first })
    }

    /// Returns an error with all errors of several checks.
    ///
    /// # Errors
    ///
    /// A check has failed.
    pub fn check_all(checks: impl IntoIterator<Item = Result<(), Self>>) -> Result<(), Self> {
        Self::several(checks.into_iter().filter_map(Result::err)).map_or(Ok(()), Err)
    }

    /// Returns the text on one line, for logs and reports.
    pub fn to_line(&self) -> String {
        self.to_string().replace('\n', "; ")
    }

    fn into_parts(mut self) -> Vec<Self> {
        let others = std::mem::take(&mut self.others);
        [self].into_iter().chain(others).collect()
    }

    /// Returns whether another error is about the same problem of the same key.
    fn has_problem_of(&self, other: &Self) -> bool {
        self.key == other.key && self.what == other.what
    }

    fn fmt_one(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.file.display())?;
        if let Some((line, column)) = self.at {
            write!(f, ":{line}:{column}")?;
        }
        if let Some(key) = &self.key {
            // The key comes from the file, and must not forge a line of a log.
            write!(f, ": {}", key.escape_debug())?;
        }
        write!(f, ": {}", self.what)
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.fmt_one(f)?;
        self.others.iter().try_for_each(|other| {
            f.write_str("\n")?;
            other.fmt_one(f)
        })
    }
}

/// Parses the text of a file within the default [`Budget`]. Errors name `file`.
pub fn parse<T: DeserializeOwned>(file: &Path, text: &str) -> Result<T, ConfigError> {
    parse_with_budget(file, text, Budget::default())
}

/// Parses the text of a file with at most the nodes and bytes of `budget`. Errors name `file`.
pub fn parse_with_budget<T: DeserializeOwned>(
    file: &Path,
    text: &str,
    budget: Budget,
) -> Result<T, ConfigError> {
    parse_with_options(file, text, options! { budget: Some(budget) })
}

/// Parses the text of a file with the options of the library. Errors name `file`.
pub fn parse_with_options<T: DeserializeOwned>(
    file: &Path,
    text: &str,
    options: Options,
) -> Result<T, ConfigError> {
    if let Ok(parsed) = serde_saphyr::from_str_with_options(text, options.clone()) {
        return Ok(parsed);
    }

    let Err(TrackedError { path, at, what }) = parse_tracked::<T>(text, &options) else {
        unreachable!("the text was parsed with the same options")
    };
    let first =
        ConfigError { file: file.to_owned(), at, key: key(&path.to_string()), what, others: Vec::new() };
    Err(errors::all_errors::<T>(file, text, &options, first))
}

/// Parses a text with the path of the value in errors, which takes twice the time.
fn parse_tracked<T: DeserializeOwned>(text: &str, options: &Options) -> Result<T, TrackedError> {
    let mut track = serde_path_to_error::Track::new();
    let parsed =
        serde_saphyr::with_deserializer_from_str_with_options(text, options.clone(), |deserializer| {
            T::deserialize(serde_path_to_error::Deserializer::new(deserializer, &mut track))
        });
    parsed.map_err(|error| {
        let error = error.without_snippet();
        let what = error.render_with_formatter(&PlainMessages);
        // The location is displayed before the message.
        let what = what.rsplit_once(" at line ").map_or(&*what, |(what, _)| what).to_owned();
        TrackedError { path: track.path(), at: error.location().map(|at| (at.line(), at.column())), what }
    })
}

/// Returns the key as it is in the file. [`Spanned`] adds a field `value` to the path, and no configuration has such a key.
fn key(path: &str) -> Option<String> {
    let path = path.replace(".value[", "[");
    let keys: Vec<_> = path.split('.').filter(|key| !matches!(*key, "" | "?" | "value")).collect();
    (!keys.is_empty()).then(|| keys.join("."))
}

/// Formats the frequent mistakes, and leaves the others to the library.
struct PlainMessages;

impl MessageFormatter for PlainMessages {
    fn format_message<'a>(&self, error: &'a Error) -> Cow<'a, str> {
        match error {
            Error::InvalidScalar { ty, .. } => scalar(ty),
            Error::Unexpected { expected: "mapping start", .. } => {
                "it must be a mapping: keys with their values, one on each line".into()
            }
            Error::Unexpected { expected: "sequence start", .. } => "it must be a list: [a, b]".into(),
            Error::NullIntoString { .. } => "it must not be empty".into(),
            Error::DuplicateMappingKey { key: Some(key), .. } => {
                format!("the key {key} is set twice: remove one of them").into()
            }
            Error::SerdeMissingField { field, .. } => missing(field).into(),
            Error::Budget { .. } => "the file has too many entries".into(),
            error => UserMessageFormatter.format_message(error),
        }
    }
}

/// Returns the message about a key that is missing.
fn missing(key: &str) -> String {
    format!("the key {key} is missing")
}

/// Returns the message about a value that is not of a Rust type.
fn scalar(ty: &str) -> Cow<'static, str> {
    let most = match ty {
        "u8" => Some(u8::MAX.into()),
        "u16" => Some(u16::MAX.into()),
        "u32" => Some(u32::MAX.into()),
        "u64" | "usize" => Some(u64::MAX),
        _ => None,
    };
    match (ty, most) {
        (_, Some(u64::MAX)) => "it must be a whole number, without a unit and not negative".into(),
        (_, Some(most)) => format!("it must be a whole number from 0 to {most}, without a unit").into(),
        ("bool" | "boolean", _) => "it must be true or false".into(),
        ("f32" | "f64", _) => "it must be a number".into(),
        _ => format!("it is not a valid {ty}").into(),
    }
}

#[cfg(test)]
mod tests {
    use std::{collections::HashMap, path::Path};

    use serde::{Deserialize, de::DeserializeOwned};

    use super::*;
    use crate::yaml::parse;

    #[derive(Debug, serde::Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Numbers {
        of: Vec<Spanned<u8>>,
    }

    #[test]
    fn error_names_file_line_column_key_and_reason() {
        let error = |text| parse::<Numbers>(Path::new("n.yaml"), text).unwrap_err().to_string();
        assert!(
            error("of: [1]\nor: [2]").starts_with("n.yaml:2:1: or: unknown field `or`"),
            "{}",
            error("of: [1]\nor: [2]")
        );
        assert!(
            error("of:\n- 1\n- many").starts_with("n.yaml:3:3: of[1]: "),
            "{}",
            error("of:\n- 1\n- many")
        );

        let parsed: Numbers = parse(Path::new("n.yaml"), "of: [1,\n  7]").unwrap();
        let late = ConfigError::new(Path::new("n.yaml"), parsed.of[1].referenced, "of[1]", "too large");
        assert_eq!(late.to_string(), "n.yaml:2:3: of[1]: too large");
        assert_eq!(ConfigError::whole(Path::new("n.yaml"), "is missing").to_string(), "n.yaml: is missing");
    }

    #[derive(Debug, Deserialize)]
    struct Mixed {
        #[allow(dead_code, reason = "only its presence matters")]
        name: String,
    }

    fn error<T: DeserializeOwned>(text: &str) -> String {
        match parse::<T>(Path::new("f"), text) {
            Ok(_) => panic!("{text} is accepted"),
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn messages_have_no_terms_of_the_library() {
        type Numbers = HashMap<String, u64>;
        for value in ["-1", "1GiB", "null", "1.5", "many"] {
            let expected = "f:1:4: a: it must be a whole number, without a unit and not negative";
            assert_eq!(error::<Numbers>(&format!("a: {value}")), expected, "{value}");
        }
        type Ports = HashMap<String, u16>;
        assert_eq!(
            error::<Ports>("a: 65536"),
            "f:1:4: a: it must be a whole number from 0 to 65535, without a unit"
        );
        type Switches = HashMap<String, bool>;
        assert_eq!(error::<Switches>("a: on it"), "f:1:4: a: it must be true or false");
        assert_eq!(error::<Numbers>("a: 1\na: 2"), "f:2:1: the key a is set twice: remove one of them");
        assert!(error::<Numbers>("- a").contains("it must be a mapping"), "{}", error::<Numbers>("- a"));
        assert!(error::<Vec<u8>>("a: 1").contains("it must be a list"), "{}", error::<Vec<u8>>("a: 1"));
        assert_eq!(error::<Mixed>("other: 1"), "f:1:1: the key name is missing");
        assert_eq!(error::<Mixed>("name: null"), "f:1:7: name: it must not be empty");
    }
}
