//! Directories for the work of a process in the temporary directory of the machine.
//!
//! A process that is killed leaves its directories behind, and they stay until the machine or the pod ends. Each directory has an
//! exclusive lock (`flock`) for as long as its process uses it, so that the next process can tell those that nobody uses.

use std::{
    fs::{self, File},
    io,
    path::Path,
    time::{Duration, SystemTime},
};

use tempfile::TempDir;

/// The age from which a directory without a lock is left behind. A younger one may be about to get its lock.
pub const MIN_LEFT_BEHIND_AGE: Duration = Duration::from_secs(60);

/// A directory that is removed when the value is dropped.
#[derive(Debug)]
pub struct WorkDirectory {
    directory: TempDir,
    _lock: File,
}

impl WorkDirectory {
    /// Creates an empty directory whose name begins with `prefix`, in `TMPDIR`.
    ///
    /// # Errors
    ///
    /// The directory cannot be created or locked.
    pub fn create(prefix: &str) -> io::Result<Self> {
        let directory = tempfile::Builder::new().prefix(prefix).tempdir()?;
        let lock = File::open(directory.path())?;
        lock.lock()?;
        Ok(Self { directory, _lock: lock })
    }

    /// Returns the path of the directory.
    pub fn path(&self) -> &Path {
        self.directory.path()
    }
}

/// Removes the directories in `parent` that ended processes have left behind, whose names begin with one of the prefixes. Returns their
/// number. It blocks.
///
/// # Errors
///
/// `parent` cannot be read. A directory that cannot be removed is left out.
pub fn remove_left_behind(parent: &Path, prefixes: &[&str], now: SystemTime) -> io::Result<usize> {
    let mut removed = 0;
    for entry in fs::read_dir(parent)?.flatten() {
        let name = entry.file_name();
        let is_ours =
            name.to_str().is_some_and(|name| prefixes.iter().any(|prefix| name.starts_with(prefix)));
        // Not of a symbolic link, whose target may be anywhere.
        let is_old = |metadata: fs::Metadata| {
            let modified = metadata.modified().ok().filter(|_| metadata.is_dir());
            modified.is_some_and(|modified| {
                now.duration_since(modified).is_ok_and(|age| age >= MIN_LEFT_BEHIND_AGE)
            })
        };
        if !is_ours || !entry.metadata().is_ok_and(is_old) {
            continue;
        }
        let Ok(directory) = File::open(entry.path()) else { continue };
        if directory.try_lock().is_ok() && fs::remove_dir_all(entry.path()).is_ok() {
            removed += 1;
        }
    }
    Ok(removed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directory_of_a_killed_process_is_removed_and_one_in_use_stays() {
        let parent = tempfile::tempdir().unwrap();
        let make = |name: &str| {
            let path = parent.path().join(name);
            fs::create_dir_all(path.join("tree")).unwrap();
            fs::write(path.join("tree/a.yaml"), "a").unwrap();
            path
        };
        let [left, used, other] = ["kas-git-1", "kas-git-2", "other"].map(make);
        let lock = File::open(&used).unwrap();
        lock.lock().unwrap();
        std::os::unix::fs::symlink(&other, parent.path().join("kas-git-3")).unwrap();
        let remove = |now| remove_left_behind(parent.path(), &["kas-git-"], now).unwrap();

        assert_eq!(remove(SystemTime::now()), 0, "it may be about to be used");
        assert_eq!(remove(SystemTime::now() + 2 * MIN_LEFT_BEHIND_AGE), 1);
        assert_eq!([left, used, other].map(|path| path.join("tree/a.yaml").exists()), [false, true, true]);
    }

    #[test]
    fn directory_is_locked_and_goes_with_its_value() {
        let directory = WorkDirectory::create("kas-test-").unwrap();
        let path = directory.path().to_owned();
        assert!(File::open(&path).unwrap().try_lock().is_err());
        drop(directory);
        assert!(!path.exists());
    }
}
