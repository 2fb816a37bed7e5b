//! Where spans go, and how the collector is convinced to take them.

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

/// GitLab's name for a personal access token in a header, and how such tokens begin.
const PRIVATE_TOKEN: (HeaderName, &str) = (HeaderName::from_static("private-token"), "glpat-");

/// A collector of traces. Its files were readable once, and are read again at each use.
#[derive(Clone, Debug)]
pub struct Collector {
    endpoint: Endpoint,
    authority: Option<PathBuf>,
    token: Option<PathBuf>,
    headers: HeaderMap,
    /// Without an authority of its own; read once.
    system: Option<Arc<ClientConfig>>,
}

/// A file that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum CollectorError {
    /// Not read.
    #[error("{}: {}", .0.display(), unreadable(.1))]
    Read(PathBuf, io::Error),
    /// No certificate in it.
    #[error("{}: holds no PEM certificate that can be used", .0.display())]
    NoCertificate(PathBuf),
    /// No token in it.
    #[error("{}: holds no token that fits into a header", .0.display())]
    NoToken(PathBuf),
    /// Nobody to trust.
    #[error("no root certificates were found on this system; name the collector's certificate authority")]
    NoRoots,
}

impl Collector {
    /// Reads what is named, to find out what is wrong with it; it blocks. Without an authority the system's roots are
    /// trusted, and none are needed for `http://`.
    pub fn new(endpoint: Endpoint, authority: Option<PathBuf>) -> Result<Self, CollectorError> {
        let mut collector =
            Self { endpoint, authority, token: None, headers: HeaderMap::new(), system: None };
        if let Some(file) = &collector.authority {
            trusting(file)?;
        } else if collector.endpoint.is_secure() {
            collector.system = Some(system()?);
        }
        Ok(collector)
    }

    /// Shows the token of a file, as `Authorization: Bearer`, or as `Private-Token` where it is one of GitLab's
    /// personal access tokens. It wins over the same header of [`Self::with_headers`].
    pub fn with_token(mut self, file: PathBuf) -> Result<Self, CollectorError> {
        token(&file)?;
        self.token = Some(file);
        Ok(self)
    }

    /// Sends these along.
    #[must_use]
    pub fn with_headers(mut self, headers: HeaderMap) -> Self {
        self.headers = headers;
        self
    }

    pub(crate) fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// What the next request says besides its body. It blocks.
    pub(crate) fn headers(&self) -> Result<HeaderMap, CollectorError> {
        let mut headers = self.headers.clone();
        if let Some(file) = &self.token {
            let (name, value) = token(file)?;
            headers.insert(name, value);
        }
        Ok(headers)
    }

    /// For the next connection; none for `http://`. It blocks.
    pub(crate) fn tls(&self) -> Result<Option<Arc<ClientConfig>>, CollectorError> {
        match &self.authority {
            Some(file) if self.endpoint.is_secure() => trusting(file).map(Some),
            _ => Ok(self.system.clone()),
        }
    }
}

fn token(file: &Path) -> Result<(HeaderName, HeaderValue), CollectorError> {
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

fn trusting(file: &Path) -> Result<Arc<ClientConfig>, CollectorError> {
    let bytes = fs::read(file).map_err(|error| CollectorError::Read(file.to_owned(), error))?;
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(CertificateDer::pem_slice_iter(&bytes).filter_map(Result::ok));
    if roots.is_empty() {
        return Err(CollectorError::NoCertificate(file.to_owned()));
    }
    Ok(client(roots))
}

fn system() -> Result<Arc<ClientConfig>, CollectorError> {
    let mut roots = RootCertStore::empty();
    // Systems ship certificates that no longer parse; the others are still good.
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if roots.is_empty() { Err(CollectorError::NoRoots) } else { Ok(client(roots)) }
}

fn client(roots: RootCertStore) -> Arc<ClientConfig> {
    let mut config = ClientConfig::builder_with_provider(tls::provider())
        .with_safe_default_protocol_versions()
        .expect("it speaks the default versions")
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
