//! The configurations that the identity file and `agent.configuration.repository` name.

use std::{fmt::Write as _, path::Path, sync::Arc};

use git::{GitRepositories, RepositorySettings};
use proto::AgentName;
use router::BoxFuture;
use settings::unreadable;
use sha2::{Digest as _, Sha256};
use tokio::task::spawn_blocking;

use access::{AgentIdentity, ConfigurationLocation, Identities};
use access::{ConfigurationFile, ConfigurationSource, FileKey, ReadError, Reading, read_repository};

/// Reads files of this machine and of Git repositories.
#[derive(Debug)]
pub(crate) struct ConfiguredSource {
    identities: Identities,
    /// The repository of agents whose entry in the identity file has no configuration.
    default: Option<Arc<RepositorySettings>>,
    repositories: GitRepositories,
    max_bytes: usize,
}

impl ConfiguredSource {
    /// Returns a source of files with at most `max_bytes` bytes.
    pub(crate) fn new(
        identities: Identities,
        default: Option<Arc<RepositorySettings>>,
        max_bytes: usize,
    ) -> Self {
        Self { identities, default, repositories: GitRepositories::default(), max_bytes }
    }

    async fn read_agent(
        &self,
        agent: &AgentIdentity,
        known: Option<&FileKey>,
    ) -> Result<Option<Reading>, ReadError> {
        let location = {
            let identity = self.identities.load();
            // Other sources may have agents with ids of their own.
            let listed = identity.name(agent.id) == Some(&agent.name);
            let default = || self.default.clone().filter(|_| listed).map(ConfigurationLocation::Repository);
            identity.configuration(agent.id).cloned().filter(|_| listed).or_else(default)
        };
        let reading = match location {
            None => return Ok(None),
            Some(ConfigurationLocation::File(path)) => {
                let max = u64::try_from(self.max_bytes).unwrap_or(u64::MAX);
                let read = move || {
                    let text = files::read_text_at_most(&path, max);
                    text.map_err(|error| {
                        ReadError::Refused(format!("{}: {}", path.display(), unreadable(&error)))
                    })
                    .map(|text| local_file(&path, text))
                };
                let file = spawn_blocking(read).await;
                let file = file.map_err(|_| ReadError::Unavailable("the read has panicked".to_owned()))??;
                if known == Some(&file.key) { Reading::Unchanged } else { Reading::File(file) }
            }
            Some(ConfigurationLocation::Repository(settings)) => {
                self.read_git(&settings, &agent.name, known).await?
            }
        };
        Ok(Some(reading))
    }

    async fn read_git(
        &self,
        settings: &Arc<RepositorySettings>,
        agent: &AgentName,
        known: Option<&FileKey>,
    ) -> Result<Reading, ReadError> {
        let repository = self.repositories.get(settings);
        let (name, directory) = (settings.name(), &*settings.directory);
        read_repository(&*repository, (&name, directory, settings.project()), agent, known, self.max_bytes)
            .await
    }
}

impl ConfigurationSource for ConfiguredSource {
    fn read<'a>(
        &'a self,
        agent: &'a AgentIdentity,
        known: Option<&'a FileKey>,
    ) -> BoxFuture<'a, Result<Option<Reading>, ReadError>> {
        Box::pin(self.read_agent(agent, known))
    }
}

/// Returns a file of this machine, whose version is a part of its digest.
fn local_file(path: &Path, text: String) -> ConfigurationFile {
    let mut version = "sha256:".to_owned();
    for byte in &Sha256::digest(&text)[..6] {
        // Writing to a string does not fail.
        let _ = write!(version, "{byte:02x}");
    }
    let key = FileKey(format!("{} {version}", path.display()));
    ConfigurationFile { key, version, path: path.to_owned(), content: Some(text.into_bytes()), project: None }
}
