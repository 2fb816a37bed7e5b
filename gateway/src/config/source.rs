//! Reads a YAML file so that every error names file, line and key.

use std::{
    fmt, fs, io,
    path::{Path, PathBuf},
};

use serde::de::DeserializeOwned;
use serde_saphyr::Location;

/// A configuration that cannot be used: nothing was bound, nothing was changed.
#[derive(Debug, thiserror::Error)]
pub struct ConfigError {
    file: PathBuf,
    /// Line and column, from 1.
    at: Option<(u64, u64)>,
    key: Option<String>,
    what: String,
}

impl ConfigError {
    /// An error about a value that was read, and turned out unusable.
    pub(crate) fn new(file: &Path, at: Location, key: impl Into<String>, what: impl Into<String>) -> Self {
        Self {
            file: file.to_owned(),
            at: Some((at.line(), at.column())),
            key: Some(key.into()),
            what: what.into(),
        }
    }

    /// An error about the file as a whole.
    pub(crate) fn whole(file: &Path, what: impl Into<String>) -> Self {
        Self { file: file.to_owned(), at: None, key: None, what: what.into() }
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.file.display())?;
        if let Some((line, column)) = self.at {
            write!(f, ":{line}:{column}")?;
        }
        if let Some(key) = &self.key {
            write!(f, ": {key}")?;
        }
        write!(f, ": {}", self.what)
    }
}

/// Reads and parses a file.
pub(crate) fn read<T: DeserializeOwned>(file: &Path) -> Result<T, ConfigError> {
    let text = fs::read_to_string(file).map_err(|error| ConfigError::whole(file, unreadable(&error)))?;
    parse(file, &text)
}

/// Parses a file's text.
pub(crate) fn parse<T: DeserializeOwned>(file: &Path, text: &str) -> Result<T, ConfigError> {
    let mut track = serde_path_to_error::Track::new();
    let parsed = serde_saphyr::with_deserializer_from_str(text, |deserializer| {
        T::deserialize(serde_path_to_error::Deserializer::new(deserializer, &mut track))
    });

    parsed.map_err(|error| {
        let error = error.without_snippet();
        let what = error.render();
        // The location stands in front already.
        let what = what.rsplit_once(" at line ").map_or(&*what, |(what, _)| what);
        ConfigError {
            file: file.to_owned(),
            at: error.location().map(|at| (at.line(), at.column())),
            key: Some(track.path().to_string()).filter(|key| key != "." && key != "?"),
            what: what.to_owned(),
        }
    })
}

/// What went wrong with a file, and what to do about it.
pub(crate) fn unreadable(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::NotFound => "the file does not exist".to_owned(),
        io::ErrorKind::PermissionDenied => "permission denied: kas's user may not read the file".to_owned(),
        _ => format!("cannot be read: {error}"),
    }
}
