//! The credentials of a tunnel that kas dials: agentk has a certificate, and kas has a client certificate or a key.

use std::{
    io,
    path::{Path, PathBuf},
    sync::Arc,
    time::SystemTime,
};

use arc_swap::ArcSwap;
use http::{HeaderMap, header::AUTHORIZATION};
use proto::dial_token::DialTokenVerifier;
use rustls::{
    ServerConfig,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
    server::{NoClientAuth, NoServerSessionStorage, WebPkiClientVerifier, danger::ClientCertVerifier},
};
use secrecy::{ExposeSecret as _, SecretString};
use sha2::{Digest as _, Sha256};
use subtle::{Choice, ConstantTimeEq as _};
use tls::provider;
use tokio::net::TcpStream;
use tokio_rustls::{TlsAcceptor, server::TlsStream};
use tunnel::ReadAhead;

/// The shortest key. `openssl rand -hex 32` has 64 characters.
const MIN_KEY: usize = 32;
/// The longest key.
const MAX_KEY: usize = 4096;
/// The most keys of a file: the present one and its replacement.
const MAX_KEYS: usize = 2;

/// The error of a file with a certificate or a key.
#[derive(Debug, thiserror::Error)]
#[error("{}: {what}", .path.display())]
pub struct ListenConfigError {
    path: PathBuf,
    what: String,
}

/// The certificate of agentk, and the authority of the clients that may connect. Cheap to clone; a new version applies to all clones.
#[derive(Clone, Debug)]
pub struct ListenTls {
    certificate: PathBuf,
    key: PathBuf,
    clients: ClientCertificates,
    current: Arc<ArcSwap<ServerConfig>>,
}

/// The certificates that clients have. The path is that of their authority.
#[derive(Clone, Debug)]
enum ClientCertificates {
    None,
    /// Clients without a certificate are accepted, too.
    Optional(PathBuf),
    Required(PathBuf),
}

/// The public key of the tokens that kas may send. Cheap to clone; a new version applies to all clones.
#[derive(Clone, Debug)]
pub struct ListenPublicKey {
    path: PathBuf,
    current: Arc<ArcSwap<DialTokenVerifier>>,
}

/// The keys that kas may send. Cheap to clone; a new version applies to all clones.
#[derive(Clone, Debug)]
pub struct ListenKey {
    path: PathBuf,
    digests: Arc<ArcSwap<Vec<[u8; 32]>>>,
}

impl ListenConfigError {
    fn new(path: &Path, what: impl Into<String>) -> Self {
        Self { path: path.to_owned(), what: what.into() }
    }

    fn unreadable(path: &Path, error: &io::Error) -> Self {
        Self::new(path, files::unreadable(error))
    }

    /// Returns the file that is invalid.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl ListenTls {
    /// Reads a certificate chain with its private key, and the authority of clients if they need a certificate. This blocks.
    pub fn read(
        certificate: PathBuf,
        key: PathBuf,
        client_ca: Option<PathBuf>,
    ) -> Result<Self, ListenConfigError> {
        Self::new(certificate, key, client_ca.map_or(ClientCertificates::None, ClientCertificates::Required))
    }

    /// Reads a certificate chain with its private key, and the authority of clients that may have a certificate. This blocks.
    pub fn with_optional_clients(
        certificate: PathBuf,
        key: PathBuf,
        client_ca: Option<PathBuf>,
    ) -> Result<Self, ListenConfigError> {
        Self::new(certificate, key, client_ca.map_or(ClientCertificates::None, ClientCertificates::Optional))
    }

    fn new(
        certificate: PathBuf,
        key: PathBuf,
        clients: ClientCertificates,
    ) -> Result<Self, ListenConfigError> {
        let config = server_config(&certificate, &key, &clients)?;
        let current = Arc::new(ArcSwap::from_pointee(config));
        Ok(Self { certificate, key, clients, current })
    }

    /// Reads the files of the flags `--<prefix>-certificate-file`, `--<prefix>-certificate-key-file` and `--<prefix>-client-ca-file`. The
    /// error begins with the flag of the invalid file. This blocks.
    pub fn from_flags(
        prefix: &str,
        certificate: PathBuf,
        key: PathBuf,
        client_ca: Option<PathBuf>,
    ) -> anyhow::Result<Self> {
        let (of_key, of_authority) = (key.clone(), client_ca.clone());
        Self::read(certificate, key, client_ca).map_err(|error| {
            let flag = match error.path() {
                path if path == of_key => "certificate-key-file",
                path if Some(path) == of_authority.as_deref() => "client-ca-file",
                _ => "certificate-file",
            };
            anyhow::Error::new(error).context(format!("--{prefix}-{flag}"))
        })
    }

