//! The fields of a kubeconfig that agentk uses. All are optional, since kubectl writes `null` for absent values.
//!
//! <https://kubernetes.io/docs/reference/config-api/kubeconfig.v1/>

use std::{collections::BTreeMap, path::PathBuf};

use secrecy::SecretString;
use serde::{Deserialize, de::IgnoredAny};
use serde_saphyr::Spanned;

#[derive(Default, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
pub(super) struct File {
    pub(super) current_context: Option<String>,
    pub(super) clusters: Option<Vec<NamedEntry<ClusterEntry>>>,
    pub(super) contexts: Option<Vec<NamedEntry<ContextEntry>>>,
    pub(super) users: Option<Vec<NamedEntry<UserEntry>>>,
}

#[derive(Deserialize)]
pub(super) struct NamedEntry<T> {
    pub(super) name: Spanned<String>,
    #[serde(alias = "cluster", alias = "context", alias = "user")]
    pub(super) value: Option<T>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
pub(super) struct ClusterEntry {
    pub(super) server: Option<String>,
    pub(super) certificate_authority: Option<PathBuf>,
    pub(super) certificate_authority_data: Option<SecretString>,
    pub(super) insecure_skip_tls_verify: Option<bool>,
    pub(super) tls_server_name: Option<String>,
    pub(super) proxy_url: Option<String>,
    pub(super) extensions: Option<Vec<Extension>>,
}

#[derive(Deserialize)]
pub(super) struct Extension {
    pub(super) name: String,
    #[serde(default)]
    pub(super) extension: serde_json::Value,
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct ContextEntry {
    pub(super) cluster: Option<String>,
    pub(super) user: Option<String>,
    pub(super) namespace: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
pub(super) struct UserEntry {
    pub(super) token: Option<SecretString>,
    #[serde(rename = "tokenFile")]
    pub(super) token_file: Option<PathBuf>,
    pub(super) client_certificate: Option<PathBuf>,
    pub(super) client_certificate_data: Option<SecretString>,
    pub(super) client_key: Option<PathBuf>,
    pub(super) client_key_data: Option<SecretString>,
    pub(super) username: Option<String>,
    pub(super) password: Option<SecretString>,
    pub(super) exec: Option<ExecEntry>,
    pub(super) auth_provider: Option<IgnoredAny>,
    pub(super) r#as: Option<String>,
    pub(super) as_uid: Option<String>,
    pub(super) as_groups: Option<Vec<String>>,
    pub(super) as_user_extra: Option<BTreeMap<String, Vec<String>>>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct ExecEntry {
    pub(super) api_version: Option<String>,
    pub(super) command: Option<String>,
    pub(super) args: Option<Vec<String>>,
    pub(super) env: Option<Vec<Variable>>,
    pub(super) install_hint: Option<String>,
    pub(super) interactive_mode: Option<String>,
    pub(super) provide_cluster_info: Option<bool>,
}

#[derive(Deserialize)]
pub(super) struct Variable {
    pub(super) name: String,
    #[serde(default)]
    pub(super) value: SecretString,
}
