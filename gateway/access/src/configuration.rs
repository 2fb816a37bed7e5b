//! The sources of agents' configurations. Each one implements [`ConfigurationSource`].

use std::{fmt, path::PathBuf, sync::Arc};

use git::{Repository, RepositoryError, configuration_path};
use proto::AgentName;
use router::BoxFuture;
use serde_json::Value;

use crate::identity::AgentIdentity;

/// A source of answers: what is the configuration of this agent?
pub trait ConfigurationSource: fmt::Debug + Send + Sync {
    /// Returns the current configuration file of an agent, or `None` if this source has none for it.
    ///
    /// `known` is the key of the file that this source returned last; it does not read that file again.
    ///
    /// # Errors
    ///
    /// The file cannot be used, or the source does not respond.
    fn read<'a>(
        &'a self,
        agent: &'a AgentIdentity,
        known: Option<&'a FileKey>,
    ) -> BoxFuture<'a, Result<Option<Reading>, ReadError>>;
}

/// Receives each configuration that comes into force, as JSON.
///
/// It is called on a thread of a runtime and must not block. Each replica that holds a tunnel of the agent calls it.
pub type ConfigurationObserver = Arc<dyn Fn(&AgentIdentity, &Arc<Value>) + Send + Sync>;

/// The result of reading a configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reading {
    /// The file is the one that was read before.
    Unchanged,
    /// Another version of the file.
    File(ConfigurationFile),
}

/// One version of a configuration file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigurationFile {
    /// Identifies source and version.
    pub key: FileKey,
    /// The version for people: a commit, or a digest.
    pub version: String,
    /// The path of the file, for errors.
    pub path: PathBuf,
    /// The content, or `None` if there is no file, which is an empty configuration.
    pub content: Option<Vec<u8>>,
    /// The path of the Git project, like `group/project`. Its push events wake the poller.
    pub project: Option<String>,
}

/// Identifies a version of a configuration file and its source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileKey(pub String);

/// The error of reading a configuration. Messages contain no credentials.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// The source does not respond. Another attempt may succeed.
    #[error("{0}")]
    Unavailable(String),
    /// There is a file or an entry in its place that cannot be used.
    #[error("{0}")]
    Refused(String),
}

impl From<RepositoryError> for ReadError {
    fn from(error: RepositoryError) -> Self {
        match error {
            RepositoryError::Unavailable(what) => Self::Unavailable(what),
            RepositoryError::ReferenceNotFound(_)
            | RepositoryError::TooManyFiles(_)
            | RepositoryError::NotAFile { .. }
            | RepositoryError::TooLarge { .. } => Self::Refused(error.to_string()),
        }
    }
}

/// Reads the configuration of an agent from a repository.
///
/// `name` identifies the repository in keys, `directory` contains the directories of the agents, and `project` is the path of
/// the Git project.
///
/// # Errors
///
/// The repository returns an error.
pub async fn read_repository(
    repository: &dyn Repository,
    (name, directory, project): (&str, &str, Option<&str>),
    agent: &AgentName,
    known: Option<&FileKey>,
    max_bytes: usize,
) -> Result<Reading, ReadError> {
    let path = configuration_path(directory, agent);
    let file = |version: &str, content| {
        let key = FileKey(format!("{name} {path} {version}"));
        let (path, version) = (PathBuf::from(&path), version.to_owned());
        ConfigurationFile { key, version, path, content, project: project.map(str::to_owned) }
    };
    let commit = repository.resolve().await?;
    // A repository without commits has no file.
    let empty = file(commit.as_ref().map_or("none", |commit| commit.id.as_str()), None);
    if known == Some(&empty.key) {
        return Ok(Reading::Unchanged);
    }
    let content = match &commit {
        Some(commit) => repository.read_file(&commit.id, &path, max_bytes).await?,
        None => None,
    };
    Ok(Reading::File(ConfigurationFile { content, ..empty }))
}