    /// Reads the files again. If they are invalid, the present version stays. This blocks.
    pub fn reload(&self) -> Result<(), ListenConfigError> {
        let config = server_config(&self.certificate, &self.key, &self.clients)?;
        self.current.store(Arc::new(config));
        Ok(())
    }

    /// Returns the paths of the files.
    pub fn files(&self) -> Vec<PathBuf> {
        let pair = [self.certificate.clone(), self.key.clone()];
        pair.into_iter().chain(self.clients.authority().cloned()).collect()
    }

    /// Returns true if clients need a certificate.
    pub fn authenticates_clients(&self) -> bool {
        matches!(self.clients, ClientCertificates::Required(_))
    }

    /// Performs the TLS handshake of a connection.
    ///
    /// # Errors
    ///
    /// The handshake fails.
    pub async fn accept(&self, tcp: TcpStream) -> io::Result<TlsStream<ReadAhead<TcpStream>>> {
        TlsAcceptor::from(self.current.load_full()).accept(ReadAhead::new(tcp)).await
    }
}

impl ClientCertificates {
    fn authority(&self) -> Option<&PathBuf> {
        match self {
            Self::None => None,
            Self::Optional(authority) | Self::Required(authority) => Some(authority),
        }
    }
}

fn server_config(
    certificate: &Path,
    key: &Path,
    clients: &ClientCertificates,
) -> Result<ServerConfig, ListenConfigError> {
    let read = |path: &Path| files::read(path).map_err(|error| ListenConfigError::unreadable(path, &error));
    let chain = CertificateDer::pem_slice_iter(&read(certificate)?).collect::<Result<Vec<_>, _>>();
    let chain = chain.unwrap_or_default();
    if chain.is_empty() {
        return Err(ListenConfigError::new(certificate, "holds no PEM certificate"));
    }
    let private = PrivateKeyDer::from_pem_slice(&read(key)?)
        .map_err(|_| ListenConfigError::new(key, "holds no PEM private key"))?;
    let clients: Arc<dyn ClientCertVerifier> = match clients.authority() {
        Some(path) => {
            let invalid = |what: String| ListenConfigError::new(path, what);
            let roots = tls::parse_roots(&read(path)?).map_err(|error| invalid(error.to_string()))?;
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider());
            let verifier = match clients {
                ClientCertificates::Optional(_) => verifier.allow_unauthenticated(),
                _ => verifier,
            };
            verifier.build().map_err(|error| invalid(error.to_string()))?
        }
        None => Arc::new(NoClientAuth),
    };
    let mut config = ServerConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .expect("the provider supports the default versions")
        .with_client_cert_verifier(clients)
        .with_single_cert(chain, private)
        .map_err(|error| match error {
            rustls::Error::InvalidCertificate(_) => {
                ListenConfigError::new(certificate, format!("cannot be used: {error}"))
            }
            _ => {
                let what = format!("does not match the certificate {}: {error}", certificate.display());
                ListenConfigError::new(key, what)
            }
        })?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    // A resumed handshake would not verify the certificate of the client again.
    config.send_tls13_tickets = 0;
    config.session_storage = Arc::new(NoServerSessionStorage {});
    Ok(config)
}

impl ListenKey {
    /// Reads a file with one key, or with two on two lines while the key is rotated. This blocks.
    pub fn read(path: PathBuf) -> Result<Self, ListenConfigError> {
        let digests = Arc::new(ArcSwap::from_pointee(digests(&path)?));
        Ok(Self { path, digests })
    }

    /// Reads the file again. If it is invalid, the present keys stay. This blocks.
    pub fn reload(&self) -> Result<(), ListenConfigError> {
        self.digests.store(Arc::new(digests(&self.path)?));
        Ok(())
    }

    /// Returns the path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns true if a request has one of the keys. The time does not depend on the key.
    pub(super) fn accepts(&self, headers: &HeaderMap) -> bool {
        let Some(key) = bearer(headers) else { return false };
        let digest: [u8; 32] = Sha256::digest(key).into();
        let known = self.digests.load();
        known.iter().fold(Choice::from(0), |found, known| found | known.ct_eq(&digest)).into()
    }
}

impl ListenPublicKey {
    /// Reads a file with the base64 of a public key. This blocks.
    pub fn read(path: PathBuf) -> Result<Self, ListenConfigError> {
        let current = Arc::new(ArcSwap::from_pointee(verifier(&path)?));
        Ok(Self { path, current })
    }

    /// Reads the file again. If it is invalid, the present key stays. This blocks.
    pub fn reload(&self) -> Result<(), ListenConfigError> {
        self.current.store(Arc::new(verifier(&self.path)?));
        Ok(())
    }

