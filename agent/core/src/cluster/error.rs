//! The errors of a cluster's configuration. Each names the file or the variable, and a remedy.

use std::{
    io,
    path::{Path, PathBuf},
};

use crate::upstream::TlsError;

/// The error of a cluster's configuration, or of its credentials.
#[derive(Debug, thiserror::Error)]
pub enum ClusterError {
    /// There is no configuration.
    #[error(
        "no Kubernetes API is configured. Tried: --kubeconfig (not given), KUBECONFIG (not set), this pod's service \
         account (KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT are not set), {}",
        tried_home(.home.as_deref())
    )]
    NotConfigured {
        /// The path of the kubeconfig in the home directory, if `HOME` is set.
        home: Option<PathBuf>,
    },
    /// A context was given, and the configuration is a service account.
    #[error(
        "context {context:?} was given, but the configuration is this pod's service account, which has no \
         contexts; name a kubeconfig too"
    )]
    ContextInCluster {
        /// The name of the context.
        context: String,
    },
    /// No file of `KUBECONFIG` exists.
    #[error("KUBECONFIG names no file that exists: {}", list(.files))]
    NoKubeconfig {
        /// The files of `KUBECONFIG`.
        files: Vec<PathBuf>,
    },
    /// A file cannot be read.
    #[error("cannot read {}: {cause}{hint}", .path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The error of the operating system.
        cause: io::Error,
        /// The remedy, or an empty text.
        hint: &'static str,
    },
    /// A kubeconfig is invalid.
    #[error("{}{}: {problem}", .file.display(), suffix(*.line))]
    Kubeconfig {
        /// The kubeconfig.
        file: PathBuf,
        /// The line of the problem, if it is known.
        line: Option<u64>,
        /// The problem.
        problem: String,
    },
    /// The variables of the pod have no valid address.
    #[error("KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT are not a valid address: {address:?}")]
    ServiceAddress {
        /// The text of both variables.
        address: String,
    },
    /// A credential file is invalid; `what` is `the token` or `the password`.
    #[error("{what} in {} {problem}", .path.display())]
    Credential {
        /// `the token` or `the password`.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// The problem.
        problem: &'static str,
    },
    /// A certificate cannot be used.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// A credential plugin printed no valid credential.
    #[error("the credential plugin {command}: {problem}")]
    Plugin {
        /// The program.
        command: String,
        /// The problem.
        problem: String,
    },
}

fn tried_home(path: Option<&Path>) -> String {
    match path {
        Some(path) => format!("{} (does not exist)", path.display()),
        None => "~/.kube/config (HOME is not set)".to_owned(),
    }
}

fn list(files: &[PathBuf]) -> String {
    files.iter().map(|file| file.display().to_string()).collect::<Vec<_>>().join(", ")
}

fn suffix(line: Option<u64>) -> String {
    line.map(|line| format!(":{line}")).unwrap_or_default()
}
