//! The Kubernetes API server: its URL, its certificate authority, and agentk's credentials.
//!
//! The first of these that is set is used: `--kubeconfig`, `KUBECONFIG`, the service account of the pod, `~/.kube/config`. A
//! pod needs no configuration; on a laptop, agentk uses the cluster of `kubectl`.
//!
//! Files are checked at start. Credentials that change later (a rotated service account token, a renewed client certificate,
//! a new cluster CA, the token of a credential plugin) are used without a restart.

mod authorization;
mod credential_file;
mod error;
mod exec;
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

use http::{HeaderMap, HeaderValue};
use proto::impersonation::{Impersonation, InvalidImpersonation};
use rustls::pki_types::ServerName;
use tokio::time::Instant;

use self::exec::ExecPlugin;
pub use self::{
    credential_file::{CredentialFile, CredentialKind},
    error::ClusterError,
    exec::kill_plugins,
};
use crate::{
    file_followers::FileFollowers,
    upstream::{
        ClientIdentity, ClientTls, ClientTlsConfig, Scheme, ServerUrl, TlsConfigFuture, TlsConfigSource,
    },
};

/// The kubeconfig to use. The default is found as described in [the module](self).
#[derive(Clone, Debug, Default)]
pub struct KubeconfigOptions {
    /// The file, instead of that of the environment.
    pub file: Option<PathBuf>,
    /// The context, instead of the file's `current-context`.
    pub context: Option<String>,
}

/// The environment that [`Cluster::load_in`] reads.
pub struct ClusterEnvironment<'a> {
    /// Returns the value of an environment variable.
    pub variable: &'a dyn Fn(&str) -> Option<OsString>,
    /// The directory in which Kubernetes mounts the token, the CA and the namespace of a pod's service account.
    pub service_account: PathBuf,
}

/// A Kubernetes API server, and agentk's credentials for it.
pub struct Cluster {
    source: ConfigSource,
    url: ServerUrl,
    namespace: String,
    impersonation: Option<ImpersonationHeaders>,
    credentials: Arc<Credentials>,
    tls: Arc<ClusterTls>,
}

/// The configuration of a cluster, before its certificates are read.
struct ResolvedCluster {
    source: ConfigSource,
    url: ServerUrl,
    namespace: String,
    impersonation: Option<ImpersonationHeaders>,
    credentials: Credentials,
    tls: ClientTlsConfig,
}

enum ConfigSource {
    Kubeconfig { file: PathBuf, context: String },
    ServiceAccount,
}

/// The credentials of agentk for its API server.
enum Credentials {
    Anonymous,
    /// The client certificate of the TLS configuration.
    ClientCertificate,
    Token(HeaderValue),
    Password(HeaderValue),
    File(CredentialFile),
    Plugin(Arc<ExecPlugin>),
}

/// The headers for the `as*` fields of a kubeconfig's user.
struct ImpersonationHeaders {
    user: String,
    headers: HeaderMap,
}

impl Cluster {
    /// Reads the configuration, which blocks. A credential plugin is not run yet.
    pub fn load(options: &KubeconfigOptions) -> Result<Self, ClusterError> {
        Self::load_in(options, &ClusterEnvironment::default())
    }

    /// Reads the configuration from this environment; see [`Self::load`].
    pub fn load_in(
        options: &KubeconfigOptions,
        environment: &ClusterEnvironment<'_>,
    ) -> Result<Self, ClusterError> {
        let ResolvedCluster { source, url, namespace, impersonation, credentials, tls } =
            find(options, environment)?;
        let credentials = Arc::new(credentials);
        let files = match url.scheme() {
            // Root certificates are needed for TLS only.
            Scheme::Http => ClientTls::system(),
            Scheme::Https => ClientTls::new(tls)?,
        };
        let tls = Arc::new(ClusterTls { files, credentials: Arc::clone(&credentials) });

        Ok(Self { source, url, namespace, impersonation, credentials, tls })
    }

    /// Returns the URL of the API server.
    pub fn url(&self) -> ServerUrl {
        self.url.clone()
    }

    /// Returns the source of TLS configurations for connections to [`Self::url`].
    pub fn tls(&self) -> Arc<dyn TlsConfigSource> {
        Arc::clone(&self.tls) as _
    }

    /// Returns the Authorization header with agentk's credential, marked as sensitive. `None` if the credential is a client
    /// certificate, or if there is none.
    ///
    /// It is cheap enough to be called for every request: it rarely reads a file or runs a plugin.
    pub async fn authorization(&self) -> Result<Option<HeaderValue>, ClusterError> {
        self.credentials.authorization().await
    }

    /// Discards the cached credential, after the server answered 401 to it. `Upstream::renew_connections` does the same for
    /// connections that were opened with a client certificate.
    pub fn invalidate_credential(&self) {
        self.credentials.invalidate();
    }

