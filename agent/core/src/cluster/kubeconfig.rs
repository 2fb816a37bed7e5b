//! kubeconfig files, which are read and merged as in kubectl.
//!
//! <https://kubernetes.io/docs/concepts/configuration/organize-cluster-access-kubeconfig/>

mod model;
mod user;

use std::{
    collections::BTreeMap,
    io,
    path::{Path, PathBuf},
};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use rustls::pki_types::ServerName;
use secrecy::{ExposeSecret as _, SecretSlice, SecretString};
use serde_saphyr::{MessageFormatter as _, Spanned, UserMessageFormatter};

use self::model::{ClusterEntry, ContextEntry, File, NamedEntry, UserEntry};
use super::{ClusterError, ConfigSource, ResolvedCluster};
use crate::upstream::{ClientTlsConfig, Pem, Scheme, ServerUrl};

/// Reads one kubeconfig, which blocks. `hint` is a remedy for the error that it cannot be read.
pub(super) fn load(
    path: &Path,
    context: Option<&str>,
    hint: &'static str,
) -> Result<ResolvedCluster, ClusterError> {
    let text =
        files::read_text(path).map_err(|cause| ClusterError::Read { path: path.to_owned(), cause, hint })?;
    let mut merged = Merged::default();
    merged.add(path, parse(path, &text)?);

    merged.resolve(context)
}

/// Reads and merges the files of `KUBECONFIG`, which blocks. At least one of them must exist.
pub(super) fn load_existing(
    files: &[PathBuf],
    context: Option<&str>,
) -> Result<ResolvedCluster, ClusterError> {
    let mut merged = Merged::default();
    for path in files {
        match files::read_text(path) {
            Ok(text) => merged.add(path, parse(path, &text)?),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(cause) => {
                return Err(ClusterError::Read { path: path.clone(), cause, hint: "; check KUBECONFIG" });
            }
        }
    }
    if merged.files.is_empty() {
        return Err(ClusterError::NoKubeconfig { files: files.to_vec() });
    }

    merged.resolve(context)
}

fn parse(path: &Path, text: &str) -> Result<File, ClusterError> {
    // A snippet of the file could contain a token.
    let options = serde_saphyr::options! { with_snippet: false };
    serde_saphyr::from_str_with_options(text, options).map_err(|error| ClusterError::Kubeconfig {
        file: path.to_owned(),
        line: error.location().map(|location| location.line()),
        problem: problem(error.without_snippet()),
    })
}

/// Returns the expected type without the value, which could be a token in the wrong place.
fn problem(error: &serde_saphyr::Error) -> String {
    use serde_saphyr::Error as E;

    match error {
        E::SerdeInvalidType { expected, .. } | E::SerdeInvalidValue { expected, .. } => {
            format!("expected {expected}")
        }
        E::Unexpected { expected, .. } => format!("expected a {}", expected.trim_end_matches(" start")),
        other => UserMessageFormatter.format_message(other).escape_debug().to_string(),
    }
}

/// Merged files: of several entries with one name, the first is used.
#[derive(Default)]
struct Merged {
    files: Vec<PathBuf>,
    current: Option<String>,
    clusters: BTreeMap<String, Entry<ClusterEntry>>,
    contexts: BTreeMap<String, Entry<ContextEntry>>,
    users: BTreeMap<String, Entry<UserEntry>>,
}

/// An entry and its position.
struct Entry<T> {
    file: PathBuf,
    line: u64,
    name: String,
    value: T,
}

impl Merged {
    fn add(&mut self, path: &Path, file: File) {
        self.files.push(path.to_owned());
        if self.current.is_none() {
            self.current = file.current_context.filter(|name| !name.is_empty());
        }
        insert(&mut self.clusters, path, file.clusters);
        insert(&mut self.contexts, path, file.contexts);
        insert(&mut self.users, path, file.users);
    }

