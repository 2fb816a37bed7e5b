//! Turns a kubeconfig's user into credentials.

use std::{ffi::OsString, path::Path};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use secrecy::{ExposeSecret as _, SecretString};
use serde_json::json;

use super::{
    super::{
        ClusterError, Credentials, ImpersonationHeaders,
        authorization::{basic, bearer},
        credential_file::{CredentialFile, CredentialKind},
        exec::{API_VERSIONS, ExecPlugin, PluginCommand},
    },
    ClusterEntry, Entry, UserEntry,
    model::ExecEntry,
};
use crate::upstream::{Pem, Scheme, ServerUrl};

pub(super) struct User {
    pub(super) credentials: Credentials,
    pub(super) identity: Option<(Pem, Pem)>,
    pub(super) impersonation: Option<ImpersonationHeaders>,
}

pub(super) fn resolve(
    user: Option<Entry<UserEntry>>,
    cluster: &Entry<ClusterEntry>,
    url: &ServerUrl,
) -> Result<User, ClusterError> {
    let Some(user) = user else {
        return Ok(User { credentials: Credentials::Anonymous, identity: None, impersonation: None });
    };
    let impersonation = user.impersonation()?;
    // As in kubectl (`IsConfigTransportTLS` in client-go), credentials are not sent without TLS. This is also the way to use
    // `kubectl proxy`.
    if url.scheme() == Scheme::Http {
        return Ok(User { credentials: Credentials::Anonymous, identity: None, impersonation });
    }

    let identity = user.identity()?;
    let credentials = match user.credentials(cluster, url)? {
        Credentials::Anonymous if identity.is_some() => Credentials::ClientCertificate,
        other => other,
    };
    Ok(User { credentials, identity, impersonation })
}

impl Entry<UserEntry> {
    fn invalid(&self, problem: impl Into<String>) -> ClusterError {
        self.problem("user", problem)
    }

    /// Returns the credentials in the order of client-go: a token file before a token, and either before a plugin.
    fn credentials(
        &self,
        cluster: &Entry<ClusterEntry>,
        url: &ServerUrl,
    ) -> Result<Credentials, ClusterError> {
        let user = &self.value;
        if user.auth_provider.is_some() {
            return Err(self.invalid("auth-provider was removed in Kubernetes 1.26; use an exec plugin"));
        }
        let token = present(user.token.as_ref());
        let password = present(user.password.as_ref());
        let name = user.username.as_deref().filter(|name| !name.is_empty());
        if token.is_some() && (name.is_some() || password.is_some()) {
            return Err(self.invalid("token and username/password exclude each other; remove one"));
        }

        let token = match token {
            Some(token) => Some(
                bearer(token.expose_secret().trim())
                    .ok_or_else(|| self.invalid("token cannot be sent in a header"))?,
            ),
            None => None,
        };
        let file = user.token_file.as_deref().filter(|path| !path.as_os_str().is_empty());
        match (file.map(|path| self.path(path)), token) {
            (Some(path), Some(token)) => {
                return Ok(Credentials::File(CredentialFile::open_or_fallback(path, token)));
            }
            (Some(path), None) => {
                return Ok(Credentials::File(CredentialFile::open(path, CredentialKind::Token)?));
            }
            (None, Some(token)) => return Ok(Credentials::Token(token)),
            (None, None) => {}
        }
        if name.is_some() || password.is_some() {
            let none = SecretString::default();
            let value = basic(name.unwrap_or_default(), password.unwrap_or(&none))
                .ok_or_else(|| self.invalid("username and password cannot be sent in a header"))?;
            return Ok(Credentials::Password(value));
        }

        match &user.exec {
            Some(exec) => Ok(Credentials::Plugin(ExecPlugin::new(self.command(exec, cluster, url)?))),
            None => Ok(Credentials::Anonymous),
        }
    }

    fn identity(&self) -> Result<Option<(Pem, Pem)>, ClusterError> {
        let user = &self.value;
        let chain = self.pem(
            "user",
            "client-certificate",
            user.client_certificate_data.as_ref(),
            user.client_certificate.as_deref(),
        )?;
        let key =
            self.pem("user", "client-key", user.client_key_data.as_ref(), user.client_key.as_deref())?;
        match (chain, key) {
            (Some(chain), Some(key)) => Ok(Some((chain, key))),
            (None, None) => Ok(None),
            (Some(_), None) => Err(self.invalid("client-certificate without client-key")),
            (None, Some(_)) => Err(self.invalid("client-key without client-certificate")),
        }
    }

