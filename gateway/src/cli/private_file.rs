//! Files that only this user can read.

use std::{
    fs::{self, OpenOptions},
    io::{self, Write as _},
    os::unix::fs::OpenOptionsExt as _,
    path::Path,
};

/// Creates a file that other users cannot read at any time.
///
/// # Errors
///
/// The file exists, or cannot be written. A file that cannot be written to its end is removed.
pub(super) fn create(path: &Path, text: &str) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    file.write_all(text.as_bytes()).inspect_err(|_| {
        // The error of the write is the one to report.
        let _ = fs::remove_file(path);
    })
}
