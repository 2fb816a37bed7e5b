//! The configurations that the identity file and `agent.configuration.repository` name.

use std::{fmt::Write as _, io::ErrorKind, path::Path, sync::Arc};

use files::unreadable;
use futures_util::future::BoxFuture;
use git::{GitRepositories, RepositorySettings};
use proto::{AgentName, agent_configuration::TemplateFile};
use sha2::{Digest as _, Sha256};
use tokio::task::spawn_blocking;

use access::{AgentIdentity, ConfigurationLocation, Identities};
use access::{
    ConfigurationFile, ConfigurationSource, FileKey, ReadError, Reading, RepositoryPlace,
    is_about_managed_resources, read_repository, template_path,
};

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
                    let text = text.map_err(|error| {
                        ReadError::Refused(format!("{}: {}", path.display(), unreadable(&error)))
                    })?;
                    let template = local_template(&path, &text);
                    Ok::<_, ReadError>(local_file(&path, text, template))
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
        let place = RepositoryPlace { name: &name, directory, project: settings.project() };
        read_repository(&*repository, place, agent, known, self.max_bytes).await
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

/// Reads the template of environments beside a file of this machine, if the file is about managed resources.
fn local_template(path: &Path, text: &str) -> Option<TemplateFile> {
    if !is_about_managed_resources(text.as_bytes()) {
        return None;
    }
    let path = template_path(&path.to_string_lossy());
    let text = match files::read_text_at_most(Path::new(&path), TemplateFile::MAX_BYTES as u64) {
        Err(error) if error.kind() == ErrorKind::NotFound => return None,
        result => result.map_err(|error| format!("{path}: {}", unreadable(&error))),
    };
    Some(TemplateFile { path, text })
}

/// Returns a file of this machine, whose version is a part of its digest.
fn local_file(path: &Path, text: String, template: Option<TemplateFile>) -> ConfigurationFile {
    let mut version = "sha256:".to_owned();
    let mut digest = Sha256::new().chain_update(&text);
    if let Some(TemplateFile { text: Ok(text) | Err(text), .. }) = &template {
        digest.update([0]);
        digest.update(text);
    }
    for byte in &digest.finalize()[..6] {
        // Writing to a string does not fail.
        let _ = write!(version, "{byte:02x}");
    }
    let key = FileKey(format!("{} {version}", path.display()));
    let (path, content) = (path.to_owned(), Some(text.into_bytes()));
    ConfigurationFile { key, version, path, content, project: None, template }
}
