//! The sources of agents' configurations. Each one implements [`ConfigurationSource`].

use std::{fmt, path::PathBuf, sync::Arc};

use futures_util::future::BoxFuture;
use git::{CommitId, Repository, RepositoryError, configuration_path};
use proto::{AgentName, agent_configuration::TemplateFile};
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

/// Receives each configuration that comes into force, as JSON with the keys of its file.
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
    /// The template of environments, if there is one beside the file, and the file is about managed resources.
    pub template: Option<TemplateFile>,
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
            RepositoryError::Unavailable(what) | RepositoryError::Refused(what) => Self::Unavailable(what),
            RepositoryError::ReferenceNotFound(_)
            | RepositoryError::TooManyFiles(_)
            | RepositoryError::NotAFile { .. }
            | RepositoryError::TooLarge { .. } => Self::Refused(error.to_string()),
        }
    }
}

/// The place of the configurations of agents.
#[derive(Clone, Copy, Debug)]
pub struct RepositoryPlace<'a> {
    /// Identifies the repository in keys.
    pub name: &'a str,
    /// The directory with the directories of the agents.
    pub directory: &'a str,
    /// The path of the Git project.
    pub project: Option<&'a str>,
}

/// Reads the configuration of an agent from a repository.
///
/// # Errors
///
/// The repository returns an error.
pub async fn read_repository(
    repository: &dyn Repository,
    place: RepositoryPlace<'_>,
    agent: &AgentName,
    known: Option<&FileKey>,
    max_bytes: usize,
) -> Result<Reading, ReadError> {
    let RepositoryPlace { name, directory, project } = place;
    let path = configuration_path(directory, agent);
    let file = |version: &str, content| {
        let key = FileKey(format!("{name} {path} {version}"));
        let (path, version) = (PathBuf::from(&path), version.to_owned());
        let project = project.map(str::to_owned);
        ConfigurationFile { key, version, path, content, project, template: None }
    };
    let commit = repository.resolve().await?;
    // A repository without commits has no file.
    let empty = file(commit.as_ref().map_or("none", |commit| commit.id.as_str()), None);
    if known == Some(&empty.key) {
        return Ok(Reading::Unchanged);
    }
    let Some(commit) = &commit else { return Ok(Reading::File(empty)) };
    let content = repository.read_file(&commit.id, &path, max_bytes).await?;
    let template = if content.as_deref().is_some_and(is_about_managed_resources) {
        read_template(repository, &commit.id, &template_path(&path)).await?
    } else {
        None
    };
    Ok(Reading::File(ConfigurationFile { content, template, ..empty }))
}

/// Returns whether a configuration file has the key `resource_management`. Most have not, and their template is not read.
pub fn is_about_managed_resources(content: &[u8]) -> bool {
    const KEY: &[u8] = b"resource_management";
    content.windows(KEY.len()).any(|window| window == KEY)
}

/// Returns the path of the template of environments beside a configuration file.
pub fn template_path(configuration: &str) -> String {
    let directory = configuration.rsplit_once('/').map_or("", |(directory, _)| directory);
    let separator = if directory.is_empty() { "" } else { "/" };
    format!("{directory}{separator}{}/{}.yaml", TemplateFile::DIRECTORY, TemplateFile::DEFAULT_NAME)
}

/// Reads the template of environments. One that cannot be used fails the jobs of environments, and not the configuration.
async fn read_template(
    repository: &dyn Repository,
    commit: &CommitId,
    path: &str,
) -> Result<Option<TemplateFile>, ReadError> {
    let file = |text| Some(TemplateFile { path: path.to_owned(), text });
    match repository.read_file(commit, path, TemplateFile::MAX_BYTES).await {
        Ok(None) => Ok(None),
        Ok(Some(content)) => {
            let text = String::from_utf8(content).map_err(|_| format!("{path}: the file is not UTF-8 text"));
            Ok(file(text))
        }
        Err(error) => match ReadError::from(error) {
            ReadError::Refused(what) => Ok(file(Err(what))),
            unavailable @ ReadError::Unavailable(_) => Err(unavailable),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn template_is_beside_the_configuration() {
        for (configuration, template) in [
            (".gitlab/agents/prod/config.yaml", ".gitlab/agents/prod/environment_templates/default.yaml"),
            ("config.yaml", "environment_templates/default.yaml"),
        ] {
            assert_eq!(template_path(configuration), template);
        }
        assert!(is_about_managed_resources(b"a: {resource_management: {enabled: true}}"));
        assert!(!is_about_managed_resources(b"") && !is_about_managed_resources(b"resource"));
    }
}
