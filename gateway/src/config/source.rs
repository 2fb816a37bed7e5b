//! Reads a YAML file so that every error names file, line and key.

use std::{fs, io, path::Path};

pub use proto::yaml::Error as ConfigError;
pub(crate) use proto::yaml::parse;
use serde::de::DeserializeOwned;

/// Reads and parses a file.
pub(crate) fn read<T: DeserializeOwned>(file: &Path) -> Result<T, ConfigError> {
    let text = fs::read_to_string(file).map_err(|error| ConfigError::whole(file, unreadable(&error)))?;
    parse(file, &text)
}

/// What went wrong with a file, and what to do about it.
pub(crate) fn unreadable(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::NotFound => "the file does not exist".to_owned(),
        io::ErrorKind::PermissionDenied => "permission denied: kas's user may not read the file".to_owned(),
        _ => format!("cannot be read: {error}"),
    }
}
