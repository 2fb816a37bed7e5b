//! The selection of the files of a commit that are read together, and its limits.

use std::fmt;

use crate::RepositoryError;

/// Files that are read together.
pub struct FileSelection {
    /// The directories that can have such files: literal beginnings of their paths.
    prefixes: Vec<String>,
    matches: Box<dyn Fn(&str) -> bool + Send + Sync>,
    /// The limits of what is read.
    pub limits: FileLimits,
}

/// The limits of files that are read together. One that is exceeded is an error, and never a shorter list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileLimits {
    /// The most files.
    pub files: usize,
    /// The most bytes of one file.
    pub file_bytes: usize,
    /// The most bytes of all files.
    pub bytes: usize,
}

/// The files of a commit that are selected, and what people recognize it by. Nothing of it is trusted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SelectedFiles {
    /// The first line of the message, if it is known.
    pub subject: String,
    /// The name of the author, if it is known.
    pub author: String,
    /// The files, in the order of their paths.
    pub files: Vec<RepositoryFile>,
}

/// A file of a commit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RepositoryFile {
    /// The path from the root of the repository.
    pub path: String,
    /// The content.
    pub content: Vec<u8>,
}

impl FileSelection {
    /// Selects the files whose path matches. `patterns` are the globs from which `matches` was made; they show which directories need
    /// not be read.
    pub fn new(
        patterns: impl IntoIterator<Item = impl AsRef<str>>,
        matches: impl Fn(&str) -> bool + Send + Sync + 'static,
        limits: FileLimits,
    ) -> Self {
        let prefixes = patterns.into_iter().map(|pattern| literal_prefix(pattern.as_ref())).collect();
        Self { prefixes, matches: Box::new(matches), limits }
    }

    /// Returns whether a directory may have selected files. Hidden directories have none, as with GitLab's kas.
    pub fn enters(&self, directory: &str) -> bool {
        let name = directory.rsplit('/').next().unwrap_or_default();
        let path = format!("{directory}/");
        let related = |prefix: &String| path.starts_with(&**prefix) || prefix.starts_with(&path);
        let named = |prefix: &String| prefix.starts_with(&path);
        if name.starts_with('.') {
            self.prefixes.iter().any(named)
        } else {
            self.prefixes.iter().any(related)
        }
    }

    /// Returns whether a file is selected.
    pub fn selects(&self, path: &str) -> bool {
        (self.matches)(path)
    }

    /// Returns the error of a selection with more files than allowed.
    pub fn too_many_files(&self) -> RepositoryError {
        RepositoryError::TooManyFiles(self.limits.files)
    }

    /// Returns the error of a selection with more bytes than allowed.
    pub fn too_many_bytes(&self) -> RepositoryError {
        RepositoryError::TooLarge { path: "the sum of all files".to_owned(), max_bytes: self.limits.bytes }
    }
}

/// Returns the directories of a pattern in front of its first wildcard, with a `/` at the end.
pub fn literal_prefix(pattern: &str) -> String {
    let pattern = pattern.strip_prefix("./").unwrap_or(pattern).trim_start_matches('/');
    let wildcard = pattern.find(['*', '?', '[', '{', '\\']).unwrap_or(pattern.len());
    let end = pattern[..wildcard].rfind('/').map_or(0, |slash| slash + 1);
    pattern[..end].to_owned()
}

impl fmt::Debug for FileSelection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FileSelection").field("prefixes", &self.prefixes).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_directories_that_can_match_are_entered() {
        let limits = FileLimits { files: 1, file_bytes: 1, bytes: 1 };
        let enters = |pattern: &str, directory: &str| {
            FileSelection::new([pattern], |_| true, limits).enters(directory)
        };
        for (pattern, directory, expected) in [
            ("**/*.yaml", "a", true),
            ("**/*.yaml", "a/b", true),
            ("**/*.yaml", ".git", false),
            ("**/*.yaml", "a/.hidden", false),
            ("/prod/**/*.yaml", "prod", true),
            ("/prod/**/*.yaml", "prod/x/y", true),
            ("/prod/**/*.yaml", "staging", false),
            ("/prod/**/*.yaml", "production", false),
            ("./prod/**/*.yaml", "prod", true),
            ("prod/app/*.yaml", "prod", true),
            ("prod/app/*.yaml", "prod/other", false),
            (".deploy/*.yaml", ".deploy", true),
            ("prod{1,2}/*.yaml", "prod1", true),
            ("a.yaml", "a", true),
        ] {
            assert_eq!(enters(pattern, directory), expected, "{pattern} {directory}");
        }
    }
}
