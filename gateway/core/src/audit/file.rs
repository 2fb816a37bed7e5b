//! A file that is replaced when it has reached its size. The former files have the suffixes `.1`, `.2`, ….

use std::{
    ffi::OsString,
    fs::{self, File, OpenOptions},
    io::{self, Write},
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
};

/// Only the user of kas may read the file.
const MODE: u32 = 0o600;

/// Appends lines to a file, and rotates it.
#[derive(Debug)]
pub(super) struct RotatingFile {
    path: PathBuf,
    /// `None` after a failure to rotate or to open the file.
    file: Option<File>,
    /// The bytes of whole lines in the file.
    size: u64,
    max_size: u64,
    /// The most files, with the current one.
    max_files: u32,
}

impl RotatingFile {
    /// Opens or creates a file to append lines to it.
    pub(super) fn open(path: &Path, max_size: u64, max_files: u32) -> io::Result<Self> {
        let mut opened = Self { path: path.to_owned(), file: None, size: 0, max_size, max_files };
        opened.file = Some(opened.take()?);
        Ok(opened)
    }

    /// Returns the open file, or opens it.
    fn take(&mut self) -> io::Result<File> {
        if let Some(file) = self.file.take() {
            return Ok(file);
        }
        let file = OpenOptions::new().append(true).create(true).mode(MODE).open(&self.path)?;
        self.size = file.metadata()?.len();
        Ok(file)
    }

    /// Renames the files by one number. The oldest one is replaced.
    fn rotate(&mut self) -> io::Result<()> {
        if self.max_files == 1 {
            fs::remove_file(&self.path)?;
        }
        for number in (1..self.max_files).rev() {
            let from = if number == 1 { self.path.clone() } else { self.numbered(number - 1) };
            match fs::rename(from, self.numbered(number)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                Ok(()) | Err(_) => {}
            }
        }
        Ok(())
    }

    fn numbered(&self, number: u32) -> PathBuf {
        let mut name: OsString = self.path.clone().into();
        name.push(format!(".{number}"));
        name.into()
    }
}

impl Write for RotatingFile {
    /// Writes a whole line, or nothing of it.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let length = line.len() as u64;
        let mut file = self.take()?;
        if self.size > 0 && self.size + length > self.max_size {
            drop(file);
            self.rotate()?;
            file = self.take()?;
        }
        let written = file.write_all(line);
        match &written {
            Ok(()) => self.size += length,
            // The disk may be full after a part of the line.
            Err(_) => drop(file.set_len(self.size)),
        }
        self.file = Some(file);
        written.map(|()| line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn lines(directory: &Path) -> Vec<(String, String)> {
        let entries = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap());
        let mut files: Vec<_> = entries
            .map(|entry| {
                (entry.file_name().into_string().unwrap(), fs::read_to_string(entry.path()).unwrap())
            })
            .collect();
        files.sort();
        files
    }

    fn named(files: &[(&str, &str)]) -> Vec<(String, String)> {
        files.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect()
    }

    #[test]
    fn full_file_is_replaced_and_the_oldest_is_removed() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a");
        let mut file = RotatingFile::open(&path, 6, 3).unwrap();
        for line in ["1\n", "2\n", "3\n", "4\n", "longer than a file\n", "5\n", "6\n", "7\n", "8\n"] {
            file.write_all(line.as_bytes()).unwrap();
        }
        let expected = [("a", "8\n"), ("a.1", "5\n6\n7\n"), ("a.2", "longer than a file\n")];
        assert_eq!(lines(directory.path()), named(&expected));
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, MODE);

        // A new process continues.
        let mut file = RotatingFile::open(&path, 6, 3).unwrap();
        file.write_all(b"9\n").unwrap();
        file.write_all(b"10\n").unwrap();
        assert_eq!(lines(directory.path())[..2], named(&[("a", "10\n"), ("a.1", "8\n9\n")]));
    }

    #[test]
    fn single_file_starts_anew() {
        let directory = tempfile::tempdir().unwrap();
        let mut file = RotatingFile::open(&directory.path().join("a"), 4, 1).unwrap();
        for line in ["1\n", "2\n", "3\n"] {
            file.write_all(line.as_bytes()).unwrap();
        }
        assert_eq!(lines(directory.path()), named(&[("a", "3\n")]));
    }

    #[test]
    fn failed_rotation_is_an_error_and_is_tried_again() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a");
        let mut file = RotatingFile::open(&path, 2, 2).unwrap();
        file.write_all(b"1\n").unwrap();
        // A directory that is not empty cannot be replaced.
        let obstacle = directory.path().join("a.1");
        fs::create_dir_all(obstacle.join("full")).unwrap();
        assert!(file.write_all(b"2\n").is_err());
        fs::remove_dir_all(&obstacle).unwrap();
        file.write_all(b"3\n").unwrap();
        file.write_all(b"4\n").unwrap();
        assert_eq!(lines(directory.path())[0], ("a".to_owned(), "4\n".to_owned()));
    }
}