    fn impersonation(&self) -> Result<Option<ImpersonationHeaders>, ClusterError> {
        let user = &self.value;
        let uid = user.as_uid.clone().filter(|uid| !uid.is_empty());
        let groups = user.as_groups.clone().unwrap_or_default();
        let extra = user.as_user_extra.clone().unwrap_or_default();
        match user.r#as.clone().filter(|name| !name.is_empty()) {
            Some(username) => {
                let extra = extra.into_iter().collect();
                let impersonation = proto::impersonation::Impersonation { username, uid, groups, extra };
                ImpersonationHeaders::new(impersonation)
                    .map(Some)
                    .map_err(|error| self.invalid(format!("as: {error}")))
            }
            None if uid.is_some() || !groups.is_empty() || !extra.is_empty() => {
                Err(self.invalid("as-uid, as-groups and as-user-extra need as, the user they belong to"))
            }
            None => Ok(None),
        }
    }

    fn command(
        &self,
        exec: &ExecEntry,
        cluster: &Entry<ClusterEntry>,
        url: &ServerUrl,
    ) -> Result<PluginCommand, ClusterError> {
        let Some(program) = exec.command.as_deref().filter(|command| !command.is_empty()) else {
            return Err(self.invalid("exec has no command"));
        };
        let version = exec.api_version.as_deref().unwrap_or_default();
        let Some(api_version) = API_VERSIONS.into_iter().find(|known| *known == version) else {
            return Err(self.invalid(format!(
                "exec has apiVersion {version:?}; supported are {}; update the plugin, or its entry here",
                API_VERSIONS.join(" and ")
            )));
        };
        if exec.interactive_mode.as_deref() == Some("Always") {
            return Err(self.invalid("exec has interactiveMode Always, but agentk has no terminal"));
        }

        let mut spec = json!({ "interactive": false });
        if exec.provide_cluster_info.unwrap_or_default() {
            spec["cluster"] = cluster.info(url)?;
        }
        let info = json!({ "apiVersion": api_version, "kind": "ExecCredential", "spec": spec });
        // A bare name is looked up in PATH.
        let program = if program.contains('/') {
            self.path(Path::new(program)).into_os_string()
        } else {
            OsString::from(program)
        };
        let variables = exec.env.iter().flatten();

        Ok(PluginCommand {
            api_version,
            program,
            arguments: exec.args.clone().unwrap_or_default(),
            environment: variables.map(|variable| (variable.name.clone(), variable.value.clone())).collect(),
            info: info.to_string(),
            install_hint: exec.install_hint.clone().unwrap_or_default(),
        })
    }
}

impl Entry<ClusterEntry> {
    /// Returns `spec.cluster` of an ExecCredential, for plugins with `provideClusterInfo`.
    fn info(&self, url: &ServerUrl) -> Result<serde_json::Value, ClusterError> {
        let entry = &self.value;
        let mut info = json!({ "server": url.to_string() });
        if let Some(name) = &entry.tls_server_name {
            info["tls-server-name"] = json!(name);
        }
        if entry.insecure_skip_tls_verify.unwrap_or_default() {
            info["insecure-skip-tls-verify"] = json!(true);
        }
        let ca = self.pem(
            "cluster",
            "certificate-authority",
            entry.certificate_authority_data.as_ref(),
            entry.certificate_authority.as_deref(),
        )?;
        if let Some(ca) = ca {
            info["certificate-authority-data"] = json!(BASE64_STANDARD.encode(ca.read()?.expose_secret()));
        }
        let mut extensions = entry.extensions.iter().flatten();
        if let Some(config) = extensions.find(|item| item.name == "client.authentication.k8s.io/exec") {
            info["config"] = config.extension.clone();
        }

        Ok(info)
    }
}

fn present(secret: Option<&SecretString>) -> Option<&SecretString> {
    secret.filter(|secret| !secret.expose_secret().is_empty())
}