    /// Follows the files of the credentials and of the certificates. It reads their metadata, which blocks.
    pub fn follow_files(&self, followers: &mut FileFollowers) {
        let tls = &self.tls.files;
        followers.check("cluster certificates", tls.files(), tls.check());
        if let Credentials::File(file) = &*self.credentials {
            followers.check("cluster token", vec![file.path()], file.check());
        }
    }

    /// Returns true if the configuration has no credential.
    pub fn is_anonymous(&self) -> bool {
        matches!(*self.credentials, Credentials::Anonymous)
    }

    /// Returns the `Impersonate-*` headers for the `as` fields of the kubeconfig, if it has any.
    pub fn impersonation(&self) -> Option<&HeaderMap> {
        self.impersonation.as_ref().map(ImpersonationHeaders::headers)
    }

    /// Returns the namespace of the context or of the pod; `default` if there is none.
    pub fn namespace(&self) -> &str {
        &self.namespace
    }
}

impl Credentials {
    /// Returns the Authorization header, marked as sensitive.
    async fn authorization(&self) -> Result<Option<HeaderValue>, ClusterError> {
        match self {
            Self::Anonymous | Self::ClientCertificate => Ok(None),
            Self::Token(value) | Self::Password(value) => Ok(Some(value.clone())),
            Self::File(file) => Ok(Some(file.authorization(Instant::now()).await)),
            Self::Plugin(plugin) => Ok(plugin.credential().await?.authorization.clone()),
        }
    }

    /// Returns the client certificate that is not in the TLS configuration, if there is one.
    async fn identity(&self) -> Result<Option<Arc<ClientIdentity>>, ClusterError> {
        match self {
            Self::Plugin(plugin) => Ok(plugin.credential().await?.identity.clone()),
            _ => Ok(None),
        }
    }

    /// Discards the cached credential.
    fn invalidate(&self) {
        match self {
            Self::File(file) => file.invalidate(),
            Self::Plugin(plugin) => plugin.invalidate(),
            Self::Anonymous | Self::ClientCertificate | Self::Token(_) | Self::Password(_) => {}
        }
    }
}

impl ImpersonationHeaders {
    fn new(impersonation: Impersonation) -> Result<Self, InvalidImpersonation> {
        Ok(Self { headers: impersonation.headers()?, user: impersonation.username })
    }

    /// Returns the name of the user, for logs.
    fn user(&self) -> &str {
        &self.user
    }

    /// Returns the `Impersonate-*` headers.
    fn headers(&self) -> &HeaderMap {
        &self.headers
    }
}

/// Displays the kind, never the credential.
impl fmt::Display for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Anonymous => f.write_str("no credentials"),
            Self::ClientCertificate => f.write_str("a client certificate"),
            Self::Token(_) => f.write_str("a fixed token"),
            Self::Password(_) => f.write_str("a user name and password"),
            Self::File(file) => file.fmt(f),
            Self::Plugin(plugin) => write!(f, "the credential plugin {}", plugin.command()),
        }
    }
}

/// Displays the cluster for logs, without secrets.
impl fmt::Display for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (url, credentials) = (&self.url, &self.credentials);
        write!(f, "{url} from {}, with {credentials}", self.source)?;
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

impl fmt::Display for ConfigSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Kubeconfig { file, context } => write!(f, "context {context:?} of {}", file.display()),
            Self::ServiceAccount => f.write_str("this pod's service account"),
        }
    }
}

impl Default for ClusterEnvironment<'_> {
    fn default() -> Self {
        Self {
            variable: &|name| std::env::var_os(name),
            service_account: PathBuf::from("/var/run/secrets/kubernetes.io/serviceaccount"),
        }
    }
}

impl ClusterEnvironment<'_> {
    /// An empty variable counts as not set, as in kubectl.
    fn get(&self, name: &str) -> Option<OsString> {
        (self.variable)(name).filter(|value| !value.is_empty())
    }
}

/// Finds the configuration by the precedence of the sources.
fn find(
    options: &KubeconfigOptions,
    environment: &ClusterEnvironment<'_>,
) -> Result<ResolvedCluster, ClusterError> {
    let context = options.context.as_deref();
    if let Some(path) = &options.file {
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

/// The certificates of the configuration, and the client certificate of a credential plugin.
struct ClusterTls {
    files: ClientTls,
    credentials: Arc<Credentials>,
}

impl TlsConfigSource for ClusterTls {
    fn config(&self) -> TlsConfigFuture<'_> {
        Box::pin(async {
            let identity = self.credentials.identity().await?;
            Ok(self.files.config_with(identity).await?)
        })
    }

    fn server_name(&self) -> Option<ServerName<'static>> {
        self.files.server_name()
    }
}
