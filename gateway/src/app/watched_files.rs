//! The files of a replica that are read again when they change.

use std::{fmt::Display, path::PathBuf, sync::Arc, time::SystemTime};

use cores::TaskGroup;
use files::{SecretFile, follow};
use kas_gitlab::GitLabSetup;
use kas_listen::tls::{Certificate, MutualTls};
use settings::ConfigError;
use tokio::sync::watch;

use super::App;
use crate::config::IdentityConfig;
use kas_core::metrics::certificate::CertificateExpirations;

/// The files with the credentials of a replica, towards its clients, other replicas and GitLab.
#[derive(Debug)]
pub(super) struct CredentialFiles {
    pub(super) certificates: Vec<Certificate>,
    pub(super) secrets: Vec<SecretFile>,
    pub(super) peer_tls: Option<MutualTls>,
    pub(super) gitlab: Option<GitLabSetup>,
    expirations: CertificateExpirations,
    /// Each new version of a certificate, a secret or the private authority is a new value.
    changed: watch::Sender<()>,
}

/// Follows files until the group drains.
struct Follower<'a> {
    app: &'a App,
    background: &'a TaskGroup,
}

impl CredentialFiles {
    /// Returns a replica without such files.
    pub(super) fn new(expirations: CertificateExpirations) -> Self {
        Self {
            certificates: Vec::new(),
            secrets: Vec::new(),
            peer_tls: None,
            gitlab: None,
            expirations,
            changed: watch::Sender::new(()),
        }
    }

    /// Reports changes of certificates, secrets and the private authority.
    pub(super) fn changes(&self) -> watch::Receiver<()> {
        self.changed.subscribe()
    }

    fn follow(&self, follower: &Follower<'_>) {
        for certificate in self.certificates.clone() {
            let (expirations, changed) = (self.expirations.clone(), self.changed.clone());
            follower.follow(certificate.config_key(), certificate.files(), move || {
                let reloaded = certificate.reload(SystemTime::now());
                report_expiration(&certificate, &expirations);
                reloaded?;
                changed.send_modify(|()| {});
                Ok::<_, ConfigError>(())
            });
        }
        for secret in self.secrets.clone() {
            let changed = self.changed.clone();
            follower.follow(secret.config_key(), vec![secret.path().to_owned()], move || {
                secret.reload().map(|()| changed.send_modify(|()| {}))
            });
        }
        if let Some(tls) = self.peer_tls.clone() {
            let changed = self.changed.clone();
            follower.follow(tls.authority_key(), vec![tls.authority_path().to_owned()], move || {
                tls.reload_authority().map(|()| changed.send_modify(|()| {}))
            });
        }
        if let Some(setup) = self.gitlab.clone()
            && let Some((key, path)) = setup.authority()
        {
            let (paths, setup) = (vec![path.to_owned()], setup.clone());
            follower.follow(key, paths, move || setup.reload_authority());
        }
    }
}

impl Follower<'_> {
    /// Calls `reload` whenever one of `paths` changes, and when the operator asks for it. `key` names the file in the log.
    fn follow<E: Display + Send + 'static>(
        &self,
        key: impl Into<String>,
        paths: Vec<PathBuf>,
        reload: impl Fn() -> Result<(), E> + Clone + Send + 'static,
    ) {
        let following = follow(self.app.admin.files.file(key), paths, self.app.reload.subscribe(), reload);
        let until = self.background.draining.clone();
        self.background.spawn(async move {
            until.run_until_cancelled(following).await;
        });
    }
}

impl App {
    /// Reads certificates, secrets, the identity file, environments and the rules of the kill switch again when they change,
    /// until the group drains.
    pub(super) fn follow_files(&self, background: &TaskGroup) {
        let follower = Follower { app: self, background };
        self.credentials.follow(&follower);
        if let Some((environments, section)) =
            self.environment_file.clone().zip(self.config.environments.as_ref())
        {
            let path = section.file.value.clone();
            follower.follow("environments.file", vec![path.clone()], move || environments.reload(&path));
        }
        if let Some(IdentityConfig { file: path }) = &self.config.identity {
            let (identities, path) = (self.identities.clone(), path.value.clone());
            follower.follow("identity.file", vec![path.clone()], move || identities.reload(&path));
        }
        if let Some(path) = self.config.disabled.file.as_ref().map(|path| path.value.clone()) {
            let switch = Arc::clone(&self.callers.kill_switch);
            follower.follow("disabled.file", vec![path.clone()], move || switch.reload(&path));
        }
    }
}

/// Sets the metric of the expiration, and logs a warning if clients refuse the certificate now.
fn report_expiration(certificate: &Certificate, expirations: &CertificateExpirations) {
    if let Some(not_after) = certificate.not_after() {
        expirations.set(certificate.config_key(), not_after);
    }
    if let Err(error) = certificate.validate(SystemTime::now()) {
        tracing::warn!(%error, "clients refuse this certificate: replace its files");
    }
}
