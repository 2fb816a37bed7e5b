//! The limit of open files: every connection needs a file descriptor, and the usual limit is 1024.

use std::io;

use rlimit::{Resource, increase_nofile_limit};

/// Raises the limit of open files to the hard limit of this process, and returns it.
///
/// # Errors
///
/// If the system does not return the limit.
pub fn raise_limit() -> io::Result<u64> {
    match increase_nofile_limit(u64::MAX) {
        Ok(limit) => Ok(limit),
        Err(_) => Resource::NOFILE.get_soft(),
    }
}
