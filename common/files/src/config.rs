//! Configuration files, and what their errors state.

use std::{io, path::Path};

use settings::ConfigError;

use crate::read_text;

/// Reads the text of a configuration file.
pub fn read_config(file: &Path) -> Result<String, ConfigError> {
    read_text(file).map_err(|error| ConfigError::whole(file, unreadable(&error)))
}

/// Returns the cause and the remedy of an error with a file.
pub fn unreadable(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::NotFound => "the file does not exist".to_owned(),
        io::ErrorKind::PermissionDenied => {
            "permission denied: the user of this program may not read the file".to_owned()
        }
        _ => format!("cannot be read: {error}"),
    }
}
