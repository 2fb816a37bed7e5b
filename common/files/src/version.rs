//! Detects that a file has changed, without reading it.

use std::{io, os::unix::fs::MetadataExt as _, path::Path};

use crate::metadata;

/// Metadata of a file that differ between two versions of it.
///
/// The change time of the inode is one of them: a file that becomes readable by `chmod` is another version, too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileVersion {
    device: u64,
    inode: u64,
    length: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl FileVersion {
    /// Returns the version of a file now, without opening it. This blocks for at most 10 s.
    pub fn of(path: &Path) -> io::Result<Self> {
        let metadata = metadata(path)?;
        Ok(Self {
            device: metadata.dev(),
            inode: metadata.ino(),
            length: metadata.len(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        })
    }

    /// Returns whether only the change time differs: owner or mode were set, or the program that writes the file restored its
    /// modification time.
    pub(crate) fn is_same_file(&self, other: &Self) -> bool {
        Self { changed: other.changed, ..*self } == *other
    }
}

#[cfg(test)]
mod tests {
    use std::{
        fs::{self, File, Permissions},
        os::unix::fs::PermissionsExt as _,
    };

    use super::*;

    #[test]
    fn replaced_file_of_equal_length_and_time_is_another_version() {
        let directory = tempfile::tempdir().unwrap();
        let (file, next) = (directory.path().join("file"), directory.path().join("next"));
        fs::write(&file, "one").unwrap();
        let first = FileVersion::of(&file).unwrap();
        assert_eq!(FileVersion::of(&file).unwrap(), first);

        fs::write(&next, "two").unwrap();
        let modified = fs::metadata(&file).unwrap().modified().unwrap();
        File::options().write(true).open(&next).unwrap().set_modified(modified).unwrap();
        fs::rename(&next, &file).unwrap();
        assert_ne!(FileVersion::of(&file).unwrap(), first);
        assert!(!FileVersion::of(&file).unwrap().is_same_file(&first));
    }

    #[test]
    fn new_permissions_are_another_version() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("file");
        fs::write(&file, "one").unwrap();
        let first = FileVersion::of(&file).unwrap();
        // The clock of the file system may have a resolution of some milliseconds.
        while FileVersion::of(&file).unwrap() == first {
            fs::set_permissions(&file, Permissions::from_mode(0o600)).unwrap();
        }
        assert!(FileVersion::of(&file).unwrap().is_same_file(&first));
    }
}
