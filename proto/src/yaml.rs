//! YAML files whose errors name file, line, column and key. Reading them is the programs' business: this sees text.

use std::{
    fmt,
    path::{Path, PathBuf},
};

use serde::de::DeserializeOwned;
pub use serde_saphyr::{Location, Spanned};

/// A file that cannot be used.
#[derive(Debug, thiserror::Error)]
pub struct Error {
    file: PathBuf,
    /// Line and column, from 1.
    at: Option<(u64, u64)>,
    key: Option<String>,
    what: String,
}

impl Error {
    /// About a value that was read, and turned out unusable.
    pub fn new(file: &Path, at: Location, key: impl Into<String>, what: impl Into<String>) -> Self {
        let at = Some((at.line(), at.column()));
        Self { file: file.to_owned(), at, key: Some(key.into()), what: what.into() }
    }

    /// About the file as a whole.
    pub fn whole(file: &Path, what: impl Into<String>) -> Self {
        Self { file: file.to_owned(), at: None, key: None, what: what.into() }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.file.display())?;
        if let Some((line, column)) = self.at {
            write!(f, ":{line}:{column}")?;
        }
        if let Some(key) = &self.key {
            // A key is the file's word: it must not forge a line of a log.
            write!(f, ": {}", key.escape_debug())?;
        }
        write!(f, ": {}", self.what)
    }
}

/// Parses a file's text; `file` is for errors.
pub fn parse<T: DeserializeOwned>(file: &Path, text: &str) -> Result<T, Error> {
    let mut track = serde_path_to_error::Track::new();
    let parsed = serde_saphyr::with_deserializer_from_str(text, |deserializer| {
        T::deserialize(serde_path_to_error::Deserializer::new(deserializer, &mut track))
    });

    parsed.map_err(|error| {
        let error = error.without_snippet();
        let what = error.render();
        // The location stands in front already.
        let what = what.rsplit_once(" at line ").map_or(&*what, |(what, _)| what);
        Error {
            file: file.to_owned(),
            at: error.location().map(|at| (at.line(), at.column())),
            key: key(&track.path().to_string()),
            what: what.to_owned(),
        }
    })
}

/// As it is in the file: `value` is where a [`Spanned`] keeps what it spans. No file of ours has such a key.
fn key(path: &str) -> Option<String> {
    let path = path.replace(".value[", "[");
    let keys: Vec<_> = path.split('.').filter(|key| !matches!(*key, "" | "?" | "value")).collect();
    (!keys.is_empty()).then(|| keys.join("."))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, serde::Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Numbers {
        of: Vec<Spanned<u8>>,
    }

    #[test]
    fn an_error_names_file_line_column_key_and_reason() {
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
        let late = Error::new(Path::new("n.yaml"), parsed.of[1].referenced, "of[1]", "too large");
        assert_eq!(late.to_string(), "n.yaml:2:3: of[1]: too large");
        assert_eq!(Error::whole(Path::new("n.yaml"), "is missing").to_string(), "n.yaml: is missing");
    }
}
