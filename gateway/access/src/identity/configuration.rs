//! The location of an agent's configuration, as its entry in the identity file has it.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use serde::Deserialize;
use settings::ConfigError;

use git::{RepositoryConfig, RepositorySettings};

/// The location of an agent's configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConfigurationLocation {
    /// A file of this machine.
    File(PathBuf),
    /// A Git repository.
    Repository(Arc<RepositorySettings>),
}

/// The key `configuration` of an agent.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "lowercase")]
pub(super) enum ConfigurationEntry {
    /// Relative to the identity file.
    File(PathBuf),
    Repository(Box<RepositoryConfig>),
}

impl ConfigurationEntry {
    /// Returns the location. `key` is the key of the entry in the identity file.
    pub(super) fn validate(self, file: &Path, key: &str) -> Result<ConfigurationLocation, ConfigError> {
        let directory = file.parent().unwrap_or_else(|| Path::new(""));
        match self {
            Self::File(path) => Ok(ConfigurationLocation::File(directory.join(path))),
            Self::Repository(mut section) => {
                for path in section.paths() {
                    path.value = directory.join(&path.value);
                }
                let settings = RepositorySettings::new(file, &format!("{key}.repository"), &section)?;
                Ok(ConfigurationLocation::Repository(Arc::new(settings)))
            }
        }
    }
}
