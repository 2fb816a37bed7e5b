//! Reads whole files.

use std::{
    fs::{FileType, Metadata, OpenOptions},
    io::{self, Read as _},
    os::unix::fs::{FileTypeExt as _, OpenOptionsExt as _},
    path::Path,
};

use crate::bounded::{self, TIMEOUT};

/// Largest file that [`read()`] and [`read_text`] accept, in bytes.
pub const MAX_BYTES: u64 = 16 << 20;

/// Reads a file of at most [`MAX_BYTES`]. This blocks for at most 10 s.
pub fn read(path: &Path) -> io::Result<Vec<u8>> {
    read_at_most(path, MAX_BYTES)
}

/// Reads a UTF-8 file of at most [`MAX_BYTES`]. This blocks for at most 10 s.
pub fn read_text(path: &Path) -> io::Result<String> {
    read_text_at_most(path, MAX_BYTES)
}

/// Reads a UTF-8 file of at most `max` bytes. This blocks for at most 10 s.
pub fn read_text_at_most(path: &Path, max: u64) -> io::Result<String> {
    // The error of the standard library holds the bytes, which may be a secret.
    let not_text = |_| io::Error::new(io::ErrorKind::InvalidData, "it is not UTF-8 text");
    String::from_utf8(read_at_most(path, max)?).map_err(not_text)
}

/// Returns the metadata of a file, or of a symbolic link's target. This blocks for at most 10 s.
pub fn metadata(path: &Path) -> io::Result<Metadata> {
    let file = path.to_owned();
    bounded::run(path, TIMEOUT, move || std::fs::metadata(file))
}

fn read_at_most(path: &Path, max: u64) -> io::Result<Vec<u8>> {
    let file = path.to_owned();
    bounded::run(path, TIMEOUT, move || open_and_read(&file, max))
}

fn open_and_read(path: &Path, max: u64) -> io::Result<Vec<u8>> {
    // Opening a device may have side effects, so the metadata is checked first.
    check(&std::fs::metadata(path)?, max)?;
    // The file may have been replaced since. Without O_NONBLOCK, `open` waits for a writer of a named pipe.
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
    let metadata = file.metadata()?;
    check(&metadata, max)?;
    let mut bytes = Vec::with_capacity(usize::try_from(metadata.len()).unwrap_or_default());
    // The file may grow while it is read.
    file.take(max + 1).read_to_end(&mut bytes)?;
    check_length(bytes.len() as u64, max)?;
    Ok(bytes)
}

/// Checks the type and length of a file, or of a link's target: Kubernetes mounts files as symbolic links.
fn check(metadata: &Metadata, max: u64) -> io::Result<()> {
    if !metadata.is_file() {
        let what = format!("it is {}, and only regular files are read", kind(metadata.file_type()));
        return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
    }
    check_length(metadata.len(), max)
}

fn check_length(length: u64, max: u64) -> io::Result<()> {
    if length > max {
        let what = format!("it has more than {max} bytes");
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, what));
    }
    Ok(())
}

fn kind(file_type: FileType) -> &'static str {
    if file_type.is_dir() {
        "a directory"
    } else if file_type.is_fifo() {
        "a named pipe"
    } else if file_type.is_socket() {
        "a socket"
    } else {
        "a device"
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::symlink};

    use rustix::fs::{CWD, Mode, mkfifoat};

    use super::*;

    #[test]
    fn regular_file_is_read_through_links() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        // Kubernetes mounts a Secret like this.
        fs::create_dir(at("..2026_11_22")).unwrap();
        fs::write(at("..2026_11_22/token"), "secret").unwrap();
        symlink("..2026_11_22", at("..data")).unwrap();
        symlink("..data/token", at("token")).unwrap();
        assert_eq!(read(&at("token")).unwrap(), b"secret");
        assert_eq!(read_text(&at("token")).unwrap(), "secret");
    }

    #[test]
    fn file_that_is_not_regular_is_refused_at_once() {
        let directory = tempfile::tempdir().unwrap();
        let pipe = directory.path().join("pipe");
        mkfifoat(CWD, &pipe, Mode::RUSR).unwrap();
        let link = directory.path().join("link");
        symlink(&pipe, &link).unwrap();
        for (path, kind) in [
            (&*pipe, "a named pipe"),
            (&*link, "a named pipe"),
            (directory.path(), "a directory"),
            (Path::new("/dev/zero"), "a device"),
        ] {
            let error = read(path).unwrap_err();
            assert_eq!(error.to_string(), format!("it is {kind}, and only regular files are read"));
        }
        assert_eq!(read(&directory.path().join("none")).unwrap_err().kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn file_that_is_too_large_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("file");
        fs::write(&file, "12345").unwrap();
        assert_eq!(read_at_most(&file, 5).unwrap(), b"12345");
        assert_eq!(read_at_most(&file, 4).unwrap_err().to_string(), "it has more than 4 bytes");
        // This file has content, although its length is zero.
        assert_eq!(
            read_at_most(Path::new("/proc/self/status"), 9).unwrap_err().to_string(),
            "it has more than 9 bytes"
        );
    }

    #[test]
    fn error_of_text_does_not_hold_the_bytes() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("file");
        fs::write(&file, b"secret\xff").unwrap();
        let error = read_text(&file).unwrap_err();
        assert_eq!(error.to_string(), "it is not UTF-8 text");
        assert!(!format!("{error:?}").contains("115, 101"), "{error:?}");
    }
}
