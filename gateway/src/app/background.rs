//! The tasks of a replica that need no listener: they read files again, and run from time to time.

use std::{sync::Arc, time::SystemTime};

use files::follow;
use futures_util::FutureExt as _;
use gitlab::{SwitchMonitor, UsageReporter};
use router::BoxFuture;
use settings::ConfigError;
use tokio::sync::watch;

use super::App;
use crate::{
    config::IdentityConfig, kill_switch::KillSwitch, metrics::certificate::CertificateExpirations,
    tasks::TaskGroup, tls::Certificate,
};

impl App {
    /// Spawns the tasks that run from time to time, until the group drains.
    pub(super) fn spawn_periodic(&self, background: &TaskGroup) {
        let spawn = |task: BoxFuture<'static, ()>| {
            let until = background.draining.clone();
            background.spawn(async move {
                until.run_until_cancelled(task).await;
            });
        };
        let (budget, metrics) = (Arc::clone(&self.callers.budget), self.callers.metrics.clone());
        spawn(async move { budget.run(&metrics).await }.boxed());
        let callers = Arc::clone(&self.callers);
        spawn(async move { callers.idle_connections.run(&callers.metrics).await }.boxed());
        let switch = Arc::clone(&self.callers.kill_switch);
        spawn(async move { switch.run().await }.boxed());
        if let Some(audit) = self.callers.audit.get().cloned() {
            spawn(async move { audit.run().await }.boxed());
        }
        let agents = Arc::clone(&self.agents);
        spawn(async move { agents.recheck_clusters().await }.boxed());
        let issuers = self.issuers.clone();
        spawn(async move { issuers.run().await }.boxed());
        let (configuration, pushes) =
            (self.agents.services.configuration.clone(), self.agents.store.pushes());
        spawn(async move { configuration.follow_pushes(pushes).await }.boxed());
        if let Some(callers) = self.gitlab_callers.clone() {
            spawn(async move { callers.run().await }.boxed());
        }
        if let Some(client) = self.gitlab.clone() {
            let (usage, period) = (self.usage.clone(), self.config.observability.usage_reporting_period);
            let reporter = UsageReporter { client: client.clone(), usage, period };
            if !period.is_zero() {
                spawn(async move { reporter.run().await }.boxed());
            }
            let switch = Arc::clone(&self.callers.kill_switch);
            spawn(follow_gitlab_switch(client.switched_off(), switch).boxed());
            spawn(async move { SwitchMonitor { client }.run().await }.boxed());
        }
    }

    /// Reads certificates, secrets, the identity file and the rules of the kill switch again when they change, until the group
    /// drains.
    pub(super) fn follow_files(&self, background: &TaskGroup) {
        let files = &self.admin.files;
        let spawn = |following| {
            let until = background.draining.clone();
            background.spawn(async move {
                until.run_until_cancelled(following).await;
            });
        };
        for certificate in self.certificates.clone() {
            let (file, paths) = (files.file(certificate.config_key()), certificate.files());
            let (expirations, credentials) = (self.expirations.clone(), self.credentials.clone());
            let reload = move || {
                let reloaded = certificate.reload(SystemTime::now());
                report_expiration(&certificate, &expirations);
                reloaded?;
                credentials.send_modify(|()| {});
                Ok::<_, ConfigError>(())
            };
            spawn(follow(file, paths, self.reload.subscribe(), reload).boxed());
        }
        for secret in self.secrets.clone() {
            let (file, paths) = (files.file(secret.config_key()), vec![secret.path().to_owned()]);
            let credentials = self.credentials.clone();
            let reload = move || secret.reload().map(|()| credentials.send_modify(|()| {}));
            spawn(follow(file, paths, self.reload.subscribe(), reload).boxed());
        }
        if let Some(tls) = self.peer_tls.clone() {
            let (file, paths) = (files.file(tls.authority_key()), vec![tls.authority_path().to_owned()]);
            let credentials = self.credentials.clone();
            let reload = move || tls.reload_authority().map(|()| credentials.send_modify(|()| {}));
            spawn(follow(file, paths, self.reload.subscribe(), reload).boxed());
        }
        if let Some((environments, section)) =
            self.environments.clone().zip(self.config.environments.as_ref())
        {
            let path = section.file.value.clone();
            let (file, paths) = (files.file("environments.file"), vec![path.clone()]);
            spawn(follow(file, paths, self.reload.subscribe(), move || environments.reload(&path)).boxed());
        }
        if let Some(setup) = self.gitlab_setup.clone()
            && let Some((key, path)) = setup.authority()
        {
            let (file, paths) = (files.file(key), vec![path.to_owned()]);
            let setup = setup.clone();
            spawn(follow(file, paths, self.reload.subscribe(), move || setup.reload_authority()).boxed());
        }
        if let Some(IdentityConfig { file: path }) = &self.config.identity {
            let (identities, path) = (self.identities.clone(), path.value.clone());
            let (file, paths) = (files.file("identity.file"), vec![path.clone()]);
            spawn(follow(file, paths, self.reload.subscribe(), move || identities.reload(&path)).boxed());
        }
        if let Some(path) = self.config.disabled.file.as_ref().map(|path| path.value.clone()) {
            let switch = Arc::clone(&self.callers.kill_switch);
            let (file, paths) = (files.file("disabled.file"), vec![path.clone()]);
            spawn(follow(file, paths, self.reload.subscribe(), move || switch.reload(&path)).boxed());
        }
    }
}

/// Disables everything while GitLab has switched kas off.
async fn follow_gitlab_switch(mut off: watch::Receiver<bool>, switch: Arc<KillSwitch>) {
    loop {
        let is_off = *off.borrow_and_update();
        switch.set_external(is_off.then(|| "GitLab has switched kas off".to_owned()));
        if off.changed().await.is_err() {
            return;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn everything_is_disabled_while_gitlab_has_switched_kas_off() {
        let (off, switch) = (watch::Sender::new(true), Arc::new(KillSwitch::default()));
        let mut following = Box::pin(follow_gitlab_switch(off.subscribe(), Arc::clone(&switch)));
        assert!(following.as_mut().now_or_never().is_none());
        assert_eq!(switch.lines(), ["everything: GitLab has switched kas off"]);
        off.send_replace(false);
        assert!(following.as_mut().now_or_never().is_none());
        assert!(switch.lines().is_empty());
    }
}
