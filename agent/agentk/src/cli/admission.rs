//! The options of `agentk admission` and of `agentk policy`.
#![allow(
    rustdoc::broken_intra_doc_links,
    reason = "these comments are help texts, where brackets mean optional"
)]

use std::{io::Write, net::SocketAddr, path::PathBuf};

use agentk_core::listen::listen_address;
use agentk_policy::{FeatureWrites, JudgedUsers, Policy};
use clap::{Args, Subcommand, ValueEnum, ValueHint};
use process::logs::LogFormat;

use crate::log_filter::log_format;

/// The commands about policy files.
#[derive(Debug, Subcommand)]
pub enum PolicyCommand {
    /// Print a policy in another form
    ///
    /// A ValidatingAdmissionPolicy needs Kubernetes 1.30, and no webhook: the API server itself decides by it.
    Render {
        /// Form of the policy
        #[arg(long = "as", value_enum, value_name = "FORM")]
        form: PolicyForm,
        /// Name of the printed objects
        #[arg(long, value_name = "NAME", default_value = "agentk")]
        name: String,
        #[command(flatten)]
        judge: JudgeOptions,
    },
    /// Print the JSON Schema of policy files, for editors
    Schema,
}

/// The forms of a printed policy.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum PolicyForm {
    /// A ValidatingAdmissionPolicy and its binding, as YAML
    AdmissionPolicy,
}

/// The policy for admission, and the users to whom it applies.
#[derive(Debug, Args)]
pub struct JudgeOptions {
    /// File of the policy, which is that of agentk
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, env = "AGENTK_POLICY_FILE")]
    pub policy_file: PathBuf,
    /// Service account of agentk: namespace/name
    #[arg(long, value_name = "NAMESPACE/NAME", env = "AGENTK_SERVICE_ACCOUNT", value_parser = service_account)]
    pub service_account: (String, String),
    /// Beginning of the names of users that agentk impersonates, such as gitlab: ; may be repeated
    ///
    /// Without the flag, only writes of agentk's service account are judged.
    #[arg(long, value_name = "PREFIX", env = "AGENTK_IMPERSONATED_PREFIX", value_delimiter = ',', value_parser = prefix)]
    pub impersonated_prefix: Vec<String>,
}

/// The options of the admission webhook.
#[derive(Debug, Args)]
pub struct AdmissionOptions {
    #[command(flatten)]
    pub judge: JudgeOptions,
    /// Address to answer at, with TLS: [host]:port
    #[arg(long, value_name = "ADDRESS", default_value = ":8443", value_parser = listen_address)]
    pub listen_address: SocketAddr,
    /// Certificate chain (PEM) for the name of the Service; read again when it changes
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, env = "AGENTK_ADMISSION_CERTIFICATE_FILE")]
    pub certificate_file: PathBuf,
    /// Private key (PEM) of that certificate
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, env = "AGENTK_ADMISSION_CERTIFICATE_KEY_FILE")]
    pub certificate_key_file: PathBuf,
    /// Authority (PEM) of the client certificate of the API server: clients that have one go first
    ///
    /// Others are answered, too, as long as there is room for their connections and questions.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, env = "AGENTK_ADMISSION_CLIENT_CA_FILE")]
    pub client_ca_file: Option<PathBuf>,
    /// Address to serve /liveness, /readiness and /metrics at: [host]:port
    #[arg(long, value_name = "ADDRESS", default_value = ":8080", value_parser = listen_address)]
    pub observability_listen_address: SocketAddr,
    /// Log level: error, warn, info, debug, trace; or a level per module
    #[arg(long, value_name = "LEVEL", env = "AGENTK_LOG_LEVEL", default_value = "info")]
    pub log_level: String,
    /// Format of log lines
    #[arg(long, value_name = "LOG_FORMAT", default_value = "text", value_parser = log_format(), env = "AGENTK_LOG_FORMAT")]
    pub log_format: LogFormat,
}

/// Parses the namespace and the name of a service account.
fn service_account(text: &str) -> Result<(String, String), String> {
    let is_name = |name: &str| {
        !name.is_empty()
            && name
                .bytes()
                .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-.".contains(&byte))
    };
    match text.split_once('/') {
        Some((namespace, name)) if is_name(namespace) && is_name(name) => {
            Ok((namespace.to_owned(), name.to_owned()))
        }
        _ => Err("write namespace/name, such as agentk/agentk".to_owned()),
    }
}

/// Parses the beginning of names of users. Those of Kubernetes itself are never impersonated by agentk alone.
fn prefix(text: &str) -> Result<String, String> {
    match text {
        "" => Err("an empty prefix would judge all users of the cluster".to_owned()),
        _ if "system:".starts_with(text) || text.starts_with("system:") => {
            Err("users of Kubernetes itself have this prefix: the cluster could not work".to_owned())
        }
        text => Ok(text.to_owned()),
    }
}

impl JudgeOptions {
    /// Returns the users to whom the policy applies. `features` are the writes of the features of agentk.
    pub fn users(&self, features: FeatureWrites) -> JudgedUsers {
        let (namespace, service_account) = self.service_account.clone();
        JudgedUsers { namespace, service_account, prefixes: self.impersonated_prefix.clone(), features }
    }
}

impl PolicyCommand {
    /// Writes the output. `features` are the writes of the features of agentk. It reads the policy, which blocks.
    ///
    /// # Errors
    ///
    /// The policy is invalid, or has no such form.
    pub fn run(&self, features: FeatureWrites, out: &mut impl Write) -> anyhow::Result<()> {
        match self {
            Self::Render { form: PolicyForm::AdmissionPolicy, name, judge } => {
                for object in Policy::load(&judge.policy_file)?.render(&judge.users(features), name)? {
                    writeln!(out, "---\n{}", serde_saphyr::to_string(&object)?.trim_end())?;
                }
            }
            Self::Schema => write!(out, "{}", Policy::json_schema())?,
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefix_of_all_users_or_of_those_of_kubernetes_is_refused() {
        for text in ["", "s", "sys", "system:", "system:serviceaccount:ci:"] {
            assert!(prefix(text).is_err(), "{text}");
        }
        for text in ["gitlab:", "systems", "ci-"] {
            assert_eq!(prefix(text).as_deref(), Ok(text));
        }
    }

    #[test]
    fn service_account_has_a_namespace_and_a_name() {
        assert_eq!(service_account("agentk/agentk.v2"), Ok(("agentk".to_owned(), "agentk.v2".to_owned())));
        for text in ["", "agentk", "/agentk", "agentk/", "a/b/c", "A/b", "system:serviceaccount:a:b"] {
            assert!(service_account(text).is_err(), "{text}");
        }
    }
}
