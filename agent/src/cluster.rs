//! Where the Kubernetes API is, whom to trust there, and who we are.
//!
//! The first of these that is set is used: `--kubeconfig`, `KUBECONFIG`, the service account of the pod we run in,
//! `~/.kube/config`. In a pod nothing needs to be configured; on a laptop it is what `kubectl` would use.
//!
//! Everything that can be wrong with a file is found at start. What may change later (a rotated service account
//! token, a renewed client certificate, a new cluster CA, the token of a credential plugin) is picked up while running.

mod credential_file;
mod credentials;
mod error;
mod exec;
mod impersonation;
mod in_cluster;
mod kubeconfig;

#[cfg(test)]
mod tests;

use std::{
    ffi::OsString,
    fmt,
    path::{Path, PathBuf},
    sync::Arc,
};

use http::HeaderValue;
use rustls::pki_types::ServerName;

use self::credentials::Credentials;
pub use self::{
    credential_file::{Content, CredentialFile},
    error::ClusterError,
    impersonation::Impersonation,
};
use crate::upstream::{ConfigFuture, Endpoint, Scheme, Tls, TlsOptions, TlsSource};

/// What the user may choose. The default finds everything by itself.
#[derive(Clone, Debug, Default)]
pub struct ClusterOptions {
    pub kubeconfig: Option<PathBuf>,
    /// Instead of the kubeconfig's `current-context`.
    pub context: Option<String>,
}

/// What [`Cluster::load_in`] sees of the process it runs in.
pub struct Environment<'a> {
    pub variable: &'a dyn Fn(&str) -> Option<OsString>,
    /// Where Kubernetes mounts the token, the CA and the namespace of a pod's service account.
    pub service_account: PathBuf,
}

/// A Kubernetes API server, and our credentials there.
pub struct Cluster {
    source: Source,
    endpoint: Endpoint,
    namespace: String,
    impersonation: Option<Impersonation>,
    credentials: Arc<Credentials>,
    tls: Arc<ClusterTls>,
}

/// What a source of configuration comes to.
struct Found {
    source: Source,
    endpoint: Endpoint,
    namespace: String,
    impersonation: Option<Impersonation>,
    credentials: Credentials,
    tls: TlsOptions,
}

enum Source {
    Kubeconfig { file: PathBuf, context: String },
    ServiceAccount,
}

impl Cluster {
    /// Reads the configuration; it blocks. A credential plugin is not run yet.
    pub fn load(options: &ClusterOptions) -> Result<Self, ClusterError> {
        Self::load_in(options, &Environment::default())
    }

    pub fn load_in(options: &ClusterOptions, environment: &Environment<'_>) -> Result<Self, ClusterError> {
        let Found { source, endpoint, namespace, impersonation, credentials, tls } =
            find(options, environment)?;
        let credentials = Arc::new(credentials);
        let files = match endpoint.scheme() {
            // Without TLS, a machine without root certificates will do.
            Scheme::Http => Tls::system(),
            Scheme::Https => Tls::new(tls)?,
        };
        let tls = Arc::new(ClusterTls { files, credentials: Arc::clone(&credentials) });

        Ok(Self { source, endpoint, namespace, impersonation, credentials, tls })
    }

    pub fn endpoint(&self) -> Endpoint {
        self.endpoint.clone()
    }

    /// For every new connection to [`Self::endpoint`].
    pub fn tls(&self) -> Arc<dyn TlsSource> {
        Arc::clone(&self.tls) as _
    }

    /// The Authorization header of a request that is ours, marked as sensitive. None if a client certificate, or
    /// nothing, says who we are.
    ///
    /// Cheap to call for every request: it takes a lock and the time. Only now and then it reads a file or runs a
    /// plugin.
    pub async fn authorization(&self) -> Result<Option<HeaderValue>, ClusterError> {
        self.credentials.authorization().await
    }

    /// To be called when the server answered 401 to [`Self::authorization`]: what is cached is not used again.
    /// Connections opened with a client certificate are a matter for `Upstream::renew_connections`.
    pub fn rejected(&self) {
        self.credentials.rejected();
    }

    /// As whom to act, from `as` in the kubeconfig.
    pub fn impersonation(&self) -> Option<&Impersonation> {
        self.impersonation.as_ref()
    }

    /// That of the context or of our pod; `default` if neither names one.
    pub fn namespace(&self) -> &str {
        &self.namespace
    }
}

/// For logs: nothing secret.
impl fmt::Display for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (endpoint, credentials) = (&self.endpoint, &self.credentials);
        write!(f, "{endpoint} as told by {}, with {credentials}", self.source)?;
        match &self.impersonation {
            Some(impersonation) => write!(f, ", as {}", impersonation.user()),
            None => Ok(()),
        }
    }
}

impl fmt::Debug for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Cluster({self})")
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Kubeconfig { file, context } => write!(f, "context {context:?} of {}", file.display()),
            Self::ServiceAccount => f.write_str("this pod's service account"),
        }
    }
}

impl Default for Environment<'_> {
    fn default() -> Self {
        Self {
            variable: &|name| std::env::var_os(name),
            service_account: PathBuf::from("/var/run/secrets/kubernetes.io/serviceaccount"),
        }
    }
}

impl Environment<'_> {
    /// An empty variable counts as not set, as in kubectl.
    fn get(&self, name: &str) -> Option<OsString> {
        (self.variable)(name).filter(|value| !value.is_empty())
    }
}

fn find(options: &ClusterOptions, environment: &Environment<'_>) -> Result<Found, ClusterError> {
    let context = options.context.as_deref();
    if let Some(path) = &options.kubeconfig {
        return kubeconfig::load(path, context, "; check --kubeconfig");
    }
    if let Some(list) = environment.get("KUBECONFIG") {
        let files: Vec<_> =
            std::env::split_paths(&list).filter(|path| !path.as_os_str().is_empty()).collect();
        return kubeconfig::load_existing(&files, context);
    }
    if let Some(address) = in_cluster::address(environment) {
        if let Some(context) = context {
            return Err(ClusterError::ContextInCluster { context: context.to_owned() });
        }
        return in_cluster::load(address, &environment.service_account);
    }

    let home = environment.get("HOME").map(|home| Path::new(&home).join(".kube/config"));
    match home {
        Some(path) if path.exists() => kubeconfig::load(&path, context, ""),
        home => Err(ClusterError::NotConfigured { home }),
    }
}

/// The files of the configuration, and the certificate of a credential plugin.
struct ClusterTls {
    files: Tls,
    credentials: Arc<Credentials>,
}

impl TlsSource for ClusterTls {
    fn config(&self) -> ConfigFuture<'_> {
        Box::pin(async {
            let identity = self.credentials.identity().await?;
            Ok(self.files.config_with(identity).await?)
        })
    }

    fn server_name(&self) -> Option<ServerName<'static>> {
        self.files.server_name()
    }
}
