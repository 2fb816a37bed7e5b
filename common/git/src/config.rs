//! The section of a configuration file that names a repository.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::Deserialize;
use settings::Spanned;

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

impl RepositoryConfig {
    /// Iterates over the paths of the section.
    pub fn paths(&mut self) -> impl Iterator<Item = &mut Spanned<PathBuf>> {
        let Self { password_file, ca_certificate_file, ssh_key_file, ssh_known_hosts_file, .. } = self;
        [password_file, ca_certificate_file, ssh_key_file, ssh_known_hosts_file].into_iter().flatten()
    }
}
