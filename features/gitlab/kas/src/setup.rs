//! Reads the files of the section `gitlab`.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use arc_swap::ArcSwap;
use files::{SecretFile, unreadable};
use oidc::EndpointUrl;
use rustls::{ClientConfig, RootCertStore};
use serde_saphyr::Spanned;
use settings::ConfigError;
use tls::parse_roots;

use super::{GitLabClient, Transport};
use crate::{config::GitLabConfig, login::LoginSettings};

/// The key of the additional authority.
const AUTHORITY_KEY: &str = "gitlab.ca_certificate_file";
/// The keys of the tokens that set the statuses of commits, write into merge requests, and read the results of deployments.
const STATUS_TOKEN_KEY: &str = "gitlab.commit_status_token_file";
const COMMENT_TOKEN_KEY: &str = "gitlab.comment_token_file";
const DEPLOYMENT_TOKEN_KEY: &str = "gitlab.deployment_token_file";
/// The URL of GitLab for browsers.
const EXTERNAL_URL_KEY: &str = "gitlab.external_url";
/// The id of the application for logins, and its secret.
const CLIENT_ID_KEY: &str = "gitlab.login.client_id";
const LOGIN_SECRET_KEY: &str = "gitlab.login.client_secret_file";

/// The section `gitlab` with its files, which are read again when they change. Clones are cheap.
#[derive(Clone, Debug)]
pub struct GitLabSetup {
    config: PathBuf,
    section: GitLabConfig,
    secret: SecretFile,
    /// The TLS configuration, unless the address needs none.
    tls: Option<Arc<ArcSwap<ClientConfig>>>,
}

impl GitLabSetup {
    /// Reads the files of the section, which is in the file `config`.
    pub fn read(config: &Path, section: &GitLabConfig) -> Result<Self, ConfigError> {
        let secret = SecretFile::read(
            config,
            "gitlab.authentication_secret_file",
            &section.authentication_secret_file,
        )?;
        let tokens = [
            (STATUS_TOKEN_KEY, &section.commit_status_token_file),
            (COMMENT_TOKEN_KEY, &section.comment_token_file),
            (DEPLOYMENT_TOKEN_KEY, &section.deployment_token_file),
        ];
        for (key, file) in tokens.into_iter().filter_map(|(key, file)| Some((key, file.as_ref()?))) {
            check_token(config, key, file)?;
        }
        if let Some(login) = &section.login {
            let at = login.client_id.referenced;
            login_url(section.external_url.as_deref())
                .map_err(|what| ConfigError::new(config, at, EXTERNAL_URL_KEY, what))?;
            if login.client_id.value.trim().is_empty() {
                return Err(ConfigError::new(config, at, CLIENT_ID_KEY, "it is empty"));
            }
            if let Some(file) = &login.client_secret_file {
                check_token(config, LOGIN_SECRET_KEY, file)?;
            }
        }
        let tls = if section.address.is_secure() {
            Some(Arc::new(ArcSwap::new(load(config, section)?)))
        } else {
            None
        };
        Ok(Self { config: config.to_owned(), section: section.clone(), secret, tls })
    }

    /// Creates a client.
    pub fn client(&self) -> GitLabClient {
        let address = self.section.address.clone();
        let transport = match (&self.tls, address.socket()) {
            (_, Some(path)) => Transport::socket(path.clone()),
            (Some(tls), None) => Transport::tls(Arc::clone(tls)),
            (None, None) => Transport::tcp(),
        };
        let secret = self.secret.secret().clone();
        let path = |file: &'_ Option<Spanned<PathBuf>>| file.as_ref().map(|file| file.value.clone());
        GitLabClient::new(address, secret, transport, &self.section.api_rate_limit)
            .with_status_token_file(path(&self.section.commit_status_token_file).as_deref())
            .with_comment_token_file(path(&self.section.comment_token_file).as_deref())
            .with_deployment_token_file(path(&self.section.deployment_token_file).as_deref())
    }

    /// Returns the settings of logins to the web page, if people can log in at GitLab.
    pub fn login(&self) -> Option<LoginSettings> {
        let application = self.section.login.clone()?;
        Some(LoginSettings { application, url: login_url(self.section.external_url.as_deref()).ok()? })
    }

    /// Returns the present TLS configuration, if connections to GitLab use one. It trusts the additional authority.
    pub fn tls(&self) -> Option<Arc<ClientConfig>> {
        self.tls.as_ref().map(|tls| tls.load_full())
    }

    /// Returns the file of the secret.
    pub fn secret(&self) -> &SecretFile {
        &self.secret
    }

    /// Returns the key and the path of the additional authority, if connections use one.
    pub fn authority(&self) -> Option<(&'static str, &Path)> {
        let file = self.section.ca_certificate_file.as_ref().filter(|_| self.tls.is_some())?;
        Some((AUTHORITY_KEY, &file.value))
    }

    /// Reads the file of the authority again. If it is invalid, the authorities do not change.
    pub fn reload_authority(&self) -> Result<(), ConfigError> {
        if let Some(tls) = &self.tls {
            tls.store(load(&self.config, &self.section)?);
        }
        Ok(())
    }
}

/// Returns the URL of GitLab at which people log in.
fn login_url(external_url: Option<&str>) -> Result<EndpointUrl, String> {
    let Some(text) = external_url else {
        return Err("the key is missing: gitlab.login sends browsers there".to_owned());
    };
    text.parse().map_err(|error| format!("{text:?} {error} (gitlab.login sends browsers there)"))
}

/// Checks that a file holds a token.
fn check_token(config: &Path, key: &str, file: &Spanned<PathBuf>) -> Result<(), ConfigError> {
    let read = files::read_text(&file.value).map_err(|error| unreadable(&error));
    let checked =
        read.and_then(|text| if text.trim().is_empty() { Err("it is empty".to_owned()) } else { Ok(()) });
    checked.map_err(|what| {
        let what = format!("{}: {what}", file.value.display());
        ConfigError::new(config, file.referenced, key, what)
    })
}

/// Returns the TLS configuration with the authorities of the system and the additional one.
fn load(config: &Path, section: &GitLabConfig) -> Result<Arc<ClientConfig>, ConfigError> {
    let mut roots = tls::system_roots();
    if let Some(file) = &section.ca_certificate_file {
        roots.roots.extend(read_authority(config, file)?.roots);
    }
    Ok(Arc::new(tls::client_config(roots, &[b"http/1.1"])))
}

fn read_authority(config: &Path, file: &Spanned<PathBuf>) -> Result<RootCertStore, ConfigError> {
    let roots = files::read(&file.value).map_err(|error| unreadable(&error));
    let parse = |bytes: Vec<u8>| parse_roots(&bytes).map_err(|error| error.to_string());
    roots.and_then(parse).map_err(|what| {
        let what = format!("{}: {what}", file.value.display());
        ConfigError::new(config, file.referenced, AUTHORITY_KEY, what)
    })
}
