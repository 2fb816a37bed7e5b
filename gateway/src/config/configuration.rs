//! Section `agent.configuration`: the configuration files of agents.

use std::{path::PathBuf, sync::Arc, time::Duration};

use schemars::JsonSchema;
use serde::Deserialize;
use serde_saphyr::Spanned;
use settings::{Timeout, Within};

use crate::repository::RepositorySettings;

/// Section `agent.configuration`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct AgentConfigurationConfig {
    /// The time, ±10 %, after which a configuration is read again.
    #[serde(with = "Timeout")]
    pub poll_period: Duration,
    /// The largest configuration file, in bytes.
    #[serde(with = "Within::<1, { 1 << 20 }>")]
    pub max_configuration_file_size: usize,
    /// The repository of the agents whose entry in the identity file has no `configuration`.
    pub repository: Option<RepositoryConfig>,
    /// The validated repository.
    #[serde(skip)]
    pub(crate) settings: Option<Arc<RepositorySettings>>,
}

/// A Git repository with configurations of agents. The identity file has such sections, too.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RepositoryConfig {
    /// The repository: an absolute path, or an https or ssh URL without credentials.
    #[schemars(with = "String")]
    pub url: Spanned<String>,
    /// The branch. The default is that of the repository.
    #[serde(default)]
    pub branch: Option<String>,
    /// The directory that contains a directory for each agent.
    #[serde(default)]
    #[schemars(with = "Option<String>")]
    pub directory: Option<Spanned<String>>,
    /// The user name for https, with `password_file`.
    #[serde(default)]
    pub username: Option<String>,
    /// The file with the password or token for https.
    #[serde(default)]
    #[schemars(with = "Option<PathBuf>")]
    pub password_file: Option<Spanned<PathBuf>>,
    /// Certificates (PEM) to trust for https instead of the system's.
    #[serde(default)]
    #[schemars(with = "Option<PathBuf>")]
    pub ca_certificate_file: Option<Spanned<PathBuf>>,
    /// The private key for ssh.
    #[serde(default)]
    #[schemars(with = "Option<PathBuf>")]
    pub ssh_key_file: Option<Spanned<PathBuf>>,
    /// The host keys for ssh.
    #[serde(default)]
    #[schemars(with = "Option<PathBuf>")]
    pub ssh_known_hosts_file: Option<Spanned<PathBuf>>,
}

impl Default for AgentConfigurationConfig {
    fn default() -> Self {
        Self {
            poll_period: Duration::from_secs(300),
            max_configuration_file_size: proto::agent_configuration::DEFAULT_MAX_BYTES,
            repository: None,
            settings: None,
        }
    }
}

impl RepositoryConfig {
    /// Iterates over the paths of the section.
    pub(crate) fn paths(&mut self) -> impl Iterator<Item = &mut Spanned<PathBuf>> {
        let Self { password_file, ca_certificate_file, ssh_key_file, ssh_known_hosts_file, .. } = self;
        [password_file, ca_certificate_file, ssh_key_file, ssh_known_hosts_file].into_iter().flatten()
    }
}
