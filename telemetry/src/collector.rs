//! Address and credentials of a collector.

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
};

use http::{HeaderMap, HeaderName, HeaderValue, header::AUTHORIZATION};
use rustls::{
    ClientConfig, RootCertStore,
    pki_types::{CertificateDer, pem::PemObject as _},
};

use crate::Endpoint;

/// GitLab's header for personal access tokens, and their prefix.
const PRIVATE_TOKEN: (HeaderName, &str) = (HeaderName::from_static("private-token"), "glpat-");

/// Collector of spans. Its files are checked at the start, and read again at each use.
#[derive(Clone, Debug)]
pub struct Collector {
    endpoint: Endpoint,
    ca_file: Option<PathBuf>,
    token_file: Option<PathBuf>,
    headers: HeaderMap,
    /// Trusts the system's roots, which are read once. `None` with `ca_file` or `http://`.
    system: Option<Arc<ClientConfig>>,
}

/// Reason why a file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum CollectorError {
    /// The file cannot be read.
    #[error("{}: {}", .0.display(), unreadable(.1))]
    Read(PathBuf, io::Error),
    /// The file holds no certificate.
    #[error("{}: holds no PEM certificate that can be used", .0.display())]
    NoCertificate(PathBuf),
    /// The file holds no token.
    #[error("{}: holds no token that fits into a header", .0.display())]
    NoToken(PathBuf),
    /// The system has no root certificates.
    #[error("no root certificates were found on this system; name the collector's certificate authority")]
    NoRoots,
}

impl Collector {
    /// Checks the certificate authorities of `ca_file`, or reads the system's without one. It blocks.
    ///
    /// An `http://` endpoint needs neither.
    pub fn new(endpoint: Endpoint, ca_file: Option<PathBuf>) -> Result<Self, CollectorError> {
        let mut collector =
            Self { endpoint, ca_file, token_file: None, headers: HeaderMap::new(), system: None };
        if let Some(file) = &collector.ca_file {
            read_roots(file)?;
        } else if collector.endpoint.is_secure() {
            collector.system = Some(system_roots()?);
        }
        Ok(collector)
    }

    /// Adds the token of a file as `Authorization: Bearer`, or as `Private-Token` if it is a personal access token of
    /// GitLab. It replaces the same header of [`Self::with_headers`]. This blocks.
    pub fn with_token(mut self, file: PathBuf) -> Result<Self, CollectorError> {
        read_token(&file)?;
        self.token_file = Some(file);
        Ok(self)
    }

    /// Adds headers to each request.
    #[must_use]
    pub fn with_headers(mut self, headers: HeaderMap) -> Self {
        self.headers = headers;
        self
    }

    pub(crate) fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// Returns the headers of the next request. It blocks.
    pub(crate) fn headers(&self) -> Result<HeaderMap, CollectorError> {
        let mut headers = self.headers.clone();
        if let Some(file) = &self.token_file {
            let (name, value) = read_token(file)?;
            headers.insert(name, value);
        }
        Ok(headers)
    }

    /// Returns the TLS configuration of the next connection, or `None` for `http://`. It blocks.
    pub(crate) fn tls(&self) -> Result<Option<Arc<ClientConfig>>, CollectorError> {
        match &self.ca_file {
            Some(file) if self.endpoint.is_secure() => read_roots(file).map(Some),
            _ => Ok(self.system.clone()),
        }
    }
}

fn read_token(file: &Path) -> Result<(HeaderName, HeaderValue), CollectorError> {
    let text = fs::read_to_string(file).map_err(|error| CollectorError::Read(file.to_owned(), error))?;
    let text = text.trim();
    let (name, said) = match text.starts_with(PRIVATE_TOKEN.1) {
        true => (PRIVATE_TOKEN.0, text.to_owned()),
        false => (AUTHORIZATION, format!("Bearer {text}")),
    };
    let unfit = || CollectorError::NoToken(file.to_owned());
    let mut value = HeaderValue::try_from(said).map_err(|_| unfit())?;
    if text.is_empty() {
        return Err(unfit());
    }
    value.set_sensitive(true);
    Ok((name, value))
}

fn read_roots(file: &Path) -> Result<Arc<ClientConfig>, CollectorError> {
    let bytes = fs::read(file).map_err(|error| CollectorError::Read(file.to_owned(), error))?;
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(CertificateDer::pem_slice_iter(&bytes).filter_map(Result::ok));
    if roots.is_empty() {
        return Err(CollectorError::NoCertificate(file.to_owned()));
    }
    Ok(client_config(roots))
}

fn system_roots() -> Result<Arc<ClientConfig>, CollectorError> {
    let mut roots = RootCertStore::empty();
    // Some systems ship certificates that rustls cannot parse.
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if roots.is_empty() { Err(CollectorError::NoRoots) } else { Ok(client_config(roots)) }
}

fn client_config(roots: RootCertStore) -> Arc<ClientConfig> {
    let mut config = ClientConfig::builder_with_provider(tls::provider())
        .with_safe_default_protocol_versions()
        .expect("AWS-LC supports the default versions")
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Arc::new(config)
}

fn unreadable(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::NotFound => "the file does not exist".to_owned(),
        io::ErrorKind::PermissionDenied => "permission denied: this user may not read the file".to_owned(),
        _ => format!("cannot be read: {error}"),
    }
}
