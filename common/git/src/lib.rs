//! Reads files of a Git repository at a commit. Each kind of repository implements [`Repository`].
//!
//! There is no work tree, and no configuration of a repository is read: objects and references are data. Nothing of a repository
//! is executed.
#![warn(missing_docs)]

mod config;
mod https;
mod local;
mod objects;
mod protocol;
mod remote;
mod repositories;
mod selection;
mod settings;
mod ssh;
#[cfg(test)]
mod tests;

use std::{fmt, str::FromStr, sync::Arc};

use futures_util::future::BoxFuture;
use proto::AgentName;

pub use self::config::RepositoryConfig;
pub use self::repositories::{GitRepositories, open};
pub use self::selection::{FileLimits, FileSelection, RepositoryFile, SelectedFiles, literal_prefix};
pub use self::settings::{Location, RepositorySettings};

/// The directory of a repository that contains one directory for each agent with a configuration.
pub const AGENTS_DIRECTORY: &str = ".gitlab/agents";

/// The name of the configuration file in the directory of an agent.
pub const CONFIGURATION_FILE: &str = "config.yaml";

/// The prefix of the names of the temporary directories of repositories.
pub const WORK_DIRECTORY_PREFIX: &str = "kas-git-";

/// The prefix of references that are branches.
const HEADS: &str = "refs/heads/";

/// The most agents that [`Repository::list_agents`] returns.
pub const MAX_LISTED_AGENTS: usize = 1000;

/// A Git repository. Its content is not trusted.
///
/// Implementations limit the time and the memory of each call. Dropping a future cancels the call.
pub trait Repository: fmt::Debug + Send + Sync {
    /// Returns the current commit of the configured reference, or `None` if the repository has no commit yet.
    ///
    /// # Errors
    ///
    /// The repository cannot be reached, or it has commits but not the branch or tag.
    fn resolve(&self) -> BoxFuture<'_, Result<Option<Commit>, RepositoryError>>;

    /// Returns the content of a regular file at a commit that [`Self::resolve`] returned, or `None` if nothing has the path.
    ///
    /// `path` is relative, has `/` as separator and neither empty segments nor `.` and `..`.
    ///
    /// # Errors
    ///
    /// The path names something other than a regular file, the file has more than `max_bytes` bytes, or the repository cannot be
    /// reached.
    fn read_file<'a>(
        &'a self,
        commit: &'a CommitId,
        path: &'a str,
        max_bytes: usize,
    ) -> BoxFuture<'a, Result<Option<Vec<u8>>, RepositoryError>>;

    /// Returns the files of a commit that are selected.
    ///
    /// # Errors
    ///
    /// A limit is exceeded, a selected path is no regular file, a directory that may have selected files is a submodule, or the
    /// repository cannot be reached.
    fn read_files<'a>(
        &'a self,
        commit: &'a CommitId,
        selection: &'a Arc<FileSelection>,
    ) -> BoxFuture<'a, Result<SelectedFiles, RepositoryError>>;

    /// Returns the agents that have a file [`CONFIGURATION_FILE`] in a directory of their name, in order of their names.
    ///
    /// The directories are in [`AGENTS_DIRECTORY`], unless the repository is configured with another one. Entries whose names
    /// are not names of agents are left out, as is everything after [`MAX_LISTED_AGENTS`].
    ///
    /// # Errors
    ///
    /// The repository cannot be reached.
    fn list_agents<'a>(
        &'a self,
        commit: &'a CommitId,
    ) -> BoxFuture<'a, Result<Vec<AgentName>, RepositoryError>>;
}

/// The commit of a branch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Commit {
    /// The id of the commit.
    pub id: CommitId,
    /// The branch, such as `main`. It is not trusted.
    pub branch: String,
}

/// The version of a repository that is followed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub enum Reference {
    /// The default branch of the repository, its `HEAD`.
    #[default]
    Default,
    /// A branch.
    Branch(String),
    /// A tag.
    Tag(String),
    /// A commit.
    Commit(CommitId),
}

/// The id of a commit: 40 (SHA-1) or 64 (SHA-256) hexadecimal digits in lower case.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct CommitId(String);

/// The error of a text that is not the id of a commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not the id of a commit: it must have 40 or 64 hexadecimal digits")]
pub struct InvalidCommitId;

/// The error of a repository. Messages contain no credentials.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RepositoryError {
    /// The repository does not respond, refuses the credentials, or sends something invalid. Another attempt may succeed.
    #[error("{0}")]
    Unavailable(String),
    /// The commit has objects that Git would not create, or more of them than allowed: another attempt gives the same.
    #[error("{0}")]
    Refused(String),
    /// The repository has commits, but not this branch or tag.
    #[error("the repository has no {0}")]
    ReferenceNotFound(Reference),
    /// More files are selected than allowed.
    #[error("over {0} files are selected")]
    TooManyFiles(usize),
    /// The path is a directory, a symbolic link or a submodule.
    #[error("{path} is {kind} and not a regular file")]
    NotAFile {
        /// The path in the repository.
        path: String,
        /// The kind of the entry with its article, like "a directory".
        kind: &'static str,
    },
    /// The file is too large.
    #[error("{path} is larger than {max_bytes} bytes")]
    TooLarge {
        /// The path in the repository.
        path: String,
        /// The limit, in bytes.
        max_bytes: usize,
    },
}

impl CommitId {
    /// Returns the hexadecimal digits.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for CommitId {
    type Err = InvalidCommitId;

    fn from_str(text: &str) -> Result<Self, InvalidCommitId> {
        let digits = text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        (digits && matches!(text.len(), 40 | 64)).then(|| Self(text.to_owned())).ok_or(InvalidCommitId)
    }
}

impl Reference {
    /// Returns the branch with this name, or the default one without a name.
    pub fn of_branch(branch: Option<&str>) -> Self {
        let branch = branch.filter(|name| !name.is_empty());
        branch.map_or(Self::Default, |name| Self::Branch(name.to_owned()))
    }

    /// Returns the full name, such as `refs/heads/main`, or `None` for a commit.
    pub(crate) fn full_name(&self) -> Option<String> {
        match self {
            Self::Default => Some("HEAD".to_owned()),
            Self::Branch(name) => Some(format!("{HEADS}{name}")),
            Self::Tag(name) => Some(format!("refs/tags/{name}")),
            Self::Commit(_) => None,
        }
    }
}

impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default branch"),
            Self::Branch(name) => write!(f, "branch {name:?}"),
            Self::Tag(name) => write!(f, "tag {name:?}"),
            Self::Commit(id) => write!(f, "commit {id}"),
        }
    }
}

impl fmt::Display for CommitId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Returns the path of an agent's configuration file within the directory of all agents.
pub fn configuration_path(directory: &str, agent: &AgentName) -> String {
    format!("{directory}/{agent}/{CONFIGURATION_FILE}")
}