    /// Returns the path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns true if a request has a token of the private key that is valid at `now`.
    pub(super) fn accepts(&self, headers: &HeaderMap, now: SystemTime) -> bool {
        let token = bearer(headers).and_then(|token| std::str::from_utf8(token).ok());
        token.is_some_and(|token| self.current.load().accepts(token, now))
    }
}

/// Returns the value of the only header field `Authorization` with the scheme `Bearer`.
fn bearer(headers: &HeaderMap) -> Option<&[u8]> {
    let mut values = headers.get_all(AUTHORIZATION).iter();
    let (Some(value), None) = (values.next(), values.next()) else { return None };
    value.as_bytes().strip_prefix(b"Bearer ")
}

fn verifier(path: &Path) -> Result<DialTokenVerifier, ListenConfigError> {
    let text = files::read_text(path).map_err(|error| ListenConfigError::unreadable(path, &error))?;
    DialTokenVerifier::parse(&text).map_err(|error| {
        ListenConfigError::new(path, format!("{error}: copy the public key of the URL from GitLab"))
    })
}

fn digests(path: &Path) -> Result<Vec<[u8; 32]>, ListenConfigError> {
    let text = files::read_text(path).map_err(|error| ListenConfigError::unreadable(path, &error))?;
    let text = SecretString::from(text);
    let keys: Vec<&str> =
        text.expose_secret().lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    let usable = |key: &&str| {
        (MIN_KEY..=MAX_KEY).contains(&key.len()) && key.bytes().all(|byte| byte.is_ascii_graphic())
    };
    if keys.is_empty() || keys.len() > MAX_KEYS || !keys.iter().all(usable) {
        let what = "it has one key of at least 32 visible ASCII characters, or two on two lines: create one with openssl rand -hex 32";
        return Err(ListenConfigError::new(path, what));
    }
    Ok(keys.into_iter().map(|key| Sha256::digest(key).into()).collect())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use http::HeaderValue;
    use proto::dial_token::DialTokenKey;

    use super::*;

    fn headers(values: &[&str]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(AUTHORIZATION, HeaderValue::from_str(value).unwrap());
        }
        headers
    }

    #[test]
    fn both_keys_of_the_file_are_accepted() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("key");
        let (old, new) = ("o".repeat(32), "n".repeat(40));
        fs::write(&path, format!("{old}\n{new}\n")).unwrap();
        let key = ListenKey::read(path.clone()).unwrap();
        for good in [&old, &new] {
            assert!(key.accepts(&headers(&[&format!("Bearer {good}")])));
        }
        let (bearer, other) = (format!("Bearer {old}"), format!("Bearer {old}x"));
        for bad in [vec![], vec![&*other], vec!["Bearer "], vec![&*old], vec![&*bearer, &*bearer]] {
            assert!(!key.accepts(&headers(&bad)), "{bad:?}");
        }
        fs::write(&path, &new).unwrap();
        key.reload().unwrap();
        assert!(!key.accepts(&headers(&[&bearer])));
        fs::write(&path, "").unwrap();
        assert!(key.reload().is_err());
        assert!(key.accepts(&headers(&[&format!("Bearer {new}")])), "the last good keys stay");
    }

    /// The keys are those of the first test of RFC 8032, section 7.1.
    #[test]
    fn token_of_the_key_in_gitlab_is_accepted() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("public-key");
        fs::write(&path, "11qYAYKxCrfVS/7TyWQHOg7hcvPapiMlrwIaaPcHURo=\n").unwrap();
        let public = ListenPublicKey::read(path.clone()).unwrap();
        let private = DialTokenKey::parse("nWGxne/9WmC6hEr0kuwsxERJxWl7MmkZcDusAxyuf2A=").unwrap();
        let now = SystemTime::now();
        let bearer = format!("Bearer {}", private.token(now));
        assert!(public.accepts(&headers(&[&bearer]), now));
        assert!(!public.accepts(&headers(&[&bearer, &bearer]), now) && !public.accepts(&headers(&[]), now));
        fs::write(&path, "secret").unwrap();
        let error = public.reload().unwrap_err().to_string();
        assert!(error.ends_with("copy the public key of the URL from GitLab"), "{error}");
        assert!(public.accepts(&headers(&[&bearer]), now), "the last good key stays");
    }

    #[test]
    fn unusable_key_file_is_refused_without_the_key() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("key");
        for text in ["", "\n", "short-secret", &"é".repeat(40), &format!("{0}\n{0}\n{0}", "k".repeat(32))] {
            fs::write(&path, text).unwrap();
            let error = ListenKey::read(path.clone()).unwrap_err().to_string();
            assert!(error.contains("at least 32 visible") && !error.contains("secret"), "{error}");
        }
    }
}