    /// Resolves a context: the given one, or the current context of the files.
    fn resolve(mut self, context: Option<&str>) -> Result<ResolvedCluster, ClusterError> {
        let choices = match self
            .contexts
            .keys()
            .map(|name| name.escape_debug().to_string())
            .collect::<Vec<_>>()
            .join(", ")
        {
            none if none.is_empty() => "the file has no contexts".to_owned(),
            known => format!("choose one of: {known}"),
        };
        let file = self.files.first().cloned().unwrap_or_default();
        let invalid = |problem| ClusterError::Kubeconfig { file, line: None, problem };
        let name = match (context, self.current) {
            (Some(name), _) => name.to_owned(),
            (None, Some(name)) => name,
            (None, None) => {
                return Err(invalid(format!("no current-context; {choices}")));
            }
        };
        let context = self
            .contexts
            .remove(&name)
            .ok_or_else(|| invalid(format!("there is no context {name:?}; {choices}")))?;
        let cluster = context.value.cluster.as_deref().unwrap_or_default();
        let cluster =
            self.clusters.remove(cluster).ok_or_else(|| context.dangling("context", "cluster", cluster))?;
        let user = match context.value.user.as_deref().filter(|name| !name.is_empty()) {
            Some(name) => {
                Some(self.users.remove(name).ok_or_else(|| context.dangling("context", "user", name))?)
            }
            None => None,
        };

        let (url, mut tls) = cluster.resolve()?;
        let user = user::resolve(user, &cluster, &url)?;
        tls.identity = user.identity;
        let namespace = context.value.namespace.filter(|name| !name.is_empty());
        Ok(ResolvedCluster {
            source: ConfigSource::Kubeconfig { file: context.file, context: name },
            url,
            namespace: namespace.unwrap_or_else(|| "default".to_owned()),
            impersonation: user.impersonation,
            credentials: user.credentials,
            tls,
        })
    }
}

fn insert<T>(entries: &mut BTreeMap<String, Entry<T>>, file: &Path, named: Option<Vec<NamedEntry<T>>>) {
    for NamedEntry { name: Spanned { value: name, referenced, .. }, value } in named.into_iter().flatten() {
        let Some(value) = value else { continue };
        entries.entry(name.clone()).or_insert_with(|| Entry {
            file: file.to_owned(),
            line: referenced.line(),
            name,
            value,
        });
    }
}

impl<T> Entry<T> {
    fn problem(&self, kind: &str, problem: impl Into<String>) -> ClusterError {
        ClusterError::Kubeconfig {
            file: self.file.clone(),
            line: Some(self.line),
            problem: format!("{kind} {:?}: {}", self.name, problem.into()),
        }
    }

    fn dangling(&self, kind: &str, field: &str, name: &str) -> ClusterError {
        self.problem(kind, format!("there is no {field} {name:?}"))
    }

    /// Returns a path, which is relative to the directory of the file.
    fn path(&self, path: &Path) -> PathBuf {
        self.file.with_file_name("").join(path)
    }

    /// Returns the decoded `data`, or `file`. `data` takes precedence.
    fn pem(
        &self,
        kind: &str,
        field: &str,
        data: Option<&SecretString>,
        file: Option<&Path>,
    ) -> Result<Option<Pem>, ClusterError> {
        if let Some(data) = data.filter(|data| !data.expose_secret().is_empty()) {
            let base64: String = data.expose_secret().split_ascii_whitespace().collect();
            let pem = BASE64_STANDARD
                .decode(base64)
                .map_err(|_| self.problem(kind, format!("{field}-data is not valid base64")))?;
            return Ok(Some(Pem::Inline(SecretSlice::from(pem))));
        }

        Ok(file.filter(|path| !path.as_os_str().is_empty()).map(|path| Pem::File(self.path(path))))
    }
}

impl Entry<ClusterEntry> {
    fn resolve(&self) -> Result<(ServerUrl, ClientTlsConfig), ClusterError> {
        let problem = |problem: String| self.problem("cluster", problem);
        let entry = &self.value;
        if entry.proxy_url.as_deref().is_some_and(|url| !url.is_empty()) {
            return Err(problem(
                "proxy-url is not supported; run agentk where it can connect to the API server directly"
                    .into(),
            ));
        }
        let Some(server) = entry.server.as_deref().filter(|server| !server.is_empty()) else {
            return Err(problem("server is missing".into()));
        };
        let url: ServerUrl = server.parse().map_err(|error| problem(format!("server: {error}")))?;
        if url.scheme() == Scheme::Http {
            return Ok((url, ClientTlsConfig::default()));
        }

        let ca = self.pem(
            "cluster",
            "certificate-authority",
            entry.certificate_authority_data.as_ref(),
            entry.certificate_authority.as_deref(),
        )?;
        let insecure = entry.insecure_skip_tls_verify.unwrap_or_default();
        if insecure && ca.is_some() {
            return Err(problem(
                "insecure-skip-tls-verify and certificate-authority exclude each other; remove one".into(),
            ));
        }
        if insecure {
            tracing::warn!(
                %url,
                "insecure-skip-tls-verify: credentials are sent to a server that is not authenticated"
            );
        }
        let server_name = match entry.tls_server_name.clone().filter(|name| !name.is_empty()) {
            Some(name) => Some(
                ServerName::try_from(name)
                    .map_err(|_| problem("tls-server-name is neither a DNS name nor an IP address".into()))?,
            ),
            None => None,
        };

        Ok((url, ClientTlsConfig { ca, server_name, insecure, ..ClientTlsConfig::default() }))
    }
}
