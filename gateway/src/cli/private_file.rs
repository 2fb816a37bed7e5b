//! Files that only this user can read.

use std::{
    fs::OpenOptions,
    io::{self, Write as _},
    os::unix::fs::OpenOptionsExt as _,
    path::Path,
};

/// Creates a file that other users cannot read at any time.
///
/// # Errors
///
/// The file exists, or cannot be written.
pub(super) fn create(file: &Path, text: &str) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(file)?;
    file.write_all(text.as_bytes())
}
