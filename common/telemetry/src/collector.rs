//! URL and credentials of a collector.

use std::{
    io,
    path::{Path, PathBuf},
    sync::Arc,
};

use http::{HeaderMap, HeaderName, HeaderValue, header::AUTHORIZATION};
use rustls::{ClientConfig, RootCertStore};

use crate::OtlpEndpoint;

/// The header of GitLab for personal access tokens, and the prefix of these tokens.
const PRIVATE_TOKEN: (HeaderName, &str) = (HeaderName::from_static("private-token"), "glpat-");

/// The collector that spans are sent to. Its files are checked at the start, and read again at each use.
#[derive(Clone, Debug)]
pub struct Collector {
    endpoint: OtlpEndpoint,
    ca_file: Option<PathBuf>,
    token_file: Option<PathBuf>,
    headers: HeaderMap,
    /// TLS with the root certificates of the system, which are read once. `None` with `ca_file` or `http://`.
    system: Option<Arc<ClientConfig>>,
}

/// The reason why a collector cannot be used.
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
    /// Checks the certificate authorities in `ca_file`, or reads those of the system without a file. This blocks.
    ///
    /// An `http://` endpoint needs neither.
    pub fn new(endpoint: OtlpEndpoint, ca_file: Option<PathBuf>) -> Result<Self, CollectorError> {
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

    pub(crate) fn endpoint(&self) -> &OtlpEndpoint {
        &self.endpoint
    }

    /// Returns the headers of the next request. This blocks.
    pub(crate) fn headers(&self) -> Result<HeaderMap, CollectorError> {
        let mut headers = self.headers.clone();
        if let Some(file) = &self.token_file {
            let (name, value) = read_token(file)?;
            headers.insert(name, value);
        }
        Ok(headers)
    }

    /// Returns the TLS configuration of the next connection, or `None` for `http://`. This blocks.
    pub(crate) fn tls(&self) -> Result<Option<Arc<ClientConfig>>, CollectorError> {
        match &self.ca_file {
            Some(file) if self.endpoint.is_secure() => read_roots(file).map(Some),
            _ => Ok(self.system.clone()),
        }
    }
}

fn read_token(file: &Path) -> Result<(HeaderName, HeaderValue), CollectorError> {
    let text = files::read_text(file).map_err(|error| CollectorError::Read(file.to_owned(), error))?;
    let text = text.trim();
    let (name, value) = if text.starts_with(PRIVATE_TOKEN.1) {
        (PRIVATE_TOKEN.0, text.to_owned())
    } else {
        (AUTHORIZATION, format!("Bearer {text}"))
    };
    let invalid = || CollectorError::NoToken(file.to_owned());
    let mut value = HeaderValue::try_from(value).map_err(|_| invalid())?;
    if text.is_empty() {
        return Err(invalid());
    }
    value.set_sensitive(true);
    Ok((name, value))
}

fn read_roots(file: &Path) -> Result<Arc<ClientConfig>, CollectorError> {
    let bytes = files::read(file).map_err(|error| CollectorError::Read(file.to_owned(), error))?;
    let roots = tls::pem_roots(&bytes);
    if roots.is_empty() {
        return Err(CollectorError::NoCertificate(file.to_owned()));
    }
    Ok(client_config(roots))
}

fn system_roots() -> Result<Arc<ClientConfig>, CollectorError> {
    let roots = tls::system_roots();
    if roots.is_empty() { Err(CollectorError::NoRoots) } else { Ok(client_config(roots)) }
}

fn client_config(roots: RootCertStore) -> Arc<ClientConfig> {
    Arc::new(tls::client_config(roots, &[b"http/1.1"]))
}

fn unreadable(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::NotFound => "the file does not exist".to_owned(),
        io::ErrorKind::PermissionDenied => "permission denied: this user may not read the file".to_owned(),
        _ => format!("cannot be read: {error}"),
    }
}
